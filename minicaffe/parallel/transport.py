"""Transports: the all-reduce of buckets of gradients over all ranks, by MPI, or by NCCL (nccl.py). The option is `carrier`."""

import ctypes
import functools
import logging
import os
import threading
import time
import weakref
from collections import deque

from minicaffe.common import caffe
from minicaffe.errors import ConfigError
from minicaffe.parallel import nccl
from minicaffe.parallel.bucket import add_bf16
from minicaffe.parallel.launch import mpi

POLL_INTERVAL = 1e-3    # seconds between polls of the MPI thread: MPI progresses only when called; a call costs backward 10 us
CHUNK_BYTES = 2 << 20   # of an all-reduce after backward: they stay in the caches; 53 MB on 2 ranks took 7.5 ms, at once 14 ms
MALLOC_OPTIONS = ((-3, 32 << 20), (-1, 1 << 30))      # mallopt: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, in bytes

log = logging.getLogger(__name__)


def make_transport(group, requested_library=None, bf16=False, overlap=None):
    """Choose the transport of a group's gradients, and return it; log which one it is, and why. All ranks must call this.

    `requested_library` is "mpi" or "nccl"; by default it is NCCL if each rank computes on its own GPU and has nccl4py. `overlap`
    is whether MPI runs while backward computes; by default not if all ranks compute on the processors of one machine: MPI would
    need the same processors, which gains nothing, and each step would wait for each bucket of all other ranks. Raises ConfigError
    if NCCL was requested and cannot be used.
    """
    reason = "it was requested" if requested_library == "mpi" else nccl.unusable_reason(group, requested_library == "nccl", bf16)
    if requested_library == "nccl" and reason is not None:
        raise ConfigError(f"NCCL cannot carry the gradients: {reason}", field="carrier")
    if reason is None:
        log.info("Gradients are sent by NCCL")
        uid = group.broadcast_from_root(nccl.new_uid() if group.rank == 0 else None)
        return nccl.NcclTransport(group.size, group.rank, uid)
    one_machine = len(set(group.gather((group.hosts[group.rank], caffe.mode)))) == 1 and caffe.mode == "cpu"
    if overlap is None:
        overlap = not one_machine
    if overlap and mpi().Query_thread() != mpi().THREAD_MULTIPLE:
        log.warning("this MPI allows calls of one thread only, so gradients are sent after backward")
        overlap = False
    log.info("Gradients are sent by MPI, %s backward: %s", "during" if overlap else "after", reason)
    return MpiTransport(group) if overlap else BlockingMpiTransport(group)


class BlockingMpiTransport:
    """Sums buckets over all ranks of a Group one after the other, inside `wait`, in chunks that stay in the caches.

    All ranks start the same buckets in the same order, that of `in_flight`.
    """

    name, on_device = "MPI", False      # on_device: nothing passes through the host, so that a CUDA graph can include it

    def __init__(self, group):
        MPI = mpi()
        self.comm = group.comm.Dup()
        self.types = {False: {4: MPI.FLOAT, 8: MPI.DOUBLE}, True: MPI.UINT16_T}     # by `Bucket.bf16`, then bytes of an element
        self.in_place, self.sum = MPI.IN_PLACE, MPI.SUM
        self.in_flight = deque()
        keep_freed_memory()

    def start(self, bucket):
        """Queue a bucket for `wait`."""
        self.in_flight.append(bucket)

    def poll(self):
        """Return None: the work is done in `wait`."""

    def wait(self):
        """Sum the first bucket over all ranks, and return it."""
        bucket = self.in_flight.popleft()
        bucket.start_ns = time.perf_counter_ns()
        bucket.pack()
        kind, operation = self._sum_of(bucket)
        for at in range(0, bucket.nbytes, CHUNK_BYTES):
            self.comm.Allreduce(self.in_place, [bucket.array[at:at + CHUNK_BYTES], kind], operation)
        bucket.unpack()
        return bucket

    def _sum_of(self, bucket):
        """Return the MPI datatype of a bucket's elements, and the MPI operation that adds them."""
        if bucket.bf16:
            return self.types[True], sum_of_bf16()
        return self.types[False][bucket.nbytes // bucket.count], self.sum


class MpiTransport(BlockingMpiTransport):
    """Sums buckets from `start` on, while backward runs; a thread polls MPI, which makes progress only when it is called.

    `in_flight` has (bucket, request).
    """

    def __init__(self, group):
        super().__init__(group)
        self.lock, self.work = threading.Lock(), threading.Event()      # of `in_flight` and MPI's requests; see `_poll_mpi`
        self.failed = None      # what MPI raised in the thread; MPI raises it once, and then reports the request as complete
        weakref.finalize(self, self.work.set)
        threading.Thread(target=_poll_mpi, args=(weakref.ref(self), self.work), name="gradients", daemon=True).start()

    def start(self, bucket):
        """Pack a bucket and start its all-reduce, which the thread advances."""
        bucket.pack()
        kind, operation = self._sum_of(bucket)
        with self.lock:
            self.in_flight.append((bucket, self.comm.Iallreduce(self.in_place, [bucket.array, bucket.count, kind], operation)))
        self.work.set()

    def poll(self):
        """Poll MPI; return the first bucket if its sum has arrived, None otherwise."""
        with self.lock:
            if self.failed is not None:
                raise self.failed
            if not self.in_flight or not self.in_flight[0][1].Test():
                return None
            bucket, _ = self.in_flight.popleft()
        bucket.unpack()
        return bucket

    def progress(self):
        """Poll MPI from the thread; return whether it must be polled again, as a request is not complete. Does not raise."""
        with self.lock:
            try:
                return self.failed is None and bool(self.in_flight) and not self.in_flight[-1][1].Test()
            except Exception as error:
                self.failed = error     # `poll` raises it in the thread of the solver
                return False

    def wait(self):
        """Poll until the sum of the first bucket has arrived; return this bucket."""
        while (bucket := self.poll()) is None:
            os.sched_yield()
        return bucket


@functools.cache
def keep_freed_memory():
    """Set malloc to keep freed memory in this process, if the C library has mallopt.

    MPICH allocates blocks for each all-reduce and frees them; half of its time was spent on getting pages from the system.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for option in MALLOC_OPTIONS:
            mallopt(*option)


@functools.cache
def sum_of_bf16():
    """Return MPI's operation ``y += x`` for bf16, one for all transports: mpi4py allows 32 in a process."""
    return mpi().Op.Create(lambda x, y, _: add_bf16(x.cast("B"), y.cast("B")), commute=True)


def _poll_mpi(transport_ref, work):
    """Poll MPI while requests are in flight, until the MpiTransport is deleted: the thread of `MpiTransport`.

    Each strong reference is deleted before a pause, so that the thread does not keep the transport alive. The event `work` is set
    when a request was started, or when the transport is deleted.
    """
    while True:
        work.wait()
        work.clear()
        while (transport := transport_ref()) is not None and transport.progress():
            del transport
            time.sleep(POLL_INTERVAL)
        if transport is None:
            return
        del transport
