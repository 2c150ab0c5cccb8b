"""Memory that the host must not touch, as a device's: a process that tries dies."""

import contextlib
import ctypes
import mmap

PROT_NONE, PROT_READ_WRITE = 0, 3


@contextlib.contextmanager
def no_access(address, nbytes):
    """Protect the whole pages of a range of host memory while the ``with`` block runs."""
    page = mmap.PAGESIZE
    start = -(-address // page) * page
    length = (address + nbytes) // page * page - start
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    assert length > 0 and protect(start, length, PROT_NONE) == 0
    try:
        yield
    finally:
        assert protect(start, length, PROT_READ_WRITE) == 0
