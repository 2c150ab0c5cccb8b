"""Forwards in phase TEST, and trainings with a plan of memory, by CUDA graphs: the same bits as by single launches."""

import gc
import itertools

import numpy as np
import pytest
from helpers import in_threads, net_solver
from test_memory_plan import CONV, LOSS, NETS, feed, layer, net_of, recycled, same

import minicaffe
from minicaffe import memory
from minicaffe.blob import Blob
from minicaffe.errors import RecycledError
from minicaffe.net.run import AFTER_FORWARD

INPUT = "force_backward: true " + layer("x", "Input", [], ["x"], "input_param { shape { dim: 2 dim: 16 dim: 8 dim: 8 } }")
CONVS = "".join(layer(f"c{i}", "Convolution", [f"c{i - 1}" if i else "x"], [f"c{i}"], CONV.format(16)) for i in range(8))
CHAIN = INPUT + CONVS
IN_PLACE = INPUT + layer("more", "Power", ["x"], ["x"], "power_param { shift: 1 }") + layer("c", "Convolution", ["x"], ["c"], CONV.format(16))
DUMMY = layer("data", "DummyData", [], ["x", "label"], """dummy_data_param { shape { dim: 4 dim: 16 dim: 16 dim: 16 } shape { dim: 4 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } }""") + CONVS + LOSS % "c7"


@pytest.fixture(autouse=True)
def on_device(device):
    if device == "cpu":
        pytest.skip("CUDA graphs are recorded on devices: pytest --device sim")


@pytest.fixture
def replays(monkeypatch):
    """The CUDA graphs that were started, one entry a replay."""
    from minicaffe.net import recorded
    started, numbers = [], itertools.count()

    class Graph(recorded.cuda.Graph):
        def __init__(self, device):
            super().__init__(device)
            self.number = next(numbers)

        def replay(self, rate, drawn):
            started.append(self.number)
            super().replay(rate, drawn)

    monkeypatch.setattr(recorded.cuda, "Graph", Graph)
    return started


def forward(net, seed=None):
    if seed is not None:
        feed(net, seed)
    return [net.forward_from_to(0, len(net.nodes) - 1), *(blob.cpu_data.copy() for blob in net.output_blobs)]


def forwards(net, count=6):
    return [part for seed in range(count) for part in forward(net, seed)]


@pytest.mark.parametrize("plan", ["memory", None])
@pytest.mark.parametrize("name", sorted(NETS))
def test_forwards(name, plan, replays):
    """Every net of the plan's tests; those with a layer that a graph cannot hold go by single launches."""
    net, other = (net_of(NETS[name], "TEST", plan=plan) for _ in range(2))
    other.use_graphs = False
    expected = forwards(other)
    assert not replays
    same(forwards(net), expected)
    assert len(replays) == (0 if net.capture_obstacle() else 4)
    assert recycled(net) == recycled(other)


def test_backward_after_a_replay(replays):
    """And an input that is changed in place by each forward, until new values are put in, as by single launches."""
    seen = []
    for graphs in (True, False):
        net, other = net_of(CHAIN, "TEST"), net_of(IN_PLACE, "TEST")
        net.use_graphs = other.use_graphs = graphs
        feed(other, 1)
        for seed in range(5):
            forward(net, seed)
            net.blobs["c7"].mutable_cpu_diff[...] = seed
            net.backward_from_to(len(net.nodes) - 1, 0)
            seen += [net.blobs["x"].cpu_diff.copy(), *forward(other), other.blobs["x"].cpu_data.copy()]
    assert len(replays) == 3 + 3
    same(seen[:20], seen[20:])


def test_what_comes_between_two_replays(replays):
    """A change of weights, other runs of the net, of its parts and of another net with its weights, a hook, a release, a shape."""
    def look(index):
        pass

    def changes(net):
        last = len(net.nodes) - 1
        yield lambda: net.params["c0"][0].data.__imul__(0.5)
        yield lambda: net.forward_from_to(2, 4)
        yield lambda: net.forward_backward()
        yield lambda: net.blobs["c3"].mutable_cpu_data.fill(7)
        yield lambda: net.add_hook(AFTER_FORWARD, look)
        yield lambda: net.remove_hook(AFTER_FORWARD, look)
        yield net.release
        yield lambda: net.blobs["x"].reshape(1, 16, 8, 8)
        yield lambda: (net.forward_from_to(0, last), net.blobs["x"].reshape(2, 16, 8, 8))
        yield lambda: net.set_plan("memory", net.output_blobs, False)
        yield lambda: minicaffe.set_mode_cpu() or net.forward_from_to(0, last) and None
        yield minicaffe.set_mode_gpu
        yield lambda: net.layers[1].blobs[0].scale_data(3)

    seen = []
    for graphs in (True, False):
        net = net_of(CHAIN, "TEST")
        net.params = {node.name: node.blobs for node in net.nodes}
        net.use_graphs = graphs
        seen.append(forwards(net))
        for change in changes(net):
            change()
            seen[-1] += forwards(net)
    same(*seen)
    assert len(replays) > 40


def test_freed_blob_after_replay(replays):
    net = net_of(CHAIN, "TEST", plan="memory")
    forwards(net)
    net.blobs["c3"].data_memory.renew()
    net.blobs["c3"].mutable_cpu_data[...] = 1       # a script that uses the blob for its own ends
    assert net.blobs["c3"].cpu_data[0, 0, 0, 0] == 1
    forward(net, 1)
    with pytest.raises(RecycledError, match="in a net with a plan the memory is reused"):
        net.blobs["c3"].cpu_data  # noqa: B018
    assert len(replays) == 5
    # A view keeps it from being recycled, so the forward is recorded again
    expected = forwards(net)
    before = len(replays)
    net.blobs["c3"].data_memory.renew()
    view = net.blobs["c3"].mutable_cpu_data
    same(forwards(net), expected)
    assert len(replays) == before + 4
    del view
    # The graph that was recorded before would write to the old block of a blob that has other memory
    net, outside = net_of(CHAIN, "TEST"), Blob(net.blobs["c7"].shape)
    replays.clear()
    expected = forwards(net)
    net.blobs["c7"].set_gpu_data(outside.mutable_gpu_data)
    same(forwards(net), expected)
    assert len(set(replays)) == 2
    np.testing.assert_array_equal(outside.cpu_data, expected[-1])
    # Pictures of changing sizes are not recorded
    replays.clear()
    for size in (8, 9, 10, 8, 9, 10):
        net.blobs["x"].reshape(1, 16, size, size)
        forward(net, size)
    assert not replays


def test_net_freed_with_last_reference():
    net, place = net_of(CHAIN, "TEST", plan="memory"), memory.CUDAPlace(0)
    forwards(net)
    gc.disable()
    try:
        used = memory.used(place)
        del net
        assert memory.used(place) < used
    finally:
        gc.enable()


def solver_of(text, plan=None, **fields):
    minicaffe.set_random_seed(3)
    return net_solver(text, plan, base_lr=0.01, **fields)


def test_a_training_with_a_plan():
    seen = []
    for plan in ("memory", None):
        for graphs in (True, False):
            solver = solver_of(DUMMY, plan)
            solver.use_graphs = graphs
            found = []
            for _ in range(5):
                solver.step(1)
                found.append(solver.smoothed_loss)
            assert (solver.training_step.recorded.graph is not None) == graphs
            assert bool(recycled(solver.net)) == (plan is not None)
            seen.append(found + [blob.cpu_data.copy() for blob in solver.net.learnable_params])
    for other in seen[1:]:
        same(seen[0], other)


TANHS = layer("data", "DummyData", [], ["t0"], """dummy_data_param { shape { dim: 4 dim: 1 dim: 896 dim: 896 }
  data_filler { type: "gaussian" std: 1 } }""") + layer("scale", "Scale", ["t0"], ["t1"]) + "".join(
    layer(f"t{i}", "TanH", [f"t{i - 1}"], [f"t{i}"]) for i in range(2, 13)) + layer("loss", "Reduction", ["t12"], ["loss"], "loss_weight: 1")


@pytest.mark.parametrize(("kind", "blobs"), [("training", 19), ("forward", 5)])
def test_memory_of_a_plan(kind, blobs):
    """A chain of 13 blobs: a training needs all and two of the 13 gradients, a forward the data and two more; the rest is left over
    between blocks."""
    place = memory.CUDAPlace(0)
    gc.collect()
    before = memory.use(place, "caching")
    try:
        if kind == "training":
            solver = solver_of(TANHS, "memory")
            solver.step(4)
            assert solver.training_step.recorded.graph is not None
        else:
            net = net_of(TANHS, "TEST", plan="memory")
            for _ in range(4):
                net.forward_from_to(0, len(net.nodes) - 1)
        assert memory.allocator_of(place).stats().peak_reserved <= blobs * 4 * 896**2 * 4 + (20 << 20)
    finally:
        memory.use(place, before)


def test_a_new_seed_between_two_replays(replays):
    """Random numbers of a training that was recorded follow the seed, as those of single launches do."""
    text, results = DUMMY.replace('layer { name: "score"', layer("drop", "Dropout", ["c7"], ["c7"]) + 'layer { name: "score"'), []
    for graphs in (False, True):
        solver = solver_of(text, momentum=0, random_seed=1)
        solver.use_graphs = graphs
        solver.step(5)
        for seed in (9, 9, 4):
            minicaffe.set_random_seed(seed)
            solver.step(4)
        results.append([solver.smoothed_loss, *(blob.cpu_data.copy() for blob in solver.net.learnable_params)])
        assert bool(replays) == graphs
    same(*results)


def test_two_graphs_share_a_pool(replays):
    """What is free when one was recorded serves the other; each gives its own results whichever ran last, also in threads."""
    nets, expected = [net_of(CHAIN, "TEST", plan=plan) for plan in ("memory", None, "memory")], []
    for factor, net in enumerate(nets):
        net.layers[1].blobs[0].scale_data(factor - 1.5)
        net.use_graphs = False
        expected.append(forwards(net))
        net.use_graphs = True
    seen = in_threads(lambda i: forwards(nets[i]), range(3))
    assert len(replays) == 3 * 4 and len(set(replays)) == 3
    for _ in range(2):
        for i, numbers in enumerate(expected):
            same(seen[i], numbers)
            seen[i] = forwards(nets[i])
    assert len(set(replays)) == 3


SEQUENCES = layer("data", "DummyData", [], ["x", "cont"], """dummy_data_param { shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } }""") + layer(
    "lstm", "LSTM", ["x", "cont"], ["h"], 'recurrent_param { num_output: 4 weight_filler { type: "uniform" } }') + layer(
    "loss", "Reduction", ["h"], ["loss"], "loss_weight: 1 reduction_param { operation: SUMSQ }")


@pytest.mark.parametrize("plan", ["memory", None])
def test_recording_after_host_write(plan):
    """A state of an LSTM that was restored just before, and a constant top that was released."""
    seen = []
    for graphs in (True, False):
        solver = solver_of(SEQUENCES, plan)
        solver.use_graphs = graphs
        lstm = solver.net.layers[1]
        solver.step(1)
        state = lstm.get_state()
        solver.step(1)
        lstm.set_state(state)
        solver.step(2)
        assert (solver.training_step.recorded.graph is not None) == graphs
        seen.append([blob.cpu_data.copy() for blob in [*solver.net.learnable_params, *solver.history]])
        solver.net.release()
        solver.net.reshape_all()
        solver.step(4)
        assert (solver.training_step.recorded.graph is not None) == graphs
        solver.net.release()
        solver.step(1)
        seen[-1] += [blob.cpu_data.copy() for blob in [*solver.net.learnable_params, *solver.history]]
    same(*seen)
