"""What a net hands out, its blobs, parameters and layers, cannot be assigned to: that would not change what the net computes."""

import copy

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import _caffe
from minicaffe.errors import WrongTypeError

NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    return caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)


def test_parts_by_index(net):
    weight, bias = blobs = net.params["fc"]
    assert len(blobs) == 2 and blobs[-1] is bias and weight in blobs and blobs.index(bias) == 1
    assert [layer.type for layer in net.layers] == ["Input", "InnerProduct"] and all(isinstance(blob, _caffe.Blob) for blob in blobs)
    assert (net._layer_names, net._blob_names, net._blob_loss_weights) == (["in", "fc"], ["x", "y"], [0, 0])
    assert (net._inputs, net._outputs, net._top_ids(1), net._bottom_ids(1)) == ([0], [1], [1], [0])
    assert net._blobs == list(net.blobs.values()) and isinstance(net, _caffe.Net)
    assert caffe.layer_type_list() == sorted(caffe.layer_type_list())


@pytest.mark.parametrize("index", [0, -1, slice(0, 1)])
def test_parameters_are_not_replaced(net, index):
    before = [blob.data.copy() for blob in net.params["fc"]]
    for value in (np.zeros((4, 3)), net.params["fc"][1], 0):
        with pytest.raises(TypeError, match="does not support item assignment"):
            net.params["fc"][index] = value
    for blob, values in zip(net.params["fc"], before):
        np.testing.assert_array_equal(blob.data, values)


def test_an_assignment_by_name_is_refused_with_what_to_write(net):
    for change in (lambda: net.blobs.__setitem__("x", np.zeros((2, 3))), lambda: net.params.__setitem__("fc", [])):
        with pytest.raises(WrongTypeError, match=r"Invalid assignment: .*to set values write net.blobs\['.*'\].data\[...\] = array"):
            change()
    with pytest.raises(TypeError):
        net.layers[0] = net.layers[1]
    assert len(net.params["fc"]) == 2 and len(net.layers) == 2 and list(net.blobs) == ["x", "y"]


def test_solvers_derive_as_in_pycaffe(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET + 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "y" top: "loss" }')
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed" test_iter: 1 test_interval: 9')
    for name in ("SGDSolver", "NesterovSolver", "AdaGradSolver", "RMSPropSolver", "AdaDeltaSolver", "AdamSolver"):
        assert issubclass(getattr(_caffe, name), _caffe.SGDSolver) and issubclass(getattr(_caffe, name), _caffe.Solver)
    solver = caffe.AdamSolver(str(tmp_path / "solver.prototxt"))
    assert type(solver.test_nets[0]) is caffe.Net


@pytest.mark.parametrize("copied", [lambda held: held.copy(), copy.copy, lambda held: held | {}, lambda held: {} | held])
def test_a_copied_dict_may_be_changed(net, copied):
    for held in net.params, net.blobs:
        made = copied(held)
        assert list(made.items()) == list(held.items())
        made["more"] = 1
        assert "more" not in held
