"""What a net gives: its names, blobs, parameters and layers, which cannot be assigned to; near names and shapes in errors."""

import copy

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import _caffe
from minicaffe.errors import ConfigError, MissingNameError, WrongTypeError

NET = """
name: "small"
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 5 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "out" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "out" top: "out" }
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    return caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)


@pytest.mark.parametrize(("call", "text"), [
    (lambda net: net.blobs["dat"], "the net has no blob 'dat'; did you mean 'data'?"),
    (lambda net: net.blobs[0], "the net has no blob 0"),
    (lambda net: net.params["fc "], "the net has no layer with parameters named 'fc '; did you mean 'fc'?"),
    (lambda net: net.params["relu"], "the net has no layer with parameters named 'relu'"),
    (lambda net: net.layer_dict["rel"], "the net has no layer 'rel'; did you mean 'relu'?"),
    (lambda net: net.top_names["rel"], "the net has no layer 'rel'; did you mean 'relu'?"),
    (lambda net: net.bottom_names["rel"], "the net has no layer 'rel'; did you mean 'relu'?"),
    (lambda net: net.blob_loss_weights["oud"], "the net has no blob 'oud'; did you mean 'out'?"),
    (lambda net: net.forward(start="rel"), "the net has no layer 'rel'; did you mean 'relu'?"),
    (lambda net: net.forward(blobs=["dat"]), "the net has no blob 'dat'; did you mean 'data'?"),
    (lambda net: net.backward(start="rel"), "the net has no layer 'rel'; did you mean 'relu'?"),
    (lambda net: net.backward(diffs=["dat"]), "the net has no blob 'dat'; did you mean 'data'?")])
def test_wrong_names(net, call, text):
    with pytest.raises(KeyError) as caught:
        call(net)
    assert type(caught.value) is MissingNameError and str(caught.value) == text


def test_views_and_arrays(net):
    assert net.blobs.get("dat") is None and "dat" not in net.blobs and net.params.get("fc") is not None
    assert net.layer_dict.copy() == net.layer_dict and type(net.top_names | {"x": []}) is dict
    changed = net.top_names.copy()
    changed["x"] = []
    assert "x" not in net.top_names
    for copied in (lambda held: held.copy()), copy.copy, (lambda held: held | {}), (lambda held: {} | held):
        for held in net.params, net.blobs:
            made = copied(held)
            assert list(made.items()) == list(held.items())
            made["more"] = 1
            assert "more" not in held
    before = [blob.data.copy() for blob in net.params["fc"]]
    for index in 0, -1, slice(0, 1):
        for value in (np.zeros((4, 3)), net.params["fc"][1], 0):
            with pytest.raises(TypeError, match="does not support item assignment"):
                net.params["fc"][index] = value
    for blob, values in zip(net.params["fc"], before):
        np.testing.assert_array_equal(blob.data, values)
    for change in (lambda: net.blobs.__setitem__("data", np.zeros((2, 3))), lambda: net.params.__setitem__("fc", [])):
        with pytest.raises(WrongTypeError, match=r"Invalid assignment: .*to set values write net.blobs\['.*'\].data\[...\] = array"):
            change()
    with pytest.raises(TypeError):
        net.layers[0] = net.layers[1]
    assert len(net.params["fc"]) == 2 and len(net.layers) == 3 and list(net.blobs) == ["data", "out"]


def test_arrays_that_broadcast(net):
    net.forward(data=np.float32([[3], [4]]).reshape(2, 1, 1, 1))        # it broadcasts
    assert (net.blobs["data"].data == np.float32([3, 4]).reshape(2, 1, 1, 1)).all()
    with pytest.raises(ConfigError, match=r"inputs \['data'\] and outputs \['out'\], got \['dat'\]"):
        net.forward_backward_all(dat=np.zeros((2, 3, 4, 5)))
    ran = []
    net.before_forward(ran.append)
    with pytest.raises(MissingNameError):
        net.forward(blobs=["dat"])
    assert ran == []


def test_parts_and_repr(net, tmp_path):
    weight, bias = blobs = net.params["fc"]
    assert len(blobs) == 2 and blobs[-1] is bias and weight in blobs and blobs.index(bias) == 1
    assert [layer.type for layer in net.layers] == ["Input", "InnerProduct", "ReLU"] and all(isinstance(blob, _caffe.Blob) for blob in blobs)
    assert (net._layer_names, net._blob_names, net._blob_loss_weights) == (["in", "fc", "relu"], ["data", "out"], [0, 0])
    assert (net._inputs, net._outputs, net._top_ids(1), net._bottom_ids(1)) == ([0], [1], [1], [0])
    assert net._blobs == list(net.blobs.values()) and isinstance(net, _caffe.Net) and net.blobs is net.blobs
    assert net.top_names["fc"] == ["out"] and net.bottom_names["fc"] == ["data"] and list(net.layer_dict) == net._layer_names
    assert net.blob_loss_weights == {"data": 0, "out": 0}
    with pytest.raises(AttributeError):
        net.blobs = {}
    assert caffe.layer_type_list() == sorted(caffe.layer_type_list())
    assert repr(net) == "<Net 'small': phase TEST, inputs data (2, 3, 4, 5), 3 layers>"
    net.blobs["data"].reshape(1, 3, 4, 5)
    assert "data (1, 3, 4, 5)" in repr(net) and str(net) != repr(net)
    (tmp_path / "plain.prototxt").write_text('layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 1 } } }')
    assert repr(caffe.Net(str(tmp_path / "plain.prototxt"), caffe.TRAIN)) == "<Net '': phase TRAIN, no inputs, 1 layers>"


def test_solvers_of_a_net(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET + 'layer { name: "loss" type: "EuclideanLoss" bottom: "out" bottom: "out" top: "loss" }')
    path = tmp_path / "solver.prototxt"
    path.write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 7 test_iter: 1 test_interval: 9')
    for name in ("SGDSolver", "NesterovSolver", "AdaGradSolver", "RMSPropSolver", "AdaDeltaSolver", "AdamSolver"):
        assert issubclass(getattr(_caffe, name), _caffe.SGDSolver) and issubclass(getattr(_caffe, name), _caffe.Solver)
    solver = caffe.AdamSolver(str(path))
    assert type(solver.test_nets[0]) is caffe.Net and repr(solver) == f"<AdamSolver iteration 0/7, {solver.net!r}, 1 test nets>"
