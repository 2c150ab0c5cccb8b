"""What carries gradients by MPI, where that needs no other rank."""

import ctypes
import subprocess
import sys
import time

import numpy as np
import pytest
from fake_mpi import Broken, Job

from minicaffe.blob import Blob, Dtype
from minicaffe.parallel.bucket import Bucket
from minicaffe.parallel.group import Group
from minicaffe.parallel.transport import MpiTransport

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


def test_what_mpi_raises_in_the_thread_ends_the_iteration(monkeypatch):
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
