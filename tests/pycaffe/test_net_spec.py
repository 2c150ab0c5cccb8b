"""NetSpec, L and P: nets written in Python, where fields go, names, and what is refused."""

import time

import pytest

import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P
from minicaffe import proto
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


def test_anonymous_lenet_runs(tmp_path):
    net = build(lenet(), tmp_path)
    assert len(net.layers) == 9 and list(net.layer_dict)[1] == "Convolution1"
    assert net.top_names["ReLU1"] == net.bottom_names["ReLU1"] == ["InnerProduct1"]
    assert net.forward()["SoftmaxWithLoss1"] > 0


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
    (lambda x: setattr(caffe.NetSpec(), "x", L.Data(ntop=2)), TypeError, "unpack the tuple"),
    (lambda x: caffe.NetSpec()["x"], MissingNameError, "no 'x'"),
])
def test_refusals(wrong, kind, text):
    with pytest.raises(kind, match=text):
        wrong(L.Input(shape=dict(dim=1)))


def test_zero_tops(tmp_path):
    data = L.DummyData(shape=dict(dim=3))
    net = build(to_proto(L.Silence(data, ntop=0), L.Silence(data, ntop=0)), tmp_path)
    assert list(net.layer_dict).count("Silence1") == 1 and net.forward() == {}


def test_a_long_chain_of_anonymous_layers():
    top = L.Input(shape=dict(dim=1))
    for _ in range(3000):
        top = L.ReLU(top)
    assert isinstance(top, Top) and top.to_proto().layer[-1].name == "ReLU3000"


def test_a_thousand_layers_in_a_second():
    n, begin = caffe.NetSpec(), time.perf_counter()
    n.x = L.Input(shape=dict(dim=[1, 3, 8, 8]))
    for i in range(250):
        n[f"c{i}"] = L.Convolution(n.vals()[-1], num_output=8, kernel_size=3, pad=1, weight_filler=dict(type="msra"))
        n[f"b{i}"] = L.BatchNorm(n[f"c{i}"], in_place=True)
        n[f"s{i}"] = L.Scale(n[f"b{i}"], in_place=True, bias_term=True)
        n[f"r{i}"] = L.ReLU(n[f"s{i}"], in_place=True)
    assert len(n.to_proto().layer) == 1001 and time.perf_counter() - begin < 1


def test_the_text_is_read_back_the_same():
    param = lenet()
    assert text.parse_text(text.write_text(param), caffe_pb2.NetParameter, "x")[0] == param


def test_l_and_the_package_of_layers_share_a_name():
    import minicaffe.layers.python as module
    assert module.__name__ == "minicaffe.layers.python" and "Convolution" in dir(L) and "Pooling" in dir(P)


def test_messages_that_only_a_type_of_ones_own_knows():
    n = caffe.NetSpec()
    n.x = L.DummyData(shape=dict(dim=[2]))
    n.y = L.TypeOfOnesOwn(n.x, own_param=dict(size=3, sides=[1, 2], inner=dict(flag=True)), pooling_param=dict(kernel_size=2))
    layer = n.to_proto().layer[1]
    fields = proto.layer_fields(layer)
    assert (fields.own_param.size, fields.own_param.sides, fields.own_param.inner.flag) == (3, [1, 2], True)
    assert layer.pooling_param.kernel_size == 2
    assert "own_param {\n    size: 3\n" in text.write_text(n.to_proto())
    with pytest.raises(ConfigError, match="own_param.size: must be a number"):
        L.TypeOfOnesOwn(n.x, own_param=dict(size=object())).to_proto()
    with pytest.raises(AttributeError, match="no such field of ReLU"):
        L.ReLU(n.x, own_param=dict(size=3)).to_proto()
    with pytest.raises(AttributeError, match="no such field of TypeOfOnesOwn"):
        L.TypeOfOnesOwn(n.x, own=3).to_proto()
