"""What carries gradients by MPI, where that needs no other rank."""

import ctypes
import subprocess
import sys

import pytest

# Page faults of a block as large as a bucket that is taken, written and freed, after the first time.
PROGRAM = """
import ctypes, resource, sys
from minicaffe.parallel.carrier import keep_freed_memory
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
