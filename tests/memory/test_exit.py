"""A process may end while blobs are alive: the collector then takes allocators and buffers in any order."""

import subprocess
import sys

import pytest

# The registered class keeps the script's names, and with them the blob, alive until the very last collection.
BLOB = """
from minicaffe.blob import Blob
from minicaffe.layer import Layer, register_layer

class AtExit(Layer):
    def hold(self):
        return blob

blob = Blob((10,))
blob.data[...] = 1
register_layer("AtExit", AtExit)
"""
ALLOCATOR = """
import sys
from minicaffe import memory
from minicaffe.memory import Allocator, Buffer, CachingAllocator, SystemAllocator

class Mine(Allocator):
    def alloc(self, nbytes):
        return super().alloc(nbytes)
    def free(self, address):
        print("free", sys.is_finalizing(), flush=True)
        super().free(address)

mine = Mine(memory.CPUPlace(), SystemAllocator())
early = Buffer(mine, 10)
del early
block = Buffer(mine, 10)
cached = Buffer(CachingAllocator(mine), 10)
mine.ring = [block, cached, mine]
class Holder:
    def __del__(self, blocks=[block, cached]):
        pass
holder = Holder()
holder.own = holder
"""


@pytest.mark.parametrize(("script", "printed"), [(BLOB, ""), (ALLOCATOR, "free False\n")], ids=["blob", "allocator in Python"])
def test_blobs_alive_at_exit(script, printed):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
