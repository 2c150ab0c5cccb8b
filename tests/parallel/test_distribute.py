"""Ranks that train together: the parameters that one process gets with the batches of all of them."""

import re
import threading
import time

import numpy as np
import pytest
import ranks
from helpers import layer_text

from minicaffe.errors import ConfigError, Error
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

XAVIER = 'weight_filler { type: "xavier" }'


def product(name, bottom, count, more=""):
    return layer_text("InnerProduct", name, bottom, more=f"{more} inner_product_param {{ num_output: {count} {XAVIER} }}")


def conv(name, bottom, count, size, more=XAVIER, params=""):
    return layer_text("Convolution", name, bottom, more=f"{params} convolution_param {{ num_output: {count} kernel_size: {size} {more} }}")


NET = layer_text("HDF5Data", "data", "", "data label", 'include { phase: TRAIN } hdf5_data_param { source: "%(folder)s/list.txt" batch_size: %(batch)d }')
LAST = layer_text("SoftmaxWithLoss", "loss", "ip label")
SHARED = (conv("conv", "data", 4, 3, params='param { name: "w" } param { lr_mult: 2 }') + layer_text("ReLU", "relu", "conv", "conv")
          + conv("again", "data", 4, 3, "", 'param { name: "w" } param { lr_mult: 0 }') + layer_text("Eltwise", "sum", "conv again") + product("ip", "sum", 3))
MLP = (product("hidden", "data", 8, 2 * "param { lr_mult: 0 } ") + layer_text("Sigmoid", "sigmoid", "hidden", "hidden") + product("second", "hidden", 8)
       + layer_text("TanH", "tanh", "second", "second") + product("ip", "second", 3))
LENET = (conv("conv1", "data", 20, 3, f"pad: 1 {XAVIER}") + layer_text("Pooling", "pool1", "conv1", more="pooling_param { kernel_size: 2 stride: 2 }")
         + conv("conv2", "pool1", 64, 3, f"pad: 1 {XAVIER}") + layer_text("ReLU", "relu2", "conv2", "conv2") + conv("conv3", "conv2", 64, 1)
         + product("ip1", "conv3", 2000) + layer_text("ReLU", "relu1", "ip1", "ip1") + product("ip", "ip1", 3))
LSTM = (layer_text("Reshape", "frames", "data", more="reshape_param { shape { dim: 0 dim: 6 dim: 6 } }")
        + layer_text("Permute", "turned", "frames", more="permute_param { order: 1 order: 0 order: 2 }")
        + layer_text("DummyData", "cont", more="dummy_data_param { shape { dim: 6 dim: %(batch)d } data_filler { value: 1 } }")
        + layer_text("LSTM", "lstm", "turned cont", more=f"recurrent_param {{ num_output: 7 {XAVIER} }}")
        + layer_text("Slice", "slice", "lstm", "before end", "slice_param { axis: 0 slice_point: 5 }") + layer_text("Silence", "silence", "before", "")
        + layer_text("Reshape", "last", "end", more="reshape_param { shape { dim: -1 dim: 7 } }") + product("ip", "last", 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    random = np.random.default_rng(0)
    return ranks.write_rows(tmp_path_factory.mktemp("records"), data=random.random((56, 1, 6, 6), np.float32), label=random.integers(0, 3, 56))


def make(folder, batch, solver, net, **options):
    param = parse_text(f'base_lr: 0.1 lr_policy: "fixed" max_iter: 20 random_seed: 3 weight_decay: 0.001 {solver}', caffe_pb2.SolverParameter)[0]
    param.net_param.CopyFrom(parse_text((NET + net + LAST) % {"folder": folder, "batch": batch}, caffe_pb2.NetParameter)[0])
    return create_solver(param, **options)


def train(folder, batch, solver, net, steps, together=True, options=None, how=None):
    """The parameters after some steps, and the mean of the losses."""
    from minicaffe.common import caffe
    solver = make(folder, batch, solver, net, **(options or {}))
    if together:
        from mpi4py import MPI
        rank = MPI.COMM_WORLD.rank
        solver.net.learnable_params[0].data[...] += rank       # only rank 0's count
        solver.distribute(**(how or {}))
        assert (caffe.solver_rank, caffe.group) == (rank, solver.group)
    solver.step(steps)
    return [*(blob.data.copy() for blob in solver.net.learnable_params), solver.smoothed_loss]


def assert_same(together, alone, rtol=1e-5, atol=5e-6):
    *alone, loss = alone
    for *params, mean in together:
        for ours, theirs in zip(params, alone, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
        assert mean == pytest.approx(loss, rel=rtol)
        assert mean == together[0][-1]
        for ours, first in zip(params, together[0]):
            np.testing.assert_array_equal(ours, first)


@pytest.mark.parametrize("solver", ['type: "SGD" momentum: 0.9', 'type: "Nesterov" momentum: 0.9', 'type: "AdaGrad"', 'type: "RMSProp" delta: 1e-2',
                                    'type: "AdaDelta" momentum: 0.95 delta: 1e-6', 'type: "Adam" momentum: 0.9',
                                    'type: "SGD" iter_size: 2', 'type: "SGD" clip_gradients: 0.5'])
def test_ranks_train_like_one_process(folder, solver, group_size):
    alone = train(folder, 4 * group_size, solver, SHARED, 20, together=False)
    assert_same(ranks.run(group_size, __file__, "train", folder, 4, solver, SHARED, 20), alone)


def each(folder, batch, together):
    """Results of several nets, by plans and with gradients that are sent at all times, one after the other in the same processes."""
    return [train(folder, batch, 'type: "SGD" momentum: 0.9 iter_size: 2', net, 8, together, {"plan": plan}, {"overlap": overlap})
            for net in (MLP, LENET, LSTM) for plan in (None, "memory") for overlap in ((True, False) if together else (None,))]


@pytest.mark.slow(6)
def test_nets_with_early_and_late_exchange(folder):
    alone = [result for result in each(folder, 12, False) for _ in range(2)]
    for result, *together in zip(alone, *ranks.run(3, __file__, "each", folder, 4, True), strict=True):
        assert_same(together, result)


def round_numbers(folder):
    """Parameters after gradients that were sent in bf16: how far from the others at most, and the loss."""
    exact = train(folder, 4, 'type: "SGD"', LENET, 5)
    rounded = train(folder, 4, 'type: "SGD"', LENET, 5, how={"wire": "bf16"})
    return [max(float(abs(a - b).max()) for a, b in zip(exact[:-1], rounded[:-1])), rounded[-1]]


def test_bf16_exchange_only_rounds(folder):
    first, second = ranks.run(2, __file__, "round_numbers", folder)
    assert first == second and 0 < first[0] < 2e-3


def frozen(folder):
    solver = make(folder, 4, 'type: "SGD"', MLP)
    solver.distribute()
    solver.step(2)
    return [bucket.which for bucket in solver.exchange.buckets]


def test_parameters_without_gradients_are_kept(folder):
    assert ranks.run(2, __file__, "frozen", folder) == 2 * [[[4, 5, 2, 3]]]


def wanted(folder):
    """What all ranks do after each iteration when one of them wants something."""
    solver, actions = make(folder, 4, 'type: "SGD"', MLP), {(1, 2): "snapshot", (0, 4): "stop"}
    solver.distribute()
    solver.action = lambda: actions.get((solver.group.rank, solver.iter), "none")
    done = []
    solver.snapshot = lambda: done.append(solver.iter)
    solver.step(10)
    return [done, solver.iter]


def test_ranks_obey_one_action(folder):
    assert ranks.run(2, __file__, "wanted", folder) == 2 * [[[3], 5]]


def traced(folder):
    """The ways of the gradients in the record of an iteration: as events, in a line, and in Chrome's format."""
    from minicaffe.addons import trace
    from minicaffe.addons.trace import perfetto, table
    solver = make(folder, 4, 'type: "SGD"', LENET)
    solver.distribute()
    solver.step(1)
    with trace.record(solver) as made:
        solver.step(1)
    ways = [event for event in made.events if event.kind == "travel"]
    rows = [row for row in perfetto.events(made) if row.get("cat") == "travel"]
    return [[[event.name, event.nbytes, event.took > 0] for event in ways], table.gradient_transfers(made), [row["ph"] for row in rows]]


def test_trace_of_exchange(folder):
    for ways, line, rows in ranks.run(2, __file__, "traced", folder):
        assert ways[0] == ["ip1[0] diff", 4 * 2000 * 576, True] and len(ways) == 2 and ways[1][0].count(" diff") == 9
        assert re.fullmatch(r"gradients sent between processes: 2, 4.5 MiB, [0-9.]+ ms, [0-9.]+ of them while layers ran backward", *line)
        assert sorted(rows) == ["b", "b", "e", "e"]


def left(folder):
    """What is left when a solver is gone while its thread sends a heartbeat, and whether a second one can join before."""
    from minicaffe.common import caffe
    from minicaffe.parallel.heartbeat import Heartbeat
    sends, send = threading.Event(), Heartbeat._send

    def send_slowly(*arguments):
        sends.set()
        time.sleep(0.3)
        send(*arguments)

    Heartbeat._send = send_slowly
    solver = make(folder, 4, 'type: "SGD"', MLP)
    solver.distribute()
    try:
        make(folder, 4, 'type: "SGD"', MLP).distribute()
    except ConfigError as error:
        refused = str(error)
    during = caffe.solver_count
    sends.clear()
    assert sends.wait(30)
    del solver
    return [refused, during, caffe.solver_count, caffe.group]


def test_one_solver_per_process(folder):
    first, second = ranks.run(2, __file__, "left", folder)
    assert first == second and first[1:] == [2, 1, None]
    assert first[0] == "a solver of this process trains together with others already, and only one can; delete it first"


def alike(solver):
    """Whether all ranks have the same bits in their parameters."""
    everyone = solver.group.gather([blob.data.tobytes() for blob in solver.net.learnable_params])
    return all(theirs == everyone[0] for theirs in everyone)


def corners(folder):
    """Trainings in which ranks could part, or wait for each other."""
    from mpi4py import MPI

    from minicaffe.common import caffe
    from minicaffe.parallel.group import Group
    from minicaffe.parallel.transport import BlockingMpiTransport
    rank, found = MPI.COMM_WORLD.rank, {}

    forced = make(folder, 4, 'type: "SGD" clip_gradients: 0.05', 'force_backward: true ' + MLP)
    forced.distribute()
    forced.step(3)
    found["clip_gradients with gradients of frozen layers"] = alike(forced)
    del forced

    display = make(folder, 4, f'type: "SGD" snapshot_after_train: false display: {2 if rank else 0} debug_info: true', MLP)
    display.distribute()
    display.solve()
    found["display on one rank"] = alike(display) and display.iter == 20
    del display

    refused = make(folder, 4, 'type: "SGD"', MLP)
    refused.param.base_lr = 0.1 + rank
    with pytest.raises(ConfigError, match="base_lr of the solver differs"):
        refused.distribute()
    found["alone after it was refused"] = refused.group.size == 1 and caffe.solver_count == 1
    refused.step(1)
    refused.param.base_lr = 0.1
    refused.distribute()
    refused.step(1)
    found["together after it was refused"] = alike(refused)

    refused.net.forward_backward()
    with pytest.raises(Error, match=rf"apply_update\(\) on rank {rank} of 2 .* needs the gradients of all ranks, .* call gradients"):
        refused.apply_update()
    refused.gradients()
    refused.apply_update()
    found["a loop of one's own"] = alike(refused) and refused.iter == 3

    def fails(layer):
        raise RuntimeError("in the middle")
    refused.net.add_hook(2, fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        refused.step(1)
    refused.net.remove_hook(2, fails)
    with pytest.raises(Error, match="an iteration ended in the middle, while its gradients were being sent"):
        refused.step(1)
    del refused

    group = Group()
    for _ in range(33):     # mpi4py has room for 32 operations
        BlockingMpiTransport(group)
    own = make(folder, 4, 'type: "SGD" momentum: 0.9', SHARED)
    own.distribute(MPI.COMM_WORLD.Split(rank, 0))
    own.step(2 + rank)
    found["two groups in one job"] = own.group.size == 1 and own.iter == 2 + rank
    return found


def test_ranks_stay_together_without_waiting(folder):
    first, second = ranks.run(2, __file__, "corners", folder)
    assert first == second and all(first.values()), (first, second)


def test_what_cannot_be(folder):
    solver = make(folder, 4, 'type: "SGD"', MLP)
    with pytest.raises(ConfigError, match="wire: must be one of float32, bf16, got 'int8'"):
        solver.distribute(wire="int8")
