"""One exchange of gradients through any sequence of iterations and errors: all ranks have the sums that NumPy gives.

The ranks are threads of this process (tests/fake_mpi.py). Gradients are small whole numbers, whose sums are exact in each type.
"""

import gc

import numpy as np
import pytest
from fake_mpi import Job
from fragile import layer, look
from helpers import net_solver
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import minicaffe
from minicaffe.blob import NUMPY_TYPES, Blob, Dtype
from minicaffe.errors import Error
from minicaffe.net.run import BEFORE_BACKWARD
from minicaffe.parallel import exchange as exchanges
from minicaffe.parallel import transport as transports
from minicaffe.parallel.exchange import ACTIONS, Exchange
from minicaffe.parallel.group import Group
from minicaffe.parallel.transport import BlockingMpiTransport, MpiTransport
from minicaffe.solver import sgd

SEEDS = st.integers(0, 1 << 16)


class Rank:
    """What a rank has: parameters, and the exchange of their gradients."""

    def __init__(self, job, number, make_params, learned, carrier, bf16):
        self.group = Group(job.comm(number))
        self.params = make_params(number)
        self.exchange = Exchange(self.group, self.params, learned, carrier(self.group), bf16)


class ExchangeMachine(RuleBasedStateMachine):
    """`data` has the parameters as they must be on all ranks; each update subtracts the sum of gradients."""

    def __init__(self, patch, gpu):
        super().__init__()
        self.patch, self.gpu = patch, gpu

    @initialize(size=st.integers(1, 4), counts=st.lists(st.sampled_from([0, 1, 3, 40, 100, 300]), min_size=1, max_size=7), learned=SEEDS,
                dtype=st.sampled_from([Dtype.FLOAT, Dtype.FLOAT, Dtype.DOUBLE]), bf16=st.booleans(),
                carrier=st.sampled_from([BlockingMpiTransport, MpiTransport]), alone=st.sampled_from([0, 200, 1 << 18]),
                together=st.sampled_from([1, 400, 1 << 20]), late=st.integers(0, 2))
    def make(self, size, counts, learned, dtype, bf16, carrier, alone, together, late):
        self.patch.setattr(exchanges, "UNBUCKETED_MIN_BYTES", alone)
        self.patch.setattr(exchanges, "BUCKET_BYTES", together)
        self.patch.setattr(transports, "CHUNK_BYTES", 64)
        minicaffe.set_num_threads(1)
        self.size, self.counts, self.dtype, self.bf16, self.carrier, self.late = size, counts, dtype, bf16, carrier, late
        self.learned = [bool(learned >> i & 3) for i in range(len(counts))]     # three of four
        self.data = [np.zeros(count, NUMPY_TYPES[dtype]) for count in counts]
        self.ranks = self.job = None
        self.restart()

    def restart(self):
        """What all ranks do when one has failed: other solvers, with the parameters of a snapshot."""
        if self.job is not None:
            self.job.end("over")
        exchanges._unfinished.clear()   # this MPI writes nothing more
        self.job = Job(self.size, late=self.late)
        self.job.use(self.patch)
        self.ranks = self.job.together(lambda rank: Rank(self.job, rank, self.params, self.learned, self.carrier, self.bf16))

    def params(self, rank):
        blobs = [Blob([count], self.dtype, f"p{i}") for i, count in enumerate(self.counts)]
        for blob, data in zip(blobs, self.data):
            blob.data[...] = data
        return blobs

    def choose(self, seed):
        """Gradients, and the order and the parts in which they are offered, of each rank."""
        dice = np.random.default_rng(seed)
        gradients = [[dice.integers(-20, 21, count).astype(NUMPY_TYPES[self.dtype]) for count in self.counts] for _ in range(self.size)]
        parts = []
        for _ in range(self.size):
            order = dice.permutation(len(self.counts)).tolist()
            ends = [0, *sorted(dice.integers(0, len(order) + 1, dice.integers(0, 5)).tolist()), len(order)]
            parts.append([order[a:b] for a, b in zip(ends, ends[1:])])
        return gradients, parts, dice.integers(0, 9, self.size).tolist(), dice.choice(len(ACTIONS), self.size, p=[.8, .1, .1]).tolist()

    def begin(self, rank, update=None):
        self.ranks[rank].exchange.begin(update)

    def offer(self, rank, gradients, part, last, offered):
        """Complete some gradients and offer them; buckets begin that are complete, and no others."""
        exchange = self.ranks[rank].exchange
        for i in part:
            self.ranks[rank].params[i].diff[...] = gradients[rank][i]
        used = exchange.submit(list(part), None, last)
        offered.update(part)
        if exchange.buckets is not None and not last:
            ready = [set(bucket.which) <= offered for bucket in exchange.buckets]
            assert exchange.started == (ready.index(False) if False in ready else len(ready))
        return used

    @rule(seed=SEEDS, along=st.booleans(), observed=st.booleans())
    def iteration(self, seed, along=True, observed=False):
        """`along`: parameters are updated as sums arrive; `observed`: all gradients are offered at once, as of a net with hooks."""
        gradients, parts, losses, actions = self.choose(seed)
        sums = [sum(gradients[rank][i] for rank in range(self.size)) for i in range(len(self.counts))]

        def run(rank):
            me, offered, used, updated = self.ranks[rank], set(), [], []

            def update(which):
                for i in which:
                    np.testing.assert_array_equal(me.params[i].diff, sums[i] if self.learned[i] else gradients[rank][i], err_msg=f"update of {i}")
                updated.extend(which)
            self.begin(rank, update if along else None)
            me.exchange.start_loss_allgather(losses[rank], ACTIONS[actions[rank]])
            if observed:
                used += self.offer(rank, gradients, range(len(self.counts)), True, offered)
            else:
                for number, part in enumerate(parts[rank]):
                    used += self.offer(rank, gradients, part, number == len(parts[rank]) - 1, offered)
            steps = me.group.steps.count
            received = me.exchange.finish_loss_allgather()
            assert received == (sum(losses) / self.size, ACTIONS[max(actions)]) and me.exchange.losses == losses
            assert me.group.steps.count == steps + 1    # progress
            assert sorted(used) == sorted(updated) == (list(range(len(self.counts))) if along else [])
            for i, blob in enumerate(me.params):
                np.testing.assert_array_equal(blob.diff, sums[i] if self.learned[i] else gradients[rank][i], err_msg=f"parameter {i}")
                if self.learned[i]:
                    blob.data[...] -= blob.diff
        self.job.together(run)
        assert not exchanges._unfinished
        for i, learned in enumerate(self.learned):
            if learned:
                self.data[i] -= sums[i]
        self.same_buckets()

    def same_buckets(self):
        """All ranks send the same buckets, which hold each gradient that is learned once."""
        everyone = [[bucket.which for bucket in rank.exchange.buckets] for rank in self.ranks]
        assert all(buckets == everyone[0] for buckets in everyone)
        assert sorted(sum(everyone[0], [])) == [i for i, count in enumerate(self.counts) if self.learned[i] and count]
        sizes = [[self.counts[i] * self.data[i].itemsize for i in which] for which in everyone[0]]
        assert all(len(size) == 1 or max(size) < exchanges.UNBUCKETED_MIN_BYTES for size in sizes)
        assert sum(sum(size) < exchanges.BUCKET_BYTES and size[0] < exchanges.UNBUCKETED_MIN_BYTES for size in sizes) <= 1
        assert all(sum(size[:-1]) < exchanges.BUCKET_BYTES for size in sizes)

    @rule(seed=SEEDS)
    def write(self, seed):
        dice = np.random.default_rng(seed)
        for i, count in enumerate(self.counts):
            self.data[i] = dice.integers(-20, 21, count).astype(NUMPY_TYPES[self.dtype])
            for rank in self.ranks:
                rank.params[i].data[...] = self.data[i]

    @precondition(lambda self: self.gpu)
    @rule(mode=st.sampled_from([minicaffe.set_mode_cpu, minicaffe.set_mode_gpu]))
    def mode(self, mode):
        mode()

    @precondition(lambda self: self.carrier is BlockingMpiTransport)
    @rule(seed=SEEDS, count=st.integers(0, 3), then=SEEDS)
    def leave_an_iteration(self, seed, count, then):
        """All ranks leave an iteration at the same place before anything is sent, as a recording that fails does."""
        gradients, parts, *_ = self.choose(seed)

        def run(rank):
            offered = set()
            self.begin(rank)
            for part in parts[0][:count]:
                self.offer(rank, gradients, part, False, offered)
        if self.ranks[0].exchange.buckets is not None:      # a first iteration is not recorded
            self.job.together(run)
        self.iteration(then)

    @rule(seed=SEEDS, victim=st.integers(0, 3), count=st.integers(0, 5), then=SEEDS)
    def fail(self, seed, victim, count, then):
        """A rank raises between two of its offers, and its exchange refuses to continue."""
        gradients, parts, losses, _ = self.choose(seed)
        victim %= self.size

        def run(rank):
            offered = set()
            self.begin(rank)
            self.ranks[rank].exchange.start_loss_allgather(losses[rank], "none")
            for number, part in enumerate(parts[rank]):
                if rank == victim and number == min(count, len(parts[rank]) - 1):
                    raise ArithmeticError
                self.offer(rank, gradients, part, number == len(parts[rank]) - 1, offered)
            self.ranks[rank].exchange.finish_loss_allgather()
        with pytest.raises(ArithmeticError):
            self.job.together(run)
        with pytest.raises(Error, match="an iteration ended in the middle, while its gradients were being sent"):
            self.ranks[victim].exchange.begin()
        self.restart()
        self.iteration(then)

    def teardown(self):
        if self.ranks is None:
            return
        self.iteration(1)
        for rank in self.ranks:
            for blob, data in zip(rank.params, self.data):
                np.testing.assert_array_equal(blob.data, data)
        self.job.end("over")
        minicaffe.set_mode_cpu()


IP = "InnerProduct"
TEXT = (layer("in", "Input", "", "x label", "input_param { shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 } }")
        + layer("a", IP, "x", "a", 'param { name: "w" } param { lr_mult: 0 } inner_product_param { num_output: 6 weight_filler { type: "xavier" } }')
        + layer("b", IP, "x", "b", 'param { name: "w" } param { lr_mult: 3 } inner_product_param { num_output: 6 }')
        + layer("sum", "Eltwise", "a b", "s")
        + layer("frozen", IP, "s", "f", 'param { lr_mult: 0 } param { lr_mult: 0 } inner_product_param { num_output: 6 weight_filler { type: "xavier" } }')
        + layer("wide", IP, "f", "d", 'inner_product_param { num_output: 40 weight_filler { type: "xavier" } }')
        + layer("out", IP, "d", "o", 'param { lr_mult: 2 } inner_product_param { num_output: 2 weight_filler { type: "xavier" } }')
        + layer("loss", "EuclideanLoss", "o label", "loss"))
RATE = 0.01


class SolversMachine(RuleBasedStateMachine):
    """Solvers of ranks with records of their own; `expected` has the parameters after updates that NumPy computes.

    A process has one group only, so that the solvers get their parts of it here.
    """

    def __init__(self, patch, gpu):
        super().__init__()
        self.patch, self.gpu = patch, gpu

    @initialize(size=st.integers(1, 4), plan=st.sampled_from(["memory", None]), carrier=st.sampled_from([BlockingMpiTransport, MpiTransport]),
                together=st.sampled_from([1, 200, 1 << 20]))
    def make(self, size, plan, carrier, together):
        self.patch.setattr(exchanges, "BUCKET_BYTES", together)
        minicaffe.set_num_threads(1)
        self.size, self.job = size, Job(size)
        self.job.use(self.patch)
        self.solvers = self.job.together(lambda rank: self.solver(plan, rank, carrier))
        self.alone = self.solver(None)
        self.expected = [blob.data.copy() for blob in self.alone.net.learnable_params]
        for solver in self.solvers:
            for blob, data in zip(solver.net.learnable_params, self.expected, strict=True):
                blob.data[...] = data

    def solver(self, plan, rank=None, carrier=None):
        solver = net_solver(TEXT, plan, base_lr=RATE, momentum=0)
        if rank is not None:
            solver.group = Group(self.job.comm(rank))
            solver.exchange = Exchange(solver.group, solver.net.learnable_params, solver.net.learned(), carrier(solver.group))
        return solver

    @rule(seed=SEEDS, then=SEEDS)
    def fail_in_the_update(self, seed, then):
        """Before it has changed anything; the gradients count as used."""
        def fails(*_):
            raise ArithmeticError
        with self.patch.context() as patch:
            patch.setattr(sgd, "update_params", fails)
            self.step(seed, True, False, True)
        self.step(then)

    @rule(seed=SEEDS, own=st.booleans(), observed=st.booleans())
    def step(self, seed, own=False, observed=False, fails=False):
        """`own`: a loop of the user's own; `observed`: hooks look at the net."""
        dice, sums = np.random.default_rng(seed), [0 * data for data in self.expected]
        records = [(dice.uniform(-1, 1, (4, 3)), dice.uniform(-1, 1, (4, 2))) for _ in range(self.size)]
        net, passes, losses = self.alone.net, self.solvers[0].param.iter_size, []
        for x, label in records:
            for blob, data in zip(net.learnable_params, self.expected):
                blob.data[...] = data
            net.clear_param_diffs()
            net.blobs["x"].data[...], net.blobs["label"].data[...] = x, label
            losses.append(net.forward_backward())
            for total, blob in zip(sums, net.learnable_params):
                total += passes * blob.diff

        def run(rank):
            solver = self.solvers[rank]
            solver.net.blobs["x"].data[...], solver.net.blobs["label"].data[...] = records[rank]
            before = [data.copy() for data in self.expected]

            def ready():
                """A callback finds the sums of gradients, and parameters that have no update yet."""
                for blob, data, total, learned in zip(solver.net.learnable_params, before, sums, solver.net.learned()):
                    np.testing.assert_allclose(blob.data, data, rtol=1e-4, atol=1e-5)
                    if learned:
                        np.testing.assert_allclose(blob.diff, total, rtol=1e-4, atol=1e-5)
            if observed:
                solver.net.add_hook(BEFORE_BACKWARD, look)
                solver.callbacks.append((lambda: None, ready))
            if own:
                solver.gradients()
                if fails:
                    with pytest.raises(ArithmeticError):
                        solver.apply_update()
                    with pytest.raises(Error, match="needs the gradients of all ranks"):
                        solver.apply_update()
                    return
                for blob, total, learned in zip(solver.net.learnable_params, sums, solver.net.learned()):
                    if learned:
                        np.testing.assert_allclose(blob.diff, total, rtol=1e-4, atol=1e-5)
                solver.apply_update()
            else:
                solver.step(1)
                assert solver.smoothed_loss == pytest.approx(sum(losses) / self.size, rel=1e-4)
            if observed:
                solver.net.remove_hook(BEFORE_BACKWARD, look)
                solver.callbacks.clear()
            with pytest.raises(Error, match="needs the gradients of all ranks"):    # which this update has used
                solver.apply_update()
        self.job.together(run)
        if fails:
            return
        for data, total, factor in zip(self.expected, sums, net.params_lr):
            data -= RATE * factor * total / (self.size * passes)
        self.compare()

    @rule(size=st.integers(1, 3))
    def iter_size(self, size):
        for solver in self.solvers:
            solver.param.iter_size = size

    def compare(self):
        for solver in self.solvers:
            for blob, data, first in zip(solver.net.learnable_params, self.expected, self.solvers[0].net.learnable_params):
                np.testing.assert_allclose(blob.data, data, rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(blob.data, first.data)

    def teardown(self):
        if hasattr(self, "expected"):
            self.step(1)
            self.step(2, own=True)
            self.job.end("over")
        minicaffe.set_mode_cpu()


@pytest.mark.parametrize("machine, examples", [(ExchangeMachine, 40), (SolversMachine, 15)])
def test_any_sequence(search, gpu, monkeypatch, machine, examples):
    search(lambda: machine(monkeypatch, gpu), examples, 8)
    exchanges._unfinished.clear()
    gc.collect()


def test_abandoned_buckets_forgotten(gpu, monkeypatch):
    """Of two buckets one had begun, or both."""
    machine = ExchangeMachine(monkeypatch, gpu)
    machine.make(2, [3, 4], 0xf, Dtype.FLOAT, False, BlockingMpiTransport, 0, 1, 0)
    machine.iteration(1)
    for seed in range(12):
        machine.leave_an_iteration(seed, seed % 3, seed + 1)
    machine.teardown()
