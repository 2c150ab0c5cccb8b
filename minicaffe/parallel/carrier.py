"""Carrier: brings the sums of buckets from all processes to each of them, by MPI, or by NCCL (nccl.py)."""

import ctypes
import functools
import logging
import os
import threading
import time
import weakref
from collections import deque

from minicaffe.errors import ConfigError
from minicaffe.parallel import nccl
from minicaffe.parallel.bucket import add_bf16
from minicaffe.parallel.launch import mpi

LOOK = 1e-3     # seconds between two looks of the thread, which MPI needs to make progress, and which backward pays with some 10 us
KEEP = ((-3, 32 << 20), (-1, 1 << 30))      # options of mallopt: larger blocks are the system's, so much freed memory stays

log = logging.getLogger(__name__)


def make_carrier(group, wish=None, bf16=False, overlap=True):
    """Return what carries the gradients of a group, and say it in the log.

    Parameters
    ----------
    group : Group
    wish : str, optional
        "mpi" or "nccl"; by default NCCL where each rank computes on a GPU of its own and has nccl4py.
    bf16, overlap : bool
        As of `Exchange` and `MpiCarrier`.

    Raises
    ------
    ConfigError
        If `wish` is NCCL, and that cannot be.
    """
    reason = "it was asked for" if wish == "mpi" else nccl.obstacle(group, wish == "nccl", bf16)
    if wish == "nccl" and reason is not None:
        raise ConfigError(f"NCCL cannot carry the gradients: {reason}", field="carrier")
    log.info("Gradients travel by %s", "NCCL" if reason is None else f"MPI: {reason}")
    return nccl.NcclCarrier(group) if reason is None else MpiCarrier(group, overlap)


class MpiCarrier:
    """Adds buckets of all ranks in their order, while a thread looks after them: MPI makes progress only when it is called.

    Parameters
    ----------
    group : Group
        All of its ranks start the same buckets in the same order.
    threaded : bool
        False: buckets make progress in `start` and `wait` alone.

    Attributes
    ----------
    name : str
    on_device : bool
        Whether nothing passes through the host, so that a CUDA graph can hold it.
    under_way : deque of (bucket, object)
        In the order in which they began.
    """

    name, on_device = "MPI", False

    def __init__(self, group, threaded=True):
        MPI = mpi()
        self.comm = group.comm.Dup()
        self.types = {False: {4: MPI.FLOAT, 8: MPI.DOUBLE}, True: MPI.UINT16_T}
        self.in_place, self.sum = MPI.IN_PLACE, MPI.SUM
        self.under_way = deque()        # (bucket, request)
        self.lock = threading.Lock()
        self.work = None
        keep_freed_memory()
        if threaded and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self.work = threading.Event()
            weakref.finalize(self, self.work.set)
            threading.Thread(target=_look_after, args=(weakref.ref(self), self.work), name="gradients", daemon=True).start()

    def start(self, bucket):
        """Let a bucket begin its way."""
        bucket.pack()
        bf16 = bucket.bf16
        kind = self.types[True] if bf16 else self.types[False][bucket.nbytes // bucket.count]
        with self.lock:
            request = self.comm.Iallreduce(self.in_place, [bucket.array, bucket.count, kind], sum_of_bf16() if bf16 else self.sum)
            self.under_way.append((bucket, request))
        if self.work is not None:
            self.work.set()

    def poll(self):
        """Let MPI make progress; return the first bucket if it has arrived, None otherwise."""
        with self.lock:
            if not self.under_way or not self.under_way[0][1].Test():
                return None
            bucket, _ = self.under_way.popleft()
        bucket.unpack()
        return bucket

    def progress(self):
        """Let MPI make progress; return whether something is still under way."""
        with self.lock:
            return bool(self.under_way) and not self.under_way[-1][1].Test()

    def wait(self):
        """Return the first bucket when it has arrived."""
        while (bucket := self.poll()) is None:
            os.sched_yield()
        return bucket


@functools.cache
def keep_freed_memory():
    """Let this process keep the memory that it frees, where the C library can.

    MPICH takes blocks for each all-reduce and frees them, and half of its time was to get their pages from the system.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for option in KEEP:
            mallopt(*option)


@functools.cache
def sum_of_bf16():
    """Return MPI's operation that adds bf16: one for all, as mpi4py has room for 32 in a process."""
    return mpi().Op.Create(lambda x, y, _: add_bf16(x.cast("B"), y.cast("B")), commute=True)


def _look_after(carrier, work):
    """What the thread does; it knows the carrier by a weak reference, so that dropping that ends it."""
    while True:
        work.wait()
        work.clear()
        while (there := carrier()) is not None and there.progress():
            del there
            time.sleep(LOOK)
        if there is None:
            return
        del there
