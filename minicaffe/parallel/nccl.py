"""NCCL: gradients of processes with a GPU each are added up on the GPUs, by nccl4py (Caffe parallel.cpp).

    computing stream: backward -- ready --> NCCL's stream: all-reduce -- arrived --> computing stream: update

The sums replace the gradients. The host does not wait: it queues all work on the two streams, or records it in a CUDA graph
(solver/step.py).
"""

import contextlib
import itertools
from collections import deque

from minicaffe import cuda, sim
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, DependencyError, DeviceError
from minicaffe.memory.synced import device_lock


def library():
    """Return the module ``nccl.core``, with NCCL itself loaded; the GPU is not touched.

    Raises DependencyError, which says what to install, if nccl4py or NCCL is missing.
    """
    try:
        import nccl.core as nccl
        nccl.get_error_string(0)    # the first call loads libnccl.so.2
    except (ImportError, RuntimeError) as cause:    # RuntimeError: cuda-pathfinder's DynamicLibNotFoundError
        missing = isinstance(cause, ModuleNotFoundError)
        why = "is not installed" if missing else f"cannot be used ({' '.join(str(cause).split())[:200]})"
        raise DependencyError(f'nccl4py {why}, which adds up gradients on GPUs: pip install "minicaffe[nccl]"') from None
    return nccl


def new_uid():
    """Return the bytes by which the ranks of one new communicator find each other; one rank makes them and sends them.

    NCCL listens in this process until all have come, so it must not end before. No GPU is touched: other processes may be
    forked afterwards. Raises DependencyError if there is no NCCL, DeviceError if it finds no network.
    """
    nccl = library()
    with _explained("a unique id"):
        return bytes(nccl.get_unique_id())


class NcclTransport:
    """Adds buckets on the GPUs, of ranks with one each; the interface is MpiTransport's (transport.py).

    `uid` is the result of `new_uid` on one of the `size` ranks; all of them make a transport at once. Raises DependencyError if
    nccl4py or NCCL is missing, ConfigError if nets compute on the CPU, DeviceError if NCCL refuses: two ranks with the same GPU,
    ranks that cannot reach each other.
    """

    name, on_device = "NCCL", True

    def __init__(self, size, rank, uid):
        self.nccl, self.device = library(), cuda.current()
        if self.device is None:
            raise ConfigError("NCCL adds up gradients on GPUs, and nets compute on the CPU: call set_mode_gpu() before, on a "
                              "machine with a GPU, or train on CPUs by mpiexec -n 4 minicaffe train")
        self.computing, self.stream = cuda.computing(self.device), cuda.Stream(self.device)
        self.ready = cuda.Event(self.device)    # creating it makes the GPU that of this thread, and so NCCL's
        with _explained(f"rank {rank} of {size}"):
            self.comm = self.nccl.Communicator.init(size, rank, self.nccl.UniqueId.from_bytes(uid))
        self.in_flight = deque()        # (bucket, Event on NCCL's stream after its sum), in the order of `start`

    def sum(self, arrays):
        """Start to replace DeviceArrays, contiguous and of float32 or float64, by their sums over all ranks, in one call of NCCL.

        Return an Event; a stream that reads the arrays must wait for it.
        """
        with device_lock:
            self.ready.record(self.computing)
            self.stream.wait(self.ready)
            with _explained("all-reduce"), self.nccl.group():
                for array in arrays:
                    self.comm.allreduce(array, array, self.nccl.SUM, stream=self.stream.address)
            arrived = cuda.Event(self.device)
            arrived.record(self.stream)
        return arrived

    def start(self, bucket):
        """Start the all-reduce of a bucket."""
        self.in_flight.append((bucket, self.sum([blob.mutable_gpu_diff for blob in bucket.blobs])))

    def poll(self):
        """Return the first bucket if it has arrived and a trace records the time, otherwise None.

        Without a trace only `wait` returns buckets: an update that is queued now would delay backward on the computing stream.
        """
        return self.wait() if self.device.recording and self.in_flight and self.in_flight[0][1].done() else None

    def wait(self):
        """Return the first bucket; the computing stream waits for its sum, and to measure the time for a trace the host, too."""
        bucket, arrived = self.in_flight.popleft()
        if self.device.recording:
            arrived.synchronize()
        self.computing.wait(arrived)
        return bucket


def unusable_reason(group, asked, bf16):
    """Return why NCCL cannot carry the gradients of a group, in `bf16` or not, the same on all ranks; None if it can.

    Unless the user `asked` for NCCL, it is not tried on the simulated device, which it does not support.
    """
    everyone = group.gather(_own_unusable_reason(asked, bf16))
    for rank, (reason, _) in enumerate(everyone):
        if reason is not None:
            return f"{reason} ({group.name(rank)})"
    for (first, (_, one)), (second, (_, other)) in itertools.combinations(enumerate(everyone), 2):
        if (group.hosts[first], one) == (group.hosts[second], other):
            return f"{group.name(first)} and {group.name(second)} compute on the same GPU, {one}, and NCCL needs one for each"
    return None


def _own_unusable_reason(asked, bf16):
    """Return why this process cannot use NCCL, or None; and the PCI bus id of the GPU it computes on, None with a reason."""
    if caffe.mode != "gpu":
        return "nets compute on the CPU", None
    if bf16:
        return "gradients are sent in bf16, which only MPI does here", None
    if sim.selected() and not asked:
        return "NCCL finds no simulated device", None
    try:
        library()
    except DependencyError as error:
        return str(error), None
    return None, cuda.current().bus_id


@contextlib.contextmanager
def _explained(what):
    """Turn errors of NCCL and nccl4py in the block into a DeviceError; `what` is the call, for its text."""
    try:
        yield
    except (DeviceError, ConfigError):
        raise
    except Exception as cause:      # NCCLError and NcclInvalid have no common base, and one no public name
        raise DeviceError(f"NCCL: {what}: {' '.join(str(cause).split())}; all ranks must call the same, each with a GPU of its "
                          "own; NCCL_DEBUG=INFO shows why") from cause
