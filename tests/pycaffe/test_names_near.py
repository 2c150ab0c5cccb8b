"""Wrong names and shapes that a program gives a net: minicaffe's errors, which are KeyError or ValueError and name near names."""

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.errors import ConfigError, MissingNameError, ShapeError

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
def test_wrong_names_have_near_ones(net, call, text):
    with pytest.raises(KeyError) as caught:
        call(net)
    assert type(caught.value) is MissingNameError and str(caught.value) == text


def test_names_are_checked_before_a_run(net):
    ran = []
    net.before_forward(ran.append)
    with pytest.raises(MissingNameError):
        net.forward(blobs=["dat"])
    assert ran == []


def test_views_by_name_stay_dicts(net):
    assert net.blobs.get("dat") is None and "dat" not in net.blobs and net.params.get("fc") is not None
    assert net.layer_dict.copy() == net.layer_dict and type(net.top_names | {"x": []}) is dict
    changed = net.top_names.copy()
    changed["x"] = []
    assert "x" not in net.top_names


@pytest.mark.parametrize("shape", [(2, 3, 9, 5), (2, 3), (2, 2, 1, 1), (2, 1, 2, 3, 4, 5), (5, 3, 4, 5)])
def test_arrays_that_do_not_fit_are_refused(net, shape):
    with pytest.raises(ShapeError) as caught:
        net.forward(data=np.zeros(shape, np.float32))
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(f"inputs: 'data' has {shape}, the blob (2, 3, 4, 5)")
    assert ("net.blobs['data'].reshape" in str(caught.value)) == (len(shape) >= 4)     # no advice that drops an axis


def test_arrays_that_broadcast_are_taken(net):
    net.forward(data=np.full((2, 1, 1, 1), 3, np.float32))
    assert (net.blobs["data"].data == 3).all()
    with pytest.raises(ShapeError, match=r"outputs: 'out' has \(2, 3\), the blob \(2, 4\)"):
        net.backward(out=np.zeros((2, 3)))


def test_unknown_arrays_of_both_runs_are_refused(net):
    with pytest.raises(ConfigError, match=r"inputs \['data'\] and outputs \['out'\], got \['dat'\]"):
        net.forward_backward_all(dat=np.zeros((2, 3, 4, 5)))


def test_repr_names_phase_inputs_and_layers(net, tmp_path):
    assert repr(net) == "<Net 'small': phase TEST, inputs data (2, 3, 4, 5), 3 layers>"
    net.blobs["data"].reshape(1, 3, 4, 5)
    assert "data (1, 3, 4, 5)" in repr(net) and str(net) != repr(net)
    (tmp_path / "plain.prototxt").write_text('layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 1 } } }')
    assert repr(caffe.Net(str(tmp_path / "plain.prototxt"), caffe.TRAIN)) == "<Net '': phase TRAIN, no inputs, 1 layers>"


def test_repr_of_a_solver(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET + 'layer { name: "loss" type: "EuclideanLoss" bottom: "out" bottom: "out" top: "loss" }')
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 7')
    solver = caffe.SGDSolver(str(tmp_path / "solver.prototxt"))
    assert repr(solver) == f"<SGDSolver iteration 0/7, {solver.net!r}, 0 test nets>"
