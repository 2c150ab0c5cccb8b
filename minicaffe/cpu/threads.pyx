"""How many threads the CPU loops and matrix products use: one number for the whole process."""

import logging
import os

from minicaffe.errors import ConfigError

log = logging.getLogger("minicaffe")

MAX_THREADS = 1024

cdef int _threads = 1


cdef int num_threads() noexcept nogil:
    return _threads


def set_num_threads(n):
    """Use `n` threads in CPU loops, convolutions and matrix products from now on.

    The number changes results by rounding at most.

    Raises
    ------
    ConfigError
        If `n` is less than 1 or more than 1024.
    """
    global _threads
    if not 1 <= n <= MAX_THREADS:
        raise ConfigError(f"the number of threads must be 1 to {MAX_THREADS}, got {n}", field="set_num_threads")
    _threads = n


def get_num_threads():
    """Return the number of threads that CPU loops use."""
    return _threads


def _default_threads():
    """The value of OMP_NUM_THREADS if it is a number of threads, else the processors this process may run on."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wish = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list says the threads within threads, too
    if not wish:
        return count
    if wish.isdecimal() and len(wish) < 9 and 1 <= int(wish) <= MAX_THREADS:
        return int(wish)
    log.warning("OMP_NUM_THREADS must be a number, 1 to %d, got '%s'; %d threads are used", MAX_THREADS, wish[:40], count)
    return count


set_num_threads(_default_threads())
