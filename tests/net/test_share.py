"""Parameters with one name, layers with one name: whose memory, gradients and multipliers they have, and what files hold of them."""

from contextlib import nullcontext

import h5py
import numpy as np
import pytest
from helpers import layer_text, make_net

from minicaffe.addons.export.fold import fold
from minicaffe.errors import ConfigError, Error, ShapeError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.binary_writer import write_net
from minicaffe.proto.stored import LayerBlobs, StoredBlob
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

INNER = 'inner_product_param { num_output: 3 weight_filler { type: "gaussian" } bias_filler { type: "gaussian" } }'
NET = 'name: "twice" state { phase: TRAIN } ' + layer_text("DummyData", "in", "", "x t", """dummy_data_param {
  shape { dim: 4 dim: 3 } data_filler { type: "gaussian" } shape { dim: 4 dim: 3 } data_filler { type: "gaussian" } }""") + "".join(
    layer_text("InnerProduct", name, bottom, top, f'param {{ name: "w" {more} }} param {{ name: "b" }} {INNER}')
    for name, bottom, top, more in (("one", "x", "y", "OWNER"), ("two", "y", "z", "SHARER"))) + layer_text("EuclideanLoss", "loss", "z t")


def param(owner="", sharer="", text=NET):
    return parse_text(text.replace("OWNER", owner).replace("SHARER", sharer), caffe_pb2.NetParameter)[0]


def gradients(net):
    """Return the gradients of weight and bias by hand; both layers add to them."""
    x, t, w, b = (blob.cpu_data.astype(float) for blob in (net.blob_by_name("x"), net.blob_by_name("t"), *net.learnable_params))
    y = x @ w.T + b
    dz = (y @ w.T + b - t) / len(x)
    dy = dz @ w
    return dz.T @ y + dy.T @ x, (dz + dy).sum(0)


def test_gradients_of_sharers_are_added(device):
    """And the update, in a solver, is made once."""
    solver = create_solver(caffe_pb2.SolverParameter(base_lr=0.5, lr_policy="fixed", snapshot_after_train=False, net_param=param()))
    net = solver.net
    assert [blob.shape for blob in net.learnable_params] == [(3, 3), (3,)]
    before = [blob.cpu_data.copy() for blob in net.learnable_params]
    solver.step(1)
    for blob, start in zip(net.learnable_params, before, strict=True):
        np.testing.assert_allclose(start - blob.cpu_data, blob.cpu_diff, rtol=1e-4, atol=1e-5)
        blob.data[...] = start
    expected = gradients(net)
    for blob, gradient in zip(net.learnable_params, expected, strict=True):
        np.testing.assert_allclose(blob.cpu_diff, 0.5 * gradient, rtol=1e-4, atol=1e-5)
    net.clear_param_diffs()
    net.forward_backward()
    for blob, gradient in zip(net.learnable_params, gradients(net), strict=True):
        np.testing.assert_allclose(blob.cpu_diff, gradient, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(net.layers[1].blobs, net.layers[2].blobs, strict=True):
        np.testing.assert_array_equal(mine.cpu_data, theirs.cpu_data)
        np.testing.assert_array_equal(mine.cpu_diff, theirs.cpu_diff)


@pytest.mark.parametrize("owner, sharer, lr, decay", [
    ("", "", 1, 1), ("lr_mult: 3", "", 3, 1), ("", "lr_mult: 3", 3, 1), ("lr_mult: 3", "lr_mult: 3", 3, 1),
    ("decay_mult: 2", "lr_mult: 3", 3, 2), ("", "lr_mult: 0 decay_mult: 0", 0, 0),
])
def test_multipliers_that_either_gives(owner, sharer, lr, decay):
    net = Net(param(owner, sharer))
    assert (list(net.params_lr), list(net.params_weight_decay)) == ([lr, 1], [decay, 1])


THIRD = NET + layer_text("InnerProduct", "three", "z", "o", 'param { name: "w" MODE } inner_product_param { num_output: 3 bias_term: false }') + layer_text(
    "Silence", "quiet", "o", "")


def test_multipliers_that_differ():
    """What the owner leaves open the first sharer that says something decides."""
    for field in "lr_mult", "decay_mult":
        with pytest.raises(ConfigError, match=rf"layer 'two' \(InnerProduct\): param\[0\].{field}: shares 'w' with layer 'one' blobs\[0\], "
                                              "which has 1, got 2"):
            Net(param(f"{field}: 1", f"{field}: 2"))
    assert list(Net(param("", "lr_mult: 3", THIRD.replace("MODE", ""))).params_lr) == [3, 1]
    with pytest.raises(ConfigError, match=r"layer 'three' .*lr_mult: shares 'w' with layer 'one' blobs\[0\], which has 3, got 4"):
        Net(param("", "lr_mult: 3", THIRD.replace("MODE", "lr_mult: 4")))


def test_shapes_of_sharers():
    net = param()
    net.layer[2].inner_product_param.num_output = 2
    with pytest.raises(ShapeError, match=r"param\[0\]: shares 'w' with layer 'one' blobs\[0\] but has shape \[2, 3\] against \[3, 3\]; make them equal$"):
        Net(net)
    net.layer[2].param[0].share_mode = caffe_pb2.ParamSpec.PERMISSIVE
    with pytest.raises(ShapeError, match=r"param\[0\]: shares 'w' with layer 'one' blobs\[0\] but has 6 values against 9"):
        Net(net)
    text = layer_text("Input", "in", "", "a b", "input_param { shape { dim: 1 dim: 6 } shape { dim: 1 dim: 3 } }") + "".join(
        layer_text("InnerProduct", name, bottom, more=f'param {{ name: "w" {mode} }} inner_product_param {{ num_output: {outputs} bias_term: false '
                                                      'weight_filler { type: "gaussian" } }')
        for name, bottom, mode, outputs in (("one", "a", "", 2), ("two", "b", "MODE", 4)))
    with pytest.raises(ShapeError, match=", or set share_mode: PERMISSIVE$"):
        Net(param(text=text.replace("MODE", "")))
    net = Net(param(text=text.replace("MODE", "share_mode: PERMISSIVE")))
    one, two = (layer.blobs[0] for layer in net.layers[1:])
    assert (one.shape, two.shape) == ((2, 6), (4, 3)) and one.cpu_data.any()
    np.testing.assert_array_equal(one.cpu_data.ravel(), two.cpu_data.ravel())


def test_hdf5_holds_what_is_shared_once(tmp_path):
    net = Net(param())
    net.forward_backward()
    net.save_hdf5(str(tmp_path / "w.h5"), write_diff=True)
    with h5py.File(tmp_path / "w.h5") as file:
        assert {name: sorted(group) for name, group in file["data"].items() if len(group)} == {"one": ["0", "1"]}
        assert {name: sorted(group) for name, group in file["diff"].items() if len(group)} == {"one": ["0", "1"], "two": ["0", "1"]}
    other = Net(param())
    other.load_hdf5(str(tmp_path / "w.h5"))
    for mine, theirs in zip(net.layers[2].blobs, other.layers[2].blobs, strict=True):
        np.testing.assert_array_equal(mine.cpu_data, theirs.cpu_data)


IN, FIRST, SECOND = (layer_text("Input", "x", more="input_param { shape { dim: 1 dim: 3 } }"), *(
    layer_text("InnerProduct", "ip", bottom, top, 'inner_product_param { num_output: 3 weight_filler { type: "gaussian" } }') for bottom, top in ("xy", "yz")))
SAME = 'name: "same" ' + IN + FIRST + SECOND
BRANCH = 'name: "same" ' + IN + FIRST
SHARED = SAME.replace('inner_product_param', 'param { name: "w" } param { name: "b" } inner_product_param')


@pytest.mark.parametrize("text, stored, expected, warned", [
    (SAME, [1], [1, 0], 1),     # the first of the name
    (SAME, [1, 2], [1, 2], 0),      # as a file of Caffe has them: each layer its own
    (SAME.replace('name: "ip"', 'name: "first"', 1), [1, 2], [0, 2], 1),
])
def test_repeated_names_loaded(tmp_path, caplog, text, stored, expected, warned):
    net = Net(param(text=text))
    for layer in net.layers[1:]:
        layer.blobs[0].data[...] = 0
    entry = caffe_pb2.NetParameter(layer=[caffe_pb2.LayerParameter(name="ip", type="InnerProduct")] * len(stored))
    blobs = [[StoredBlob(shape, np.full(shape, i, np.float32)) for shape in ((3, 3), (3,))] for i in stored]
    with open(tmp_path / "w.caffemodel", "wb") as file:
        write_net(file, entry, [LayerBlobs("ip", "InnerProduct", one) for one in blobs])
    caplog.clear()
    net.copy_from(str(tmp_path / "w.caffemodel"))
    assert [layer.blobs[0].cpu_data[0, 0] for layer in net.layers[1:]] == [layer.blobs[1].cpu_data[0] for layer in net.layers[1:]] == expected
    assert [record.getMessage() for record in caplog.records if "of this name" in record.getMessage()] == [
        f"layer 'ip': the source has {len(stored)} of this name with parameters, the net has {3 - len(stored)}; as in Caffe the net's first one takes "
        "those of the source's last"] * warned


REPEATED = ("layer 'ip' (InnerProduct): name: an earlier layer of this name has parameters, too; BVLC Caffe and others find them in files by "
            "the name and lose one; give each a name of its own")


def test_repeated_names_refused(tmp_path, caplog):
    net = Net(param(text=SAME))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [REPEATED]
    for save in (net.save, net.save_hdf5):
        with pytest.raises(ConfigError) as caught:
            save(str(tmp_path / "w"))
        assert str(caught.value) == f"{tmp_path / 'w'}: {REPEATED}" and not (tmp_path / "w").exists()
    made = fold(net, param(text=SAME)).net
    assert all(np.array_equal(*blobs) for blobs in zip(made.learnable_params, net.learnable_params, strict=True))


LOSS = layer_text("Reduction", "loss", "z", more="loss_weight: 1")
FORMAT_HDF5 = {"snapshot_format": caffe_pb2.SolverParameter.HDF5}


@pytest.mark.parametrize("fields, refused", [
    ({"snapshot": 5}, "made"), ({"snapshot": 5, "snapshot_after_train": False}, "made"), ({}, "solved"), ({"snapshot_after_train": False}, None)])
@pytest.mark.parametrize("text, more, message", [(SAME, {}, "an earlier layer of this name has parameters"),
                                                 (SAME.replace('"ip"', '"a/b"', 1), FORMAT_HDF5, "cannot be saved as HDF5")])
def test_names_trained(tmp_path, fields, refused, text, more, message):
    """A solver that only steps saves nothing."""
    solver = caffe_pb2.SolverParameter(base_lr=0.1, lr_policy="fixed", max_iter=2, snapshot_prefix=str(tmp_path / "s"),
                                       net_param=param(text=text + LOSS), **fields, **more)
    with pytest.raises(Error, match=message) if refused == "made" else nullcontext():
        made = create_solver(solver)
        made.step(1)
        with pytest.raises(Error, match=message) if refused else nullcontext():
            made.solve()
        assert made.iter == (1 if refused else 2) and not list(tmp_path.iterdir())


def test_repeated_names_by_phase(tmp_path):
    text = IN + "".join(FIRST.replace('name: "ip"', f'name: "ip" include {{ phase: {phase} }}') for phase in ("TRAIN", "TEST")) + LOSS.replace("z", "y")
    solver = create_solver(caffe_pb2.SolverParameter(base_lr=0.1, lr_policy="fixed", test_iter=[1], test_interval=1, max_iter=2,
                                                     snapshot_prefix=str(tmp_path / "s"), net_param=param(text=text)))
    solver.solve()
    assert (tmp_path / "s_iter_2.caffemodel").exists() and solver.test_nets[0].learnable_params[0] is solver.net.learnable_params[0]


WITHOUT = layer_text("ReLU", "ip", "y", "r") + layer_text("Dropout", "ip", "r", "d")


@pytest.mark.parametrize("write_diff", [False, True])
@pytest.mark.parametrize("kind", ["caffemodel", "caffemodel.h5"])
@pytest.mark.parametrize("text", [IN + FIRST + WITHOUT, IN + WITHOUT.replace('"y"', '"x"') + FIRST.replace('"x"', '"d"'), SHARED],
                         ids=["behind", "before", "shared"])
def test_repeated_names_allowed(tmp_path, caplog, text, kind, write_diff):
    net, other, third = (Net(param(text=text)) for _ in range(3))
    net.learnable_params[0].data[...], path = np.arange(9).reshape(3, 3), str(tmp_path / f"w.{kind}")
    (net.save_hdf5 if kind.endswith("h5") else net.save)(path, write_diff)
    other.copy_from(path)
    third.share_with(net)
    for got in (other, third, fold(net, param(text=text)).net):
        np.testing.assert_array_equal(got.learnable_params[0].cpu_data, net.learnable_params[0].cpu_data)
    assert not [record for record in caplog.records if "of this name" in record.getMessage()]


OTHERS = SHARED.replace('param { name: "w" }', "param { }")      # that share the bias alone


@pytest.mark.parametrize("source, target, warned", [
    (SHARED, BRANCH, 0), (BRANCH, SHARED, 0), (SHARED + SHARED.splitlines()[2].replace("z", "v"), SHARED, 0),
    (SAME, BRANCH, 1), (BRANCH, SAME, 1), (OTHERS, BRANCH, 1), (BRANCH, OTHERS, 1)])
@pytest.mark.parametrize("shared", [False, True])
def test_branches_of_one_name(tmp_path, caplog, monkeypatch, source, target, warned, shared):
    """Their number does not count where they share all parameters."""
    net, other, path = Net(param(text=target)), Net(param(text=source)), str(tmp_path / "w.caffemodel")
    monkeypatch.setattr("minicaffe.net.weights.check_names", lambda net: None)
    other.save(path)
    caplog.clear()
    net.share_with(other) if shared else net.copy_from(path)
    assert len([record for record in caplog.records if "of this name" in record.getMessage()]) == warned
    np.testing.assert_array_equal(net.layers[1].blobs[0].cpu_data, other.layers[-1].blobs[0].cpu_data)


def test_sharing_of_repeated_names():
    net, other, from_one = (Net(param(text=text)) for text in (SAME, SAME, IN + FIRST + SECOND.replace('"ip"', '"last"')))
    net.share_with(other)
    for mine, theirs in zip(net.layers[1:], other.layers[1:], strict=True):
        assert mine.blobs[0].data_memory is theirs.blobs[0].data_memory
    net = Net(param(text=SAME))     # of one it begins at the first of the name
    second = net.layers[2].blobs[0].cpu_data.copy()
    net.share_with(from_one)
    from_one.layers[1].blobs[0].data[...] = 7
    assert (net.layers[1].blobs[0].cpu_data == 7).all()
    np.testing.assert_array_equal(net.layers[2].blobs[0].cpu_data, second)


def test_share_of_other_shape_changes_nothing():
    net, other = (make_net(IN + layer_text("InnerProduct", "a", "x", more="inner_product_param { num_output: 2 }") + layer_text(
        "InnerProduct", "b", "a", more=f"inner_product_param {{ num_output: {outputs} }}")) for outputs in (2, 4))
    with pytest.raises(ShapeError, match="cannot share parameters"):
        net.share_with(other)
    assert net.layer_dict["a"].blobs[0].data_memory is not other.layer_dict["a"].blobs[0].data_memory
