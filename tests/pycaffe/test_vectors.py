"""pycaffe's vectors (``caffe._caffe.BlobVec`` and others): what nets hand out cannot be assigned to, and the error says what to write."""

import copy
import pickle

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import _caffe
from minicaffe.blob import Blob
from minicaffe.errors import WrongTypeError

NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    return caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)


def test_types_of_what_a_net_has(net):
    kinds = [(net.params["fc"], "BlobVec"), (net.layers, "LayerVec"), (net._blobs, "BlobVec"), (net._layer_names, "StringVec"),
             (net._blob_names, "StringVec"), (net._blob_loss_weights, "DtypeVec"), (net._inputs, "IntVec"), (net._outputs, "IntVec"),
             (net._top_ids(1), "IntVec"), (net._bottom_ids(1), "IntVec"), (caffe.layer_type_list(), "StringVec")]
    for value, name in kinds:
        assert type(value) is getattr(_caffe, name) and not isinstance(value, list), name
    assert isinstance(net, _caffe.Net) and all(isinstance(blob, _caffe.Blob) for blob in net.params["fc"])


def test_reading(net):
    blobs = net.params["fc"]
    weight, bias = blobs
    assert len(blobs) == 2 and blobs[-1] is bias and weight in blobs and blobs.index(bias) == 1
    assert type(blobs[:1]) is _caffe.BlobVec and blobs[:1] == [weight] and blobs == [weight, bias] and blobs != [bias]
    assert blobs + [1] == [weight, bias, 1] and [1] + blobs == [1, weight, bias]
    with pytest.raises(IndexError):
        blobs[2]


@pytest.mark.parametrize("index", [0, -1, slice(0, 1)])
def test_an_assignment_is_refused_with_what_to_write(net, index):
    before = [blob.data.copy() for blob in net.params["fc"]]
    for value in (np.zeros((4, 3)), net.params["fc"][1], 0):
        with pytest.raises(TypeError, match=r"Invalid assignment: .*write net.params\['fc'\]\[0\].data\[...\] = array"):
            net.params["fc"][index] = value
    for blob, values in zip(net.params["fc"], before):
        np.testing.assert_array_equal(blob.data, values)


@pytest.mark.parametrize("change", [
    lambda net: net.params["fc"].append(Blob((1,))), lambda net: net.params["fc"].add_blob(3), lambda net: net.params["fc"].pop(),
    lambda net: net.params["fc"].reverse(), lambda net: net.params["fc"][:].clear(), lambda net: net.layers.insert(0, 1),
    lambda net: net._layer_names.append("a"), lambda net: net._inputs.__setitem__(0, 1), lambda net: net._blobs.__delitem__(0),
    lambda net: net.blobs.__setitem__("x", np.zeros((2, 3))), lambda net: net.blobs.update(x=1), lambda net: net.params.__setitem__("fc", []),
], ids=range(12))
def test_no_other_way_to_change_them(net, change):
    with pytest.raises(WrongTypeError, match="Invalid assignment"):
        change(net)
    assert len(net.params["fc"]) == 2 and len(net.layers) == 2 and list(net.blobs) == ["x", "y"]


def test_dicts_of_a_net_can_be_copied(net):
    copied = copy.copy(net.blobs)
    copied["more"] = 1
    assert list(copied) == ["x", "y", "more"] and list(net.blobs) == ["x", "y"]


@pytest.mark.parametrize("name, good, bad", [
    ("IntVec", 3, 0.5), ("DtypeVec", 0.5, "a"), ("StringVec", "a", 3), ("BoolVec", True, 3), ("BlobVec", Blob((2,)), np.zeros(2)),
    ("RawBlobVec", Blob((2,)), [1]), ("LayerVec", "any", None), ("NetVec", "any", None)])
def test_vectors_of_a_program(name, good, bad):
    vector = getattr(_caffe, name)()
    vector.append(good)
    vector.extend([good])
    vector[1:] = [good, good]
    assert len(vector) == 3 and good in vector
    if bad is not None:
        for change in (lambda: vector.append(bad), lambda: vector.__setitem__(0, bad), lambda: vector.__setitem__(slice(1), [bad]),
                       lambda: type(vector)([bad])):
            with pytest.raises(TypeError, match=f"an item of {name} must be a"):
                change()
    del vector[0]
    assert len(vector) == 2


def test_add_blob_of_a_vector_of_a_program():
    blobs = _caffe.BlobVec()
    blobs.add_blob(2, 3)
    assert blobs[0].shape == (2, 3) and not blobs[0].data.any()


def test_solvers_derive_as_in_pycaffe(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET + 'layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "y" top: "loss" }')
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed" test_iter: 1 test_interval: 9')
    for name in ("SGDSolver", "NesterovSolver", "AdaGradSolver", "RMSPropSolver", "AdaDeltaSolver", "AdamSolver"):
        assert issubclass(getattr(_caffe, name), _caffe.SGDSolver) and issubclass(getattr(_caffe, name), _caffe.Solver)
    solver = caffe.AdamSolver(str(tmp_path / "solver.prototxt"))
    assert type(solver.test_nets) is _caffe.NetVec and type(solver.test_nets[0]) is caffe.Net
    with pytest.raises(WrongTypeError, match="Invalid assignment"):
        solver.test_nets[0] = solver.net


def test_vectors_are_no_keys_and_print_their_items():
    assert repr(_caffe.IntVec([1, 2])) == "[1, 2]"
    with pytest.raises(TypeError):
        hash(_caffe.IntVec([1]))
    assert pickle.loads(pickle.dumps(_caffe.IntVec([1, 2]))) == [1, 2]


def test_a_copy_is_of_its_own(net):
    vector = _caffe.IntVec([1, 2])
    copied = copy.copy(vector)
    copied.append(3)
    assert vector == [1, 2] and copied == [1, 2, 3] and type(copied) is _caffe.IntVec
    assert copy.copy(net.params["fc"]) == net.params["fc"]


def test_numpys_truth_values():
    assert _caffe.BoolVec([np.bool_(True), False]) == [True, False]


@pytest.mark.parametrize("copied", [lambda held: held.copy(), copy.copy, lambda held: held | {}, lambda held: {} | held])
def test_a_copied_dict_may_be_changed(net, copied):
    for held in net.params, net.blobs:
        made = copied(held)
        assert list(made.items()) == list(held.items())
        made["more"] = 1
        assert "more" not in held
