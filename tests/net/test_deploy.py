"""deploy_net: what is left of a training net for one picture."""

import pytest
from helpers import layer_text

from minicaffe.errors import ConfigError
from minicaffe.net.deploy import deploy_net, source_layer
from minicaffe.proto import caffe_pb2, text

DATA = layer_text("Data", "in", "", "data label")
IP = layer_text("InnerProduct", "ip", "data") + layer_text("ReLU", "relu", "ip", "ip")
AUX = layer_text("InnerProduct", "aux", "ip") + layer_text("SoftmaxWithLoss", "aux_loss", "aux label") + layer_text("InnerProduct", "ip2", "ip")
ACCURACY = layer_text("Accuracy", "right", "ip label", more="include { phase: TEST }")


def deployed(prototxt):
    """Return (name, type, bottoms, tops) of the layers after the Input, and the NetParameter."""
    param, _ = text.parse_text(prototxt, caffe_pb2.NetParameter)
    param.state.phase = caffe_pb2.TEST
    made = deploy_net(param, (1, 3, 8, 9), "net.prototxt")
    assert made.layer[0].type == "Input" and list(made.layer[0].top) == ["data"]
    assert list(made.layer[0].input_param.shape[0].dim) == [1, 3, 8, 9] and made.state.phase == caffe_pb2.TEST
    return [(layer.name, layer.type, list(layer.bottom), list(layer.top)) for layer in made.layer[1:]], made


@pytest.mark.parametrize(("rest", "names", "last"), [
    (IP + ACCURACY + layer_text("SoftmaxWithLoss", "loss", "ip label"), ["ip", "relu"], ("prob", "Softmax", ["ip"], ["prob"])),
    (IP + layer_text("SigmoidCrossEntropyLoss", "loss", "ip label"), ["ip", "relu"], ("prob", "Sigmoid", ["ip"], ["prob"])),
    (IP + AUX + layer_text("SoftmaxWithLoss", "loss", "ip2 label"), ["ip", "relu", "ip2"], ("prob", "Softmax", ["ip2"], ["prob"])),  # without the other branch
    # No loss with a prediction: the last layer that needs no label
    (IP + ACCURACY + layer_text("EuclideanLoss", "loss", "ip label"), ["ip"], ("relu", "ReLU", ["ip"], ["ip"])),
    (IP + layer_text("Eltwise", "mix", "ip label") + layer_text("SoftmaxWithLoss", "loss", "mix label"), ["ip"], ("relu", "ReLU", ["ip"], ["ip"])),
    (layer_text("Data", "more", "", "other") + layer_text("InnerProduct", "o", "other") + IP + layer_text("Eltwise", "sum", "ip o"),
     ["ip"], ("relu", "ReLU", ["ip"], ["ip"])),
    (IP + layer_text("Parameter", "w") + layer_text("Bias", "sum", "ip w"), ["ip", "relu", "w"], ("sum", "Bias", ["ip", "w"], ["sum"])),  # w has no data
    (layer_text("SoftmaxWithLoss", "loss", "data label"), [], ("prob", "Softmax", ["data"], ["prob"])),
])
def test_what_stays(rest, names, last):
    layers, _ = deployed(DATA + rest)
    assert [name for name, *_ in layers] == [*names, last[0]] and layers[-1] == last


def test_the_axis_of_the_softmax_stays():
    assert deployed(DATA + IP + layer_text("SoftmaxWithLoss", "loss", "ip label", more="softmax_param { axis: 2 }"))[1].layer[-1].softmax_param.axis == 2


def test_phases_and_empty_remainders():
    param, _ = text.parse_text(DATA.replace("}", "include { phase: TRAIN } }") + IP, caffe_pb2.NetParameter)
    param.state.phase = caffe_pb2.TEST
    assert source_layer(param) is None
    param.state.phase = caffe_pb2.TRAIN
    param.layer.insert(0, caffe_pb2.LayerParameter(name="w", type="Parameter", top=["w"]))
    assert source_layer(param).name == "in"
    with pytest.raises(ConfigError, match="net.prototxt: no layer computes a prediction without labels"):
        deployed(DATA + layer_text("EuclideanLoss", "loss", "data label"))
