"""deploy_net: what is left of a training net for one picture."""

import pytest

from minicaffe.errors import ConfigError
from minicaffe.net.deploy import deploy_net, source_layer
from minicaffe.proto import caffe_pb2, text

DATA = 'layer { name: "in" type: "Data" top: "data" top: "label" } '
IP = 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" } layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" } '
AUX = """layer { name: "aux" type: "InnerProduct" bottom: "ip" top: "aux" } layer { name: "aux_loss" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label" top: "aux_loss" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip" top: "ip2" }
"""
ACCURACY = 'layer { name: "right" type: "Accuracy" bottom: "ip" bottom: "label" top: "right" include { phase: TEST } } '


def deployed(prototxt):
    """Return (name, type, bottoms, tops) of the layers after the Input, and the NetParameter."""
    param, _ = text.parse_text(prototxt, caffe_pb2.NetParameter)
    param.state.phase = caffe_pb2.TEST
    made = deploy_net(param, (1, 3, 8, 9), "net.prototxt")
    assert made.layer[0].type == "Input" and list(made.layer[0].top) == ["data"]
    assert list(made.layer[0].input_param.shape[0].dim) == [1, 3, 8, 9] and made.state.phase == caffe_pb2.TEST
    return [(layer.name, layer.type, list(layer.bottom), list(layer.top)) for layer in made.layer[1:]], made


@pytest.mark.parametrize(("rest", "names", "last"), [
    (IP + ACCURACY + 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }',
     ["ip", "relu"], ("prob", "Softmax", ["ip"], ["prob"])),
    (IP + 'layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "ip" bottom: "label" top: "loss" }',
     ["ip", "relu"], ("prob", "Sigmoid", ["ip"], ["prob"])),
    (IP + AUX + 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }',
     ["ip", "relu", "ip2"], ("prob", "Softmax", ["ip2"], ["prob"])),  # the last loss, without the branch of the other
    (IP + ACCURACY + 'layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "label" top: "loss" }',
     ["ip"], ("relu", "ReLU", ["ip"], ["ip"])),  # no loss with a prediction: the last layer that needs no label
    (IP + 'layer { name: "mix" type: "Eltwise" bottom: "ip" bottom: "label" top: "mix" } '
     'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "mix" bottom: "label" top: "loss" }', ["ip"], ("relu", "ReLU", ["ip"], ["ip"])),
    ('layer { name: "more" type: "Data" top: "other" } layer { name: "o" type: "InnerProduct" bottom: "other" top: "o" } ' + IP
     + 'layer { name: "sum" type: "Eltwise" bottom: "ip" bottom: "o" top: "sum" }', ["ip"], ("relu", "ReLU", ["ip"], ["ip"])),
    (IP + 'layer { name: "w" type: "Parameter" top: "w" } layer { name: "sum" type: "Bias" bottom: "ip" bottom: "w" top: "sum" }',
     ["ip", "relu", "w"], ("sum", "Bias", ["ip", "w"], ["sum"])),      # a layer without bottoms that has no data
    ('layer { name: "loss" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" top: "loss" }', [], ("prob", "Softmax", ["data"], ["prob"])),
])
def test_what_stays(rest, names, last):
    layers, _ = deployed(DATA + rest)
    assert [name for name, *_ in layers] == [*names, last[0]] and layers[-1] == last


def test_the_axis_of_the_softmax_stays():
    loss = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" softmax_param { axis: 2 } }'
    assert deployed(DATA + IP + loss)[1].layer[-1].softmax_param.axis == 2


def test_phases_and_empty_remainders():
    param, _ = text.parse_text(DATA.replace("}", "include { phase: TRAIN } }") + IP, caffe_pb2.NetParameter)
    param.state.phase = caffe_pb2.TEST
    assert source_layer(param) is None
    param.state.phase = caffe_pb2.TRAIN
    param.layer.insert(0, caffe_pb2.LayerParameter(name="w", type="Parameter", top=["w"]))
    assert source_layer(param).name == "in"
    with pytest.raises(ConfigError, match="net.prototxt: no layer computes a prediction without labels"):
        deployed(DATA + 'layer { name: "loss" type: "EuclideanLoss" bottom: "data" bottom: "label" top: "loss" }')
