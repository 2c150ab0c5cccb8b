"""Net.feed on any device: what it takes, what it refuses, and that it stays right in any order with assignment, reshape and threads."""

from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from helpers import in_threads, layer_text, net_solver

import minicaffe as caffe
from minicaffe.blob import Blob, Dtype
from minicaffe.device.parallel_copy import copy_array
from minicaffe.errors import ConfigError, Error, MissingNameError, ShapeError, WrongTypeError
from minicaffe.net.graph_memory import LateLoss
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2, text

NET = layer_text("Input", "in", "", "data label", "input_param { shape { dim: 4 dim: 3 } shape { dim: 4 } }") + layer_text(
    "Input", "more", more="input_param { shape { dim: 4 dim: 2 } }") + layer_text(
    "InnerProduct", "ip", "data", more='inner_product_param { num_output: 2 weight_filler { type: "gaussian" std: 1 } }') + layer_text(
    "Eltwise", "sum", "ip more") + layer_text("SoftmaxWithLoss", "loss", "sum label")
X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def definition(net=NET):
    return text.parse_text(net, caffe_pb2.NetParameter)[0]


@pytest.fixture
def net():
    return Net(definition())


def data_of(net, name="data"):
    return net.blobs[name].cpu_data.copy()


@pytest.mark.parametrize("array", [
    X, X.astype(np.float64), X.astype(np.float16), X.astype(">f4"), (X * 9).astype(np.uint8), (X * 9).astype(np.int64), X > 0,
    X.T.copy().T, np.repeat(X, 2, 1)[:, ::2], X[::-1], X.tolist(), X.astype(object), np.ma.masked_array(X), np.zeros((4, 3), "U1") + np.array("2")])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_arrays_are_converted_as_by_assignment(array, dtype):
    fed, assigned = Net(definition(), dtype=dtype), Net(definition(), dtype=dtype)
    fed.feed(data=array)
    assigned.blobs["data"].data[...] = array
    np.testing.assert_array_equal(data_of(fed), data_of(assigned))


def test_changed_values_were_copied(net):
    array, label = X.copy(), [1, 0, 1, 0]
    for _ in range(3):
        net.feed(data=array, label=label)
        array[...] += 1
        label[0] = 1 - label[0]
    np.testing.assert_array_equal(data_of(net), (X + 1) + 1)
    assert data_of(net, "label").tolist() == [1, 0, 1, 0]


def test_large_arrays():
    """Which several threads copy."""
    net = Net(definition(layer_text("Input", "data", more="input_param { shape { dim: 3 dim: 1000003 } }")))
    for seed in range(2):
        array = np.random.default_rng(seed).standard_normal((3, 1000003), np.float32)
        net.feed(data=array)
        np.testing.assert_array_equal(data_of(net), array)


@pytest.mark.parametrize("source", [slice(0, 900_000), slice(100_000, 1_000_000), slice(None, 900_000, 1)])
def test_a_copy_onto_shared_memory(source):
    memory = np.arange(1_000_000, dtype=np.float32)
    expected = memory[source].copy()
    copy_array(memory[:900_000], memory[source])
    np.testing.assert_array_equal(memory[:900_000], expected)
    with pytest.raises(ValueError, match="read-only"):
        copy_array(np.broadcast_to(memory, (2, 1_000_000)), memory)


@pytest.mark.parametrize("array, words", [
    (X[:2], r"data: must have the shape of the input, \[4, 3\], got \[2, 3\]; .*net.blobs\['data'\].reshape\(2, 3\)"),
    (X.ravel(), r"\[4, 3\], got \[12\]"), (X[None], r"reshape\(1, 4, 3\)"), (3.0, r"\[4, 3\], got \[\]"),
    ("word", "data: must be an array of numbers, got str"), ([[1], [2, 3]], "must be an array of numbers, got list"), (None, r"got \[\]"),
    (np.full((4, 3), "word"), "must be an array of numbers, got ndarray")])
def test_wrong_feed_copies_nothing(net, array, words):
    net.feed(data=X, label=[1] * 4)
    with pytest.raises((ShapeError, WrongTypeError), match=words):
        net.feed(label=[0] * 4, data=array)
    np.testing.assert_array_equal(data_of(net), X)
    assert data_of(net, "label").all()


def test_names_and_shapes_of_inputs(net, tmp_path):
    with pytest.raises(MissingNameError, match="no blob 'dota'; did you mean 'data'?"):
        net.feed(data=X, dota=X)
    with pytest.raises(ConfigError, match=r"sum: must be an input of the net.*\['data', 'label', 'more'\]"):
        net.feed(data=X, sum=np.zeros((4, 2)))
    assert not data_of(net).any()
    net.feed()
    # The old fields
    (tmp_path / "net.prototxt").write_text('input: "data" input_dim: 2 input_dim: 3 input_dim: 1 input_dim: 1 input: "self" '
                                           + "input_dim: 1 " * 4 + layer_text("ReLU", "relu", "data"))
    net = Net(read_net(tmp_path / "net.prototxt", caffe_pb2.TEST)[0])
    net.feed(data=np.full((2, 3, 1, 1), -2), self=[[[[1]]]])
    assert (data_of(net) == -2).all() and data_of(net, "self").item() == 1
    # No shape, no element
    unshaped = Net(definition(layer_text("Input", "data")))
    with pytest.raises(ShapeError, match="data: must have the shape"):
        unshaped.feed(data=3.0)
    unshaped.blobs["data"].reshape()
    unshaped.feed(data=3.0)
    assert data_of(unshaped).item() == 3
    unshaped.blobs["data"].reshape(0, 5)
    unshaped.feed(data=np.zeros((0, 5)))


def test_blobs_are_arrays(net):
    other = Blob((4, 3))
    other.data[...] = X
    net.feed(data=other)
    np.testing.assert_array_equal(data_of(net), X)
    other.scale_data(2)     # on a device the values are there alone now
    for array in other, net.blobs["data"], net.blobs["data"].data:
        net.feed(data=array)
        np.testing.assert_array_equal(data_of(net), 2 * X)
    other = Blob((4, 3), Dtype.DOUBLE)
    other.data[...] = X
    net.feed(data=other)
    np.testing.assert_array_equal(data_of(net), X)


def test_any_order_of_calls():
    """The net has the values of another one that is only assigned to: what is given last counts."""
    random, (fed, assigned) = np.random.default_rng(3), (Net(definition()) for _ in range(2))
    assigned.share_with(fed)
    for _ in range(150):
        action = random.choice(["feed", "feed", "feed", "assign", "part", "reshape", "forward", "read", "backward", "device"])
        rows = random.integers(1, 7) if action == "reshape" else fed.blobs["data"].shape[0]
        arrays = {"data": random.standard_normal((rows, 3)), "label": random.integers(0, 2, rows), "more": random.standard_normal((rows, 2))}
        names = random.permutation(list(arrays))[:random.integers(1, 4)]
        for net in fed, assigned:
            if action == "feed" and net is fed:
                net.feed(**{name: arrays[name] for name in names})
            elif action in ("feed", "assign"):
                for name in names:
                    net.blobs[name].data[...] = arrays[name]
            elif action == "part":
                net.blobs["data"].data[0] += 1
            elif action == "reshape":
                for name, array in arrays.items():
                    net.blobs[name].reshape(*array.shape)
                    net.blobs[name].data[...] = 0
                net.reshape_all()
        if action == "read":
            for name in names:
                np.testing.assert_array_equal(data_of(fed, name), data_of(assigned, name))
        elif action == "device" and caffe.cuda.current():
            assert all(fed.blobs[name].gpu_data.shape for name in names)
        elif action in ("forward", "backward"):
            losses = [net.forward_from_to(0, 4) for net in (fed, assigned)]
            assert losses[0] == losses[1]
            if action == "backward":
                for net in fed, assigned:
                    net.clear_param_diffs()
                    net.backward_from_to(4, 0)
                np.testing.assert_array_equal(fed.learnable_params[0].cpu_diff, assigned.learnable_params[0].cpu_diff)


def test_views_and_memory_after_feed(net):
    """Larger memory stays after a reshape, so the device's address does, too."""
    views = []
    for i in range(6):
        net.feed(data=X + i)
        views.append(net.blobs["data"].data)
    assert all(any((view == X + j).all() for j in range(i, 6)) for i, view in enumerate(views))
    before = net.blobs["data"].data_memory
    net.blobs["data"].reshape(2, 3)
    net.feed(data=X[:2] + 1)
    assert net.blobs["data"].data_memory is before
    np.testing.assert_array_equal(data_of(net), X[:2] + 1)


def test_the_mode_may_change(net, device):
    net.feed(data=X)
    caffe.set_mode_cpu()
    try:
        np.testing.assert_array_equal(data_of(net), X)
        net.feed(data=X + 1)
    finally:
        if device != "cpu":
            caffe.set_mode_gpu()
    np.testing.assert_array_equal(data_of(net), X + 1)
    net.forward_from_to(0, 2)
    np.testing.assert_allclose(net.blobs["ip"].cpu_data, (X + 1) @ net.learnable_params[0].cpu_data.T, rtol=1e-5, atol=1e-6)


def test_a_training(device):
    """The net of a solver, where a device replays a graph: numbers are those of assignment, to the last bit, also if the net runs again
    before the loss is read.
    """
    random, deferred = np.random.default_rng(5), False
    fed, assigned = (net_solver(NET, random_seed=1) for _ in range(2))
    assigned.listeners.append(object())      # which may read the loss after each iteration
    for i in range(12):
        arrays = {"data": random.standard_normal((4, 3)), "label": random.integers(0, 2, 4), "more": random.standard_normal((4, 2))}
        fed.net.feed(**arrays)
        for name, array in arrays.items():
            assigned.net.blobs[name].data[...] = array
        fed.step(1), assigned.step(1)
        deferred = deferred or fed._deferred_loss is not None
        for solver in (fed, assigned) if i % 2 else ():
            solver.net.feed(data=-50 * X)
            solver.net.forward_from_to(0, 4)
        if i % 3 == 0:
            assert fed.smoothed_loss == assigned.smoothed_loss
    assert fed.smoothed_loss == assigned.smoothed_loss and deferred == (device != "cpu")
    for a, b in zip(fed.net.learnable_params, assigned.net.learnable_params):
        np.testing.assert_array_equal(a.cpu_data, b.cpu_data)
    fed.net.feed(label=[0, 1, 2, 0])
    with pytest.raises(Error, match="label.* 2|2.*label"):
        fed.step(1)


def test_late_loss_of_its_run():
    """Whatever runs before it is read, of any batch; one layer's top has many values with a weight."""
    param = definition()
    param.layer[3].loss_weight[:] = [0.25]
    net = Net(param)
    for factor, batch in (1, 4), (2, 4), (3, 2):    # a smaller batch needs other copies than the one before
        for name, shape in ("data", (batch, 3)), ("more", (batch, 2)), ("label", (batch,)):
            net.blobs[name].reshape(*shape)
        net.feed(data=X[:batch] * factor, more=np.full((batch, 2), factor), label=np.arange(batch) % 2)
        expected = net.forward_from_to(0, len(net.nodes) - 1)
        late, before = LateLoss().of(net), [data_of(net, name).sum() for name in ("sum", "loss")]
        net.feed(more=np.tile([1000, 0], (batch, 1)))
        net.forward_from_to(0, len(net.nodes) - 1)
        assert all(abs(data_of(net, name).sum() - was) > 20 for name, was in zip(("sum", "loss"), before))
        assert late() == expected == late()
    # Weights of a run are in the diff of the top, which a script may share with another blob
    net = Net(definition())
    net.feed(data=X, more=np.ones((4, 2)), label=np.arange(4) % 2)
    before = net.forward_from_to(0, len(net.nodes) - 1)
    assert LateLoss().of(net)() == before != 0
    other = Blob(net.blobs["loss"].shape)
    other.diff[...] = 3
    net.blobs["loss"].share_diff(other)
    assert LateLoss().of(net)() == net.loss_of_outputs() != before


def test_feeding_thread_waits_for_lock(net):
    """And the threads that run the net in turns with it never see half of a batch."""
    with ThreadPoolExecutor(1) as thread:
        with net.lock:
            fed = thread.submit(net.feed, data=X)
            assert not wait([fed], 0.1).done and not data_of(net).any()
        fed.result()
    np.testing.assert_array_equal(data_of(net), X)

    def work(number):
        for value in range(100 * number, 100 * number + 20):
            with net.lock:
                net.feed(data=np.full((4, 3), value), more=np.full((4, 2), value))
                net.forward_from_to(0, 3)
                assert (data_of(net) == value).all() and (data_of(net, "more") == value).all()

    in_threads(work, list(range(4)))
