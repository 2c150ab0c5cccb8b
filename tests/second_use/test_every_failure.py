"""Each call of one kind fails once in an iteration, one after the other, in a single solver.

After each failure the solver is restored, and its next iteration gives the bits of one that never failed; no memory is lost. So does an
iteration that continues in spite of the failure, such as one whose CUDA graph could not be recorded. A rank
refuses to continue whose gradients were on their way: there a new solver does. ``pytest --every`` lets each call fail, without it fewer of the
late ones do.
"""

import contextlib
import gc
from types import SimpleNamespace

import numpy as np
import pytest
from fake_mpi import Broken, Job
from fragile import NEVER, FragileLayer, failing_allocator
from test_one_solver import build, make_files

import minicaffe
from minicaffe import memory
from minicaffe.common import caffe
from minicaffe.errors import DeviceError, Error, OutOfMemoryError
from minicaffe.memory import CPUPlace, CUDAPlace, PinnedPlace
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD
from minicaffe.parallel import exchange
from minicaffe.solver import sgd

CALLS = ["cuMemAlloc", "cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemsetD8Async", "cuLaunchKernel",
         "cuStreamSynchronize", "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord", "cuEventSynchronize"]
GRAPH_CALLS = ["cuGraphLaunch", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuStreamBeginCapture", "cuStreamEndCapture",
               "cuGraphGetNodes", "cuGraphInstantiateWithFlags"]


class Trial:
    """A solver, a state of it, and what the next iterations from there give.

    `ranks`: how gradients are sent to a second rank that does the same, or None; `late`, or `during` backward.
    """

    every = False   # whether each call fails

    def __init__(self, name, folder, plan="memory", steps=1, ranks=None):
        make_files(folder)
        self.name, self.folder, self.plan, self.steps, self.ranks, self.job = name, folder, plan, steps, ranks, None
        self.make()
        self.solver.step(1)
        _, self.state = self.solver.snapshot()
        self.expected = self.result()
        self.expected_again()

    def make(self):
        self.solver = build(self.name, "SGD", self.folder, self.plan)
        self.solver.param.snapshot_prefix = str(self.folder / "s")
        if self.ranks is not None:
            self.job = Job(2, mirror=True, threads=self.ranks == "during")
            self.job.use(Trial.patch)
            self.solver.distribute(overlap=self.ranks == "during")

    def result(self):
        self.solver.restore(self.state)
        self.solver.step(self.steps)
        return self.numbers()

    def numbers(self):
        return [self.solver.smoothed_loss, *(blob.cpu_data.copy() for blob in [*self.solver.net.param_table.params, *self.solver.history])]

    def expected_again(self):
        if self.ranks is not None and self.solver.exchange._pending_allgather is not None:
            self.solver.restore(self.state)
            with pytest.raises(Error, match="an iteration ended in the middle, while its gradients were being sent"):
                self.solver.step(1)
            del self.solver
            exchange._unfinished.clear()    # into which this MPI writes no more
            gc.collect()
            assert caffe.group is None
            self.make()
        self.compare(self.result(), "after a restore")

    def compare(self, found, when):
        for i, (one, wanted) in enumerate(zip(found, self.expected, strict=True)):
            np.testing.assert_array_equal(one, wanted, err_msg=f"number {i} {when}")

    def fail_each(self, fail, kinds, begin=1, most=2000):
        """Let call number `begin` fail, and later ones, until an iteration meets no failure; return the number of the last that may fail.

        ``fail(n)`` is a context in which call n from now on fails.
        """
        n = begin
        while n < most:
            self.solver.net.release()       # so that the iteration allocates
            self.solver.restore(self.state)
            with fail(n) as struck:
                observed = self.solver.net.observer_reason() is not None    # then layers run one by one, with other rounding
                try:
                    self.solver.step(self.steps)
                    self.solver.smoothed_loss  # noqa: B018  (which a GPU may still compute)
                    raised = False
                except kinds:
                    raised = True
            if not raised and not observed:
                self.compare(self.numbers(), f"of an iteration in which call {n} failed, if any")
            self.expected_again()
            if not raised and not struck():
                return n - 1
            n += 1 if Trial.every else 1 + n // 2
        raise AssertionError(f"still failing at call {n}")


def on_a_device(gpu, device):
    """Compute on a device, unless this is the run without one, which is short."""
    if not gpu:
        pytest.skip("a build without CUDA")
    if device == "cpu":
        pytest.skip("what a device does after errors: pytest --device sim, as .ci/run does")
    minicaffe.set_mode_gpu()


# A net, and how gradients are sent to a second rank.
OF_TWO_RANKS = [("lenet", "late"), ("lenet", "during"), ("sequences", "during")]
PLACES = CPUPlace(), CUDAPlace(0), PinnedPlace()
TRAININGS = pytest.mark.parametrize("name, ranks", [("pictures", None), ("sequences", None), ("lenet", None), *OF_TWO_RANKS])


@pytest.fixture(params=["cpu", "gpu"])
def mode(request, gpu, device):
    if request.param == "gpu":
        on_a_device(gpu, device)
    return request.param


@pytest.fixture(autouse=True)
def nothing_is_lost(request, gpu, monkeypatch):
    """All bytes that a test took go back with its solver."""
    Trial.every, Trial.patch = request.config.getoption("--every"), monkeypatch
    if "plain" in request.fixturenames:
        request.getfixturevalue("plain")
    gc.collect()
    before = [memory.used(place) for place in PLACES]
    yield
    exchange._unfinished.clear()
    gc.collect()
    assert [memory.used(place) for place in PLACES] == before


@pytest.mark.parametrize("plan", ["memory", None])
@TRAININGS
@pytest.mark.parametrize("place", PLACES, ids=["host", "device", "pinned"])
def test_memory(name, ranks, plan, place, gpu, device, tmp_path):
    """Blocks of the host on the CPU, of the device and page-locked ones on the GPU."""
    if place != CPUPlace():
        on_a_device(gpu, device)
    trial = Trial(name, tmp_path, plan, ranks=ranks)
    assert trial.fail_each(lambda n: failing_allocator(place, n), OutOfMemoryError) > 2


@pytest.fixture
def plain(gpu, device):
    """Every block from the driver, so that its calls are met."""
    on_a_device(gpu, device)
    minicaffe.set_mode_cpu()
    before = [memory.use(place, "plain") for place in PLACES[1:]]
    yield
    gc.collect()
    for place, allocator in zip(PLACES[1:], before):
        memory.use(place, allocator)


def driver_call(sim, call):
    @contextlib.contextmanager
    def fail(n):
        sim(f"fail={call}:{n}")
        yield lambda: sim.planned(call) == 0
        sim(f"fail={call}:{NEVER}")

    return fail


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name, ranks", [("pictures", None), ("sequences", None), ("lenet", "late")])
def test_calls_of_the_driver(name, ranks, call, sim, plain, tmp_path):
    minicaffe.set_mode_gpu()
    trial = Trial(name, tmp_path, ranks=ranks)
    trial.solver.use_graphs = False

    trial.fail_each(driver_call(sim, call), (DeviceError, OutOfMemoryError))


@pytest.mark.parametrize("call", GRAPH_CALLS)
def test_driver_calls_with_graph(call, sim, gpu, device, tmp_path):
    """In four iterations, of which the third is recorded."""
    on_a_device(gpu, device)
    trial = Trial("sequences", tmp_path, steps=4)
    assert trial.solver.training_step.recorded.graph is not None

    trial.fail_each(driver_call(sim, call), (DeviceError, OutOfMemoryError))


@pytest.mark.parametrize("plan", ["memory", None])
@pytest.mark.parametrize("name, ranks", OF_TWO_RANKS)
def test_calls_of_mpi(name, ranks, plan, mode, tmp_path):
    trial = Trial(name, tmp_path, plan, ranks=ranks)

    @contextlib.contextmanager
    def fail(n):
        job = trial.job
        job.count()
        job.fails = n
        yield lambda: job.calls >= n
        job.fails = None

    assert trial.fail_each(fail, Broken) > 4


@pytest.mark.parametrize("where", ["forward", "backward", "hook", "update", "action", "listener", "callback"])
@TRAININGS
def test_python_that_raises(where, name, ranks, mode, tmp_path):
    trial = Trial(name, tmp_path, None if where == "hook" else "memory", ranks=ranks)
    calls = []

    def count(*_):
        calls.append(None)
        if len(calls) == fails[0]:
            raise ArithmeticError(where)

    @contextlib.contextmanager
    def fail(n):
        calls.clear()
        fails[0] = n
        solver, net = trial.solver, trial.solver.net
        real = sgd.update_params
        if where in ("forward", "backward"):
            FragileLayer.fails = where if n == 1 else None
        elif where == "hook":
            for when in AFTER_FORWARD, BEFORE_BACKWARD:
                net.add_hook(when, count)
        elif where == "update":
            sgd.update_params = lambda *arguments: (count(), real(*arguments))
        elif where == "action":
            solver.action = lambda: count() or "none"
        elif where == "listener":
            solver.listeners.append(SimpleNamespace(on_iteration=count))
        else:
            solver.callbacks.append((count, count))
        try:
            yield lambda: False
        finally:
            FragileLayer.fails, sgd.update_params, solver.action = None, real, None
            solver.listeners.clear()
            solver.callbacks.clear()
            for when in (AFTER_FORWARD, BEFORE_BACKWARD) if where == "hook" else ():
                net.remove_hook(when, count)

    fails = [0]
    least = {"hook": 12, "callback": 2}.get(where, 1)
    assert trial.fail_each(fail, ArithmeticError) >= least
