"""The number of threads of CPU loops and matrix products, and the thread pool (device/pool.hpp): one of each per process."""

import contextlib
import logging
import math
import os

from minicaffe.errors import ConfigError, int_of, shown

log = logging.getLogger("minicaffe")

cdef extern from "minicaffe/device/pool.hpp" namespace "mc::cpu" nogil:
    Pool* process_pool()
    void set_dry(bint now)
    const int kMaxThreads

cdef Threads _threads


cdef Threads num_threads() noexcept nogil:
    return _threads


def set_num_threads(n):
    """Use `n` threads in CPU loops, convolutions and matrix products from now on.

    The number changes results at most by rounding. There is one pool of threads: while it is in use, a net in a second Python
    thread computes on that thread only. If other programs use the processors, fewer threads may be used. Raises ConfigError if
    `n` is less than 1 or more than 1024, WrongTypeError if it is not an int.
    """
    n = int_of(n, "n")
    if not 1 <= n <= kMaxThreads:
        raise ConfigError(f"the number of threads must be 1 to {kMaxThreads}, got {shown(n)}", field="set_num_threads")
    _threads.count = n


def get_num_threads():
    """Return the number of threads that CPU loops use."""
    return _threads.count


def dry_run():
    """Within a with block, do everything in the calling thread except arithmetic.

    Loops of the CPU, kernels of a device and primitives of oneDNN return at once. Memory is allocated and freed, engines are
    chosen, arrays change their layouts and events are reported as in a real run. Values are undefined, also those of parameters
    in an engine's layout, so the net cannot be used afterwards. Layers whose tops depend only on data and shapes do compute
    (`Node.parameter_free`), as labels and prior boxes are checked on the host.
    """
    return _with_dry(True)


def computing():
    """Within a with block, compute even inside a `dry_run`: for layers whose tops are checked on the host (net/node.pyx)."""
    return _with_dry(False)


@contextlib.contextmanager
def _with_dry(bint now):
    """Set for a with block whether the calling thread computes nothing; blocks may be nested."""
    cdef bint before = num_threads().pool.dry()
    set_dry(now)
    try:
        yield
    finally:
        set_dry(before)


def is_dry_run():
    """Return whether the calling thread is in a `dry_run`."""
    return num_threads().pool.dry() != 0


def threads_by_variable(bint warn=False):
    """Return OMP_NUM_THREADS if it is a valid number of threads, else None. `minicaffe.cli.ranks` divides processors without it."""
    # Further items of a list are for nested parallelism.
    requested = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if requested.isdecimal() and len(requested) < 9 and 1 <= int(requested) <= kMaxThreads:
        return int(requested)
    if requested and warn:
        log.warning("OMP_NUM_THREADS must be a number, 1 to %d, got '%s'; it is not used", kMaxThreads, requested[:40])


def _default_threads():
    return threads_by_variable(warn=True) or usable_processors()


def usable_processors(root="/"):
    """Return how many processors this process may use: those of its affinity mask, at most 1024, limited by the container's quota.

    The quota is read from ``sys/fs/cgroup/cpu.max`` in `root`, which only tests change.
    """
    count = min(kMaxThreads, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        with open(os.path.join(root, "sys/fs/cgroup/cpu.max")) as file:
            quota, period = map(int, file.read().split())    # the quota may be max
    except (OSError, ValueError):
        return count
    return max(1, min(count, math.ceil(quota / period))) if quota > 0 and period > 0 else count


_threads.pool = process_pool()
set_num_threads(_default_threads())
