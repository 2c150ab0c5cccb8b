"""Forwards in phase TEST, and trainings with a plan of memory, by CUDA graphs: the same bits as by single launches."""

import gc
import itertools

import numpy as np
import pytest
from helpers import in_threads, net_solver
from test_memory_plan import NETS, feed, net_of, recycled, same

import minicaffe
from minicaffe import memory
from minicaffe.blob import Blob
from minicaffe.errors import RecycledError
from minicaffe.net.run import AFTER_FORWARD

INPUT = 'force_backward: true layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 16 dim: 8 dim: 8 } } } '
CONV = """layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}"
  convolution_param {{ num_output: 16 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
"""
CHAIN = INPUT + "".join(CONV.format(f"c{i}", f"c{i - 1}" if i else "x") for i in range(8))
IN_PLACE = INPUT + 'layer { name: "more" type: "Power" bottom: "x" top: "x" power_param { shift: 1 } }' + CONV.format("c", "x")
DUMMY = """layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 4 dim: 16 dim: 16 dim: 16 } shape { dim: 4 } data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
""" + "".join(CONV.format(f"c{i}", f"c{i - 1}" if i else "x") for i in range(8)) + """
layer { name: "score" type: "InnerProduct" bottom: "c7" top: "score" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""


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


def test_blob_with_other_device_memory(replays):
    """The graph that was recorded before would write to the old block."""
    net = net_of(CHAIN, "TEST")
    expected, memory_of_a_script = forwards(net), Blob(net.blobs["c7"].shape)
    net.blobs["c7"].set_gpu_data(memory_of_a_script.mutable_gpu_data)
    same(forwards(net), expected)
    assert len(set(replays)) == 2
    np.testing.assert_array_equal(memory_of_a_script.cpu_data, expected[-1])


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


def test_changing_pictures_not_recorded(replays):
    net = net_of(CHAIN, "TEST")
    for size in (8, 9, 10, 8, 9, 10):
        net.blobs["x"].reshape(1, 16, size, size)
        forward(net, size)
    assert not replays


def test_net_freed_with_last_reference():
    net = net_of(CHAIN, "TEST", plan="memory")
    forwards(net)
    place = memory.CUDAPlace(0)
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


TANHS = """layer { name: "data" type: "DummyData" top: "t0" dummy_data_param { shape { dim: 4 dim: 1 dim: 896 dim: 896 }
  data_filler { type: "gaussian" std: 1 } } }
layer { name: "scale" type: "Scale" bottom: "t0" top: "t1" }
""" + "".join(f'layer {{ name: "t{i}" type: "TanH" bottom: "t{i - 1}" top: "t{i}" }}\n' for i in range(2, 13)) + """
layer { name: "loss" type: "Reduction" bottom: "t12" top: "loss" loss_weight: 1 }
"""


@pytest.mark.parametrize(("kind", "blobs"), [("training", 19), ("forward", 5)])
def test_memory_of_a_plan(kind, blobs):
    """A chain of 13 blobs: a training needs all and two of the 13 gradients, a forward the data and two more; the rest is left over
    between blocks."""
    place = memory.CUDAPlace(0)
    gc.collect()
    before = memory.use(place, "caching")
    try:
        allocator = memory.allocator_of(place)
        if kind == "training":
            solver = solver_of(TANHS, "memory")
            solver.step(4)
            assert solver.training_step.recorded.graph is not None
        else:
            net = net_of(TANHS, "TEST", plan="memory")
            for _ in range(4):
                net.forward_from_to(0, len(net.nodes) - 1)
        assert allocator.stats().peak_reserved <= blobs * 4 * 896**2 * 4 + (20 << 20)
    finally:
        memory.use(place, before)


def test_a_new_seed_between_two_replays(replays):
    """Random numbers of a training that was recorded follow the seed, as those of single launches do."""
    text = DUMMY.replace('layer { name: "score"', 'layer { name: "drop" type: "Dropout" bottom: "c7" top: "c7" } layer { name: "score"')
    results = []
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
    """What is free when one was recorded serves the other; each gives its own results whichever ran last."""
    nets = [net_of(CHAIN, "TEST", plan="memory") for _ in range(2)]
    nets[1].layers[1].blobs[0].scale_data(-1)
    expected = [forwards(net) for net in nets]
    assert len(replays) == 8 and len(set(replays)) == 2
    for _ in range(2):
        for net, numbers in zip(nets, expected, strict=True):
            same(forwards(net), numbers)
    assert len(set(replays)) == 2


def test_threads_with_nets_of_their_own(replays):
    """Each records and replays while the others compute; what they compute is theirs."""
    nets = [net_of(CHAIN, "TEST", plan=plan) for plan in ("memory", None, "memory")]
    for factor, net in enumerate(nets):
        net.layers[1].blobs[0].scale_data(factor + 1)
    expected = []
    for net in nets:
        net.use_graphs = False
        expected.append(forwards(net, 8))
        net.use_graphs = True
    seen = in_threads(lambda i: forwards(nets[i], 8), range(len(nets)))
    for i, numbers in enumerate(expected):
        same(seen[i], numbers)
    assert len(set(replays)) == 3 and len(replays) == 3 * 6


SEQUENCES = """layer { name: "data" type: "DummyData" top: "x" top: "cont" dummy_data_param {
  shape { dim: 3 dim: 2 dim: 4 } shape { dim: 3 dim: 2 } data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 4 weight_filler { type: "uniform" } } }
layer { name: "loss" type: "Reduction" bottom: "h" top: "loss" loss_weight: 1 reduction_param { operation: SUMSQ } }
"""


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
