"""How many threads the CPU loops and matrix products use: one number for the whole process."""

import os

from minicaffe.errors import ConfigError

cdef int _threads = 1


cdef int num_threads() noexcept nogil:
    return _threads


def set_num_threads(int n):
    """Use `n` threads in CPU loops, convolutions and matrix products from now on.

    The number changes results by rounding at most.

    Raises
    ------
    ConfigError
        If `n` is less than 1.
    """
    global _threads
    if n < 1:
        raise ConfigError(f"the number of threads must be at least 1, got {n}", field="set_num_threads")
    _threads = n


def get_num_threads():
    """Return the number of threads that CPU loops use."""
    return _threads


def _default_threads():
    """The value of OMP_NUM_THREADS if it is a number, else the processors this process may run on."""
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if wish.isdigit() and int(wish) > 0:
        return int(wish)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


set_num_threads(_default_threads())
