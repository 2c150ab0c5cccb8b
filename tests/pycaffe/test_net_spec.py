"""NetSpec, L and P: nets written in Python, where fields go, names, and what is refused."""

import time

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P
from minicaffe.errors import ConfigError, MissingNameError
from minicaffe.net_spec import Function, Top, assign_proto, param_name_dict, to_proto
from minicaffe.proto import caffe_pb2, text


def lenet(batch=4):
    data, label = L.DummyData(shape=[dict(dim=[batch, 1, 28, 28]), dict(dim=[batch])], ntop=2)
    conv1 = L.Convolution(data, kernel_size=5, num_output=20, weight_filler=dict(type="xavier"))
    pool1 = L.Pooling(conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    conv2 = L.Convolution(pool1, kernel_size=5, num_output=50, weight_filler=dict(type="xavier"))
    pool2 = L.Pooling(conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    ip1 = L.InnerProduct(pool2, num_output=500, weight_filler=dict(type="xavier"))
    relu1 = L.ReLU(ip1, in_place=True)
    ip2 = L.InnerProduct(relu1, num_output=10, weight_filler=dict(type="xavier"))
    return to_proto(L.SoftmaxWithLoss(ip2, label))


def build(param, tmp_path):
    (tmp_path / "net.prototxt").write_text(str(param))
    return caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)


def test_anonymous_layers_run(tmp_path):
    net = build(lenet(), tmp_path)
    assert len(net.layers) == 9 and list(net.layer_dict)[1] == "Convolution1"
    assert net.top_names["ReLU1"] == net.bottom_names["ReLU1"] == ["InnerProduct1"]
    assert net.forward()["SoftmaxWithLoss1"] > 0
    assert text.parse_text(text.write_text(lenet()), caffe_pb2.NetParameter, "x")[0] == lenet()
    data = L.DummyData(shape=dict(dim=3))
    net = build(to_proto(L.Silence(data, ntop=0), L.Silence(data, ntop=0)), tmp_path)
    assert list(net.layer_dict).count("Silence1") == 1 and net.forward() == {}


def test_names_and_in_place():
    n = caffe.NetSpec()
    n.data, n.label = L.DummyData(shape=[dict(dim=[2, 3]), dict(dim=[2])], ntop=2)
    n.ip = L.InnerProduct(n.data, num_output=3)
    n["relu"] = L.ReLU(n.ip, in_place=True)
    n.loss = L.SoftmaxWithLoss(n.relu, n["label"], name="own name", loss_weight=2)
    n.drop = L.Silence(L.Power(n.data, scale=2), ntop=0)
    made = n.to_proto().layer
    assert [layer.name for layer in made] == ["data", "ip", "relu", "own name", "Power1", "drop"]
    assert [list(layer.top) for layer in made] == [["data", "label"], ["ip"], ["ip"], ["loss"], ["Power1"], []]
    assert list(made[3].bottom) == ["ip", "label"] and made[3].loss_weight == [2]
    assert n.keys() == ["data", "label", "ip", "relu", "loss", "drop"] and isinstance(n.vals()[-1], Function)
    with pytest.raises(KeyError, match="did you mean 'label'"):
        n["labl"]
    del n.drop
    assert "drop" not in n and len(n.to_proto().layer) == 4


@pytest.mark.parametrize("names, tops", [
    ("ab", ["a", "b", "Slice1"]), ("ba", ["a", "b", "Slice1"]), ("b", ["Slice1", "b", "Slice2"]), ("c", ["Slice1", "Slice2", "c"]), ("cba", ["a", "b", "c"])])
def test_names_of_several_tops(names, tops):
    """A layer has the name of its first top, in whatever order the tops get theirs."""
    n = caffe.NetSpec()
    made = dict(zip("abc", L.Slice(L.Input(shape=dict(dim=[1, 3])), ntop=3)))
    for name in names:
        n[name] = made[name]
    layer = n.to_proto().layer[1]
    assert (layer.name, list(layer.top)) == (tops[0], tops)


def test_where_fields_go():
    layer = L.Convolution(L.Input(), num_output=3, kernel_size=[3, 5], weight_filler=dict(type="gaussian", std=0.5),
                          param=[dict(lr_mult=1), dict(lr_mult=2, decay_mult=0)], include=dict(phase=caffe.TEST)).to_proto().layer[1]
    assert layer.convolution_param.num_output == 3 and list(layer.convolution_param.kernel_size) == [3, 5]
    assert layer.convolution_param.weight_filler.std == 0.5 and layer.param[1].lr_mult == 2
    assert layer.include[0].phase == caffe.TEST
    deconvolution = L.Deconvolution(L.Input(), convolution_param=dict(num_output=2, kernel_size=4)).to_proto().layer[1]
    assert list(deconvolution.convolution_param.kernel_size) == [4]
    assert L.Data(backend=P.Data.LMDB, transform_param=dict(mean_value=(1, 2))).to_proto().layer[0].transform_param.mean_value[1] == 2
    assert param_name_dict()["InnerProduct"] == "inner_product"
    solver = caffe_pb2.SolverParameter()
    assign_proto(solver, "test_iter", 5)
    assign_proto(solver, "stepvalue", [])
    assert list(solver.test_iter) == [5] and not solver.stepvalue


@pytest.mark.parametrize("wrong, kind, text", [
    (lambda x: L.Convolution((x, x), num_output=1), TypeError, "Convolution input 0 is not a Top .type is <class 'tuple'>"),
    (lambda x: L.Deconvolution(x, num_output=3).to_proto(), AttributeError, r"convolution_param=dict\(num_output"),
    (lambda x: L.Convolution(x, num_outptu=3).to_proto(), AttributeError, "did you mean 'num_output'"),
    (lambda x: L.Convolutoin(x, num_output=3).to_proto(), AttributeError, "there is no layer type Convolutoin; did you mean 'Convolution'"),
    (lambda x: L.Convolution(x, num_output="x").to_proto(), ConfigError, "layer 'Convolution1' .Convolution.: num_output: 'x'"),
    (lambda x: L.Input(shape=dict(dmi=3)).to_proto(), ConfigError, "shape.dmi: BlobShape has no field 'dmi'"),
    (lambda x: P.Pooling.MAXIMUM, AttributeError, "MAXIMUM"),
    (lambda x: P.Poling.MAX, AttributeError, "did you mean 'Pooling'"),
    (lambda x: setattr(caffe.NetSpec(), "x", (x, 3)), TypeError, "NetSpec takes Tops of layers, 'x' is <class 'tuple'>"),
    (lambda x: setattr(caffe.NetSpec(), "x", ()), TypeError, "NetSpec takes Tops of layers"),
    (lambda x: L.Data(ntop=1.5), TypeError, "ntop must be an int, got 1.5"),
    (lambda x: L.Data(ntop="2"), TypeError, "ntop must be an int"),
    (lambda x: caffe.NetSpec().update("x", {"axis": 1}), MissingNameError, "no 'x'"),
    (lambda x: L.Convolution(x, num_output=63 / 2).to_proto(), ConfigError, "num_output: 31.5 does not fit"),
    (lambda x: L.Convolution(x, num_output=np.float32(31.5)).to_proto(), ConfigError, "num_output: 31.5 does not fit"),
    (lambda x: L.Convolution(x, num_output=float("inf")).to_proto(), ConfigError, "num_output: inf does not fit"),
    (lambda x: caffe.NetSpec()["x"], MissingNameError, "no 'x'"),
    (lambda x: assign_proto(caffe_pb2.BlobShape(), "dmi", 3), AttributeError, "^dmi: BlobShape has no field 'dmi'; did you mean 'dim'"),
    (lambda x: L.Convolution(x, num_output=1, bias_term=1.0).to_proto(), ConfigError, "bias_term: 1.0 does not fit")])
def test_refusals(wrong, kind, text):
    with pytest.raises(kind, match=text):
        wrong(L.Input(shape=dict(dim=1)))


def test_thousand_layers():
    n, begin = caffe.NetSpec(), time.process_time()
    n.x = L.Input(shape=dict(dim=[1, 3, 8, 8]))
    for i in range(250):
        n[f"c{i}"] = L.Convolution(n.vals()[-1], num_output=8, kernel_size=3, pad=1, weight_filler=dict(type="msra"))
        n[f"b{i}"] = L.BatchNorm(n[f"c{i}"], in_place=True)
        n[f"s{i}"] = L.Scale(n[f"b{i}"], in_place=True, bias_term=True)
        n[f"r{i}"] = L.ReLU(n[f"s{i}"], in_place=True)
    assert len(n.to_proto().layer) == 1001 and time.process_time() - begin < 1
    top = L.Input(shape=dict(dim=1))
    for _ in range(3000):       # deeper than Python's stack
        top = L.ReLU(top)
    assert isinstance(top, Top) and top.to_proto().layer[-1].name == "ReLU3000"


def test_messages_in_fields():
    n = caffe.NetSpec()
    n.x = L.DummyData(shape=dict(dim=[2]))
    n.y = L.TypeOfOnesOwn(n.x, own_param=dict(size=3, sides=[1, 2], inner=dict(flag=True)), pooling_param=dict(kernel_size=2))
    layer = n.to_proto().layer[1]
    fields = text.layer_fields(layer)
    assert (fields.own_param.size, fields.own_param.sides, fields.own_param.inner.flag) == (3, [1, 2], True)
    assert layer.pooling_param.kernel_size == 2
    assert "own_param {\n    size: 3\n" in text.write_text(n.to_proto())
    with pytest.raises(ConfigError, match="own_param.size: must be a number"):
        L.TypeOfOnesOwn(n.x, own_param=dict(size=object())).to_proto()
    with pytest.raises(AttributeError, match="no such field of ReLU"):
        L.ReLU(n.x, own_param=dict(size=3)).to_proto()
    with pytest.raises(AttributeError, match="no such field of TypeOfOnesOwn"):
        L.TypeOfOnesOwn(n.x, own=3).to_proto()
    # A message of protobuf in place of a dict is copied; one of another type is refused
    filler = caffe_pb2.FillerParameter(type="gaussian", std=0.5)
    layer = L.Convolution(L.Input(), num_output=1, weight_filler=filler, transform_param=caffe_pb2.TransformationParameter(scale=2)).to_proto().layer[1]
    assert layer.convolution_param.weight_filler == filler and layer.transform_param.scale == 2
    filler.std = 3
    assert layer.convolution_param.weight_filler.std == 0.5
    with pytest.raises(ConfigError, match="(?s)weight_filler: .* does not fit"):
        L.Convolution(L.Input(), num_output=1, weight_filler=caffe_pb2.BlobShape(dim=[1])).to_proto()
    # Once a name that ends in param was refused there, with itself as the remedy. No message has one that LayerParameter has, too
    layer = L.DetectionOutput(L.Input(), num_classes=3, nms_param=dict(top_k=7), save_output_param=dict(output_format="VOC")).to_proto().layer[1]
    param = layer.detection_output_param
    assert (param.num_classes, param.nms_param.top_k, param.save_output_param.output_format) == (3, 7, "VOC")
    layer = L.Data(source="x", transform_param=dict(scale=2), data_param=dict(batch_size=3), param=dict(lr_mult=4)).to_proto().layer[0]
    assert (layer.data_param.source, layer.data_param.batch_size, layer.transform_param.scale, layer.param[0].lr_mult) == ("x", 3, 2, 4)


def test_update_of_ssd_and_ours():
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 3, 8, 8]))
    n.conv = L.Convolution(n.data, num_output=4, kernel_size=3)
    n.update("conv", {"dilation": 2, "num_output": 5})
    n.conv.update({"pad": 1})
    n.conv.fn.update({"param": dict(lr_mult=0)})
    made = n.to_proto().layer[1]
    assert (made.convolution_param.dilation, made.convolution_param.pad, made.convolution_param.num_output) == ([2], [1], 5)
    assert [param.lr_mult for param in made.param] == [0]
    n.update({"relu": L.ReLU(n.conv, in_place=True)})
    assert n.keys() == ["data", "conv", "relu"]


def test_arrays_and_scalars_of_numpy():
    for value in 64 / 2, np.int64(32), np.float64(32), np.uint8(32), np.array(32):
        layer = L.Convolution(L.Input(shape=dict(dim=[value, 1])), num_output=value, kernel_size=[value, 3.0]).to_proto().layer
        assert layer[1].convolution_param.num_output == 32 and list(layer[1].convolution_param.kernel_size) == [32, 3]
        assert list(layer[0].input_param.shape[0].dim) == [32, 1]
    n = caffe.NetSpec()
    n.data, n.label = L.Data(ntop=np.int32(2), transform_param=dict(mean_value=np.array([104, 117, 123], np.float32), mirror=np.bool_(True),
                                                                    scale=np.float32(0.5)), source=np.str_("db"))
    n.relu = L.ReLU(n.data, negative_slope=np.float64(0.25), loss_weight=np.arange(1.0))
    n.shape = L.Input(shape=dict(dim=np.array([2, 3])))
    n.again = L.Input(shape=dict(dim=range(1, 3)))
    data, relu, shape, again = n.to_proto().layer
    assert list(data.transform_param.mean_value) == [104, 117, 123] and data.transform_param.mirror and data.transform_param.scale == 0.5
    assert data.data_param.source == "db" and relu.relu_param.negative_slope == 0.25 and list(relu.loss_weight) == [0]
    assert list(shape.input_param.shape[0].dim) == [2, 3] and list(again.input_param.shape[0].dim) == [1, 2]
    mine = L.Mine(n.data, mine_param=dict(size=np.int64(3), at=np.array([1, 2]))).to_proto().layer[-1]
    assert "size: 3" in mine.fork_fields and "at: 1" in mine.fork_fields


@pytest.mark.parametrize("top, field, message", [
    (lambda x: L.Deconvolution(x, qqzzqq=3), "qqzzqq", "no such field of Deconvolution"),      # no message has it
    (lambda x: L.Deconvolution(x, engine=1), "engine", "no such field of Deconvolution"),      # more than four have it
    (lambda x: L.Convolution(x, negative_slope=1), "negative_slope", "no such field of Convolution"),     # it has a message of its own
    (lambda x: L.Deconvolution(x, negative_slope=1), "negative_slope",
     "no such field of Deconvolution; write it in its message: relu_param=dict(negative_slope=...)")])
def test_unknown_fields(top, field, message):
    with pytest.raises(AttributeError) as caught:
        top(L.Input()).to_proto()
    assert str(caught.value).endswith(f"{field}: {message}"), str(caught.value)


def test_names_of_functions_and_package():
    import minicaffe.layers.python as module
    assert (L.Convolution.__name__, L.OfTheirOwn.__qualname__) == ("Convolution", "OfTheirOwn")
    assert module.__name__ == "minicaffe.layers.python" and "Convolution" in dir(L) and "Pooling" in dir(P)
