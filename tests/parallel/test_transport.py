"""What carries gradients by MPI and by NCCL, without other processes: ranks are threads (tests/fake_mpi.py)."""

import ctypes
import gc
import subprocess
import sys
import threading
import time
import types
from collections import deque

import numpy as np
import pytest
from fake_mpi import Broken, Job

from minicaffe.blob import Blob, Dtype
from minicaffe.errors import DependencyError
from minicaffe.memory import Layout
from minicaffe.parallel import exchange as exchanges
from minicaffe.parallel import nccl
from minicaffe.parallel.bucket import Bucket
from minicaffe.parallel.exchange import Exchange
from minicaffe.parallel.group import Group
from minicaffe.parallel.nccl import NcclTransport
from minicaffe.parallel.transport import BlockingMpiTransport, MpiTransport

# Page faults of a block as large as a bucket that is taken, written and freed, after the first time.
PROGRAM = """
import ctypes, resource, sys
from minicaffe.parallel.transport import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes, libc.memset.argtypes = ctypes.c_void_p, [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
faults = []
for _ in range(10):
    blocks = [libc.malloc(4 << 20) for _ in range(8)]
    for block in blocks:
        libc.memset(block, 1, 4 << 20)
    for block in blocks:
        libc.free(block)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


def faults(*words):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_freed_memory_is_kept():
    """So that each all-reduce of MPICH has the pages that the one before had."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("this C library has no mallopt")
    assert faults("keep") * 10 < faults()


@pytest.mark.parametrize(("dtype", "bf16", "nbytes"), [(Dtype.FLOAT, True, 2), (Dtype.FLOAT, False, 4), (Dtype.DOUBLE, True, 8)])
@pytest.mark.parametrize("count", [1, 3])
def test_only_gradients_of_float32_are_rounded(dtype, bf16, nbytes, count):
    blobs = [Blob((5,), dtype, f"p{i}") for i in range(count)]
    values = [np.arange(1, 6) / (3 + i) for i in range(count)]
    for blob, one in zip(blobs, values):
        blob.diff[...] = one
    bucket = Bucket(list(range(count)), blobs, [None] * count, bf16)
    assert (bucket.bf16, bucket.count, bucket.nbytes) == (nbytes == 2, 5 * count, 5 * count * nbytes)
    bucket.pack()
    assert len(bucket.array) == bucket.nbytes
    bucket.unpack()
    for blob, one in zip(blobs, values):
        np.testing.assert_allclose(blob.diff, one, rtol={2: 2**-8, 4: 2**-23, 8: 0}[nbytes])


def test_mpi_error_in_thread_ends_iteration(monkeypatch):
    """MPI reports an error once; afterwards the request is done, and its buffer holds anything."""
    job = Job(1)
    job.use(monkeypatch)
    transport, raised = MpiTransport(Group()), []

    class Request:
        def Test(self):
            if not raised:
                raised.append(None)
                raise Broken("the network is gone")
            return True
    monkeypatch.setattr(transport.comm, "Iallreduce", lambda *_: Request())
    blob = Blob([3])
    transport.start(Bucket([0], [blob], [None]))
    while not raised:
        time.sleep(1e-3)
    for call in transport.poll, transport.wait:
        with pytest.raises(Broken, match="the network is gone"):
            call()


@pytest.mark.parametrize("mode, bf16, simulated, asked, library, found", [
    ("cpu", True, True, False, "there", ("nets compute on the CPU", None)),
    ("gpu", True, True, False, "there", ("gradients are sent in bf16, which only MPI does here", None)),
    ("gpu", False, True, False, "there", ("NCCL finds no simulated device", None)),
    ("gpu", False, True, True, "there", (None, "0000:01:00.0")),
    ("gpu", False, False, False, "there", (None, "0000:01:00.0")),
    ("gpu", False, False, False, "missing", ("nccl4py is not installed", None))])
def test_why_a_process_cannot_use_nccl(monkeypatch, mode, bf16, simulated, asked, library, found):

    def load():
        if library == "missing":
            raise DependencyError("nccl4py is not installed")
    monkeypatch.setattr(nccl, "caffe", types.SimpleNamespace(mode=mode))
    monkeypatch.setattr(nccl, "sim", types.SimpleNamespace(selected=lambda: simulated))
    monkeypatch.setattr(nccl, "cuda", types.SimpleNamespace(current=lambda: types.SimpleNamespace(bus_id="0000:01:00.0")))
    monkeypatch.setattr(nccl, "library", load)
    assert nccl._own_unusable_reason(asked, bf16) == found


def of_three(reasons, hosts="aab"):
    return types.SimpleNamespace(gather=lambda own: reasons, hosts=list(hosts), name=lambda rank: f"rank {rank} of 3 ({hosts[rank]})")


@pytest.mark.parametrize("reasons, words", [
    ([(None, "0"), (None, "1"), (None, "0")], None),
    ([(None, "0"), ("no", None), ("never", None)], "no (rank 1 of 3 (a))"),
    ([(None, "0"), (None, "0"), (None, "0")], "rank 0 of 3 (a) and rank 1 of 3 (a) compute on the same GPU, 0, and NCCL needs one for each")])
def test_one_reason_for_all_ranks(monkeypatch, reasons, words):
    """The first rank that has one; GPUs of two machines may have one number."""
    monkeypatch.setattr(nccl, "_own_unusable_reason", lambda asked, bf16: None)
    assert nccl.unusable_reason(of_three(reasons), False, False) == words


@pytest.mark.parametrize("recording, arrived, polled", [(False, True, None), (True, False, None), (True, True, "first")])
def test_buckets_returned_early_to_trace(recording, arrived, polled):
    """An update that is queued during backward would delay it on the computing stream; the host waits for a sum only to measure it."""
    done = []

    class Event:
        def __init__(self, name):
            self.name = name

        def done(self):
            return arrived

        def synchronize(self):
            done.append(f"the host waits for {self.name}")

    transport = NcclTransport.__new__(NcclTransport)
    device = types.SimpleNamespace(recording=recording)
    transport.device, transport.computing = device, types.SimpleNamespace(wait=lambda event: done.append(f"the stream waits for {event.name}"))
    transport.in_flight = deque([(name, Event(name)) for name in ("first", "second")])
    assert transport.poll() == polled and done == ["the host waits for first", "the stream waits for first"] * (polled is not None)
    done.clear()
    name = "second" if polled else "first"
    assert transport.wait() == name
    assert done == [f"the host waits for {name}"] * recording + [f"the stream waits for {name}"]
    transport.in_flight.clear()
    assert transport.poll() is None


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nccl.core", None)
    with pytest.raises(DependencyError, match=r'nccl4py is not installed, .*pip install "minicaffe\[nccl\]"'):
        nccl.library()

    def fails(code):
        raise RuntimeError('Failure finding "libnccl.so.2":\n none')
    monkeypatch.setitem(sys.modules, "nccl", types.ModuleType("nccl"))
    monkeypatch.setitem(sys.modules, "nccl.core", types.SimpleNamespace(get_error_string=fails))
    with pytest.raises(DependencyError, match=r'nccl4py cannot be used \(Failure finding "libnccl.so.2": none\), '):
        nccl.library()


def test_polling_thread_yields_process(monkeypatch):
    """Of a transport that is deleted it ends, and at the end of the program it is left behind."""
    Job(1).use(monkeypatch)
    before = set(threading.enumerate())
    transport = MpiTransport(Group())
    thread, = set(threading.enumerate()) - before
    assert (thread.name, thread.daemon) == ("gradients", True)
    del transport
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


class Reversed(Layout):
    """The floats of an array from the last to the first, after two zeros."""

    def __init__(self, count):
        super().__init__(4 * (count + 2), 4 * count, "reversed", dims=(count,))
        self.count = count

    def __eq__(self, other):
        return isinstance(other, Reversed) and self.count == other.count

    def __hash__(self):
        return self.count

    def to_plain(self, plain, private, stream=0):
        floats(plain, self.count)[:] = floats(private, self.count + 2)[:1:-1]

    def from_plain(self, private, plain, stream=0):
        floats(private, self.count + 2)[:] = [0, 0, *floats(plain, self.count)[::-1]]


def floats(address, count):
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("alone", [0, 1 << 18], ids=["each alone", "together"])
@pytest.mark.parametrize("carrier", [BlockingMpiTransport, MpiTransport])
@pytest.mark.parametrize("kept_from", [0, 1, 2])
def test_a_view_shows_each_sum(monkeypatch, bf16, alone, carrier, kept_from):
    """Views of gradients that a program keeps, taken before the first iteration and after it, when all have agreed on the layouts."""
    monkeypatch.setattr(exchanges, "UNBUCKETED_MIN_BYTES", alone)
    job, counts = Job(3), (5, 40, 1)
    job.use(monkeypatch)
    dice = np.random.default_rng(1)
    given = dice.integers(-20, 21, (4, 3, sum(counts))).astype(np.float32)     # iteration, rank: small whole numbers, exact in bf16
    ends = np.cumsum(counts)[:-1]

    def run(rank):
        group = Group(job.comm(rank))
        params, layouts = [Blob((count,)) for count in counts], [Reversed(count) for count in counts]
        exchange, views = Exchange(group, params, [True] * len(params), carrier(group), bf16), []
        for iteration, gradients in enumerate(given):
            if iteration == kept_from:
                views = [blob.diff for blob in params]
            exchange.begin()
            exchange.start_loss_allgather(0.0, "none")
            for i, (blob, layout, gradient) in enumerate(zip(params, layouts, np.split(gradients[rank], ends))):
                block = blob.diff_memory.overwrite_private_data(layout)     # as a backward in that layout
                np.frombuffer(block, np.float32)[:] = [0, 0, *gradient[::-1]]
                blob.diff_memory.publish_private()
                del block
                exchange.submit([i], None, i == len(params) - 1)
            exchange.finish_loss_allgather()
            sums = np.split(gradients.sum(0), ends)
            for view, wanted in zip(views, sums):
                np.testing.assert_array_equal(view, wanted, err_msg=f"view in iteration {iteration}")
            for blob, wanted in zip(params, sums):
                np.testing.assert_array_equal(blob.diff if views else blob.cpu_diff, wanted, err_msg=f"iteration {iteration}")
        return [bucket.layouts for bucket in exchange.buckets]

    for layouts in job.together(run):
        assert all((layout is None) == (kept_from == 0) for of_bucket in layouts for layout in of_bucket)
    job.end("over")
