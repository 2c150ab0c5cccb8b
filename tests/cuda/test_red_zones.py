"""Blocks that our allocators cut from one piece of device memory: the simulated device knows where each begins and ends."""

import numpy as np
import pytest
from processes import run_gpu
from sim_checks import checks_on

from minicaffe import memory
from minicaffe.errors import DeviceError
from minicaffe.memory import Buffer, CUDAPlace
from minicaffe.memory.registry import registry

ALLOCATORS = ["caching", "buddy", "caching+limit:1GiB", "plain"]


@pytest.fixture(params=ALLOCATORS)
def allocator(request, place):
    """An allocator of the simulated device, fresh."""
    if place != "sim":
        pytest.skip("only the simulated device watches the bounds of blocks")
    if request.param != "plain" and "deferred=1" in checks_on():
        pytest.skip("with deferred=1 the simulated device closes no blocks of a pool")
    memory.use(CUDAPlace(0), request.param)
    return registry.allocator(CUDAPlace(0))


def fill(address, nbytes):
    host = np.ones(nbytes, np.uint8)
    registry.device_side(CUDAPlace(0)).copy_to_device(address, host.ctypes.data, nbytes)


@pytest.mark.parametrize("nbytes", [1, 512, 4096, 100_000, 3 << 20])
def test_copies_end_where_their_block_ends(allocator, nbytes):
    blocks = [Buffer(allocator, nbytes) for _ in range(3)]
    for block in blocks:
        fill(block.address, nbytes)
        with pytest.raises(DeviceError, match=f"0 bytes past the end of .*{nbytes} bytes at {block.address:#x}"):
            fill(block.address, nbytes + 1)
        with pytest.raises(DeviceError, match="out of bounds|not the start|past the end|before"):
            fill(block.address - 1, 1)


def test_closed_blocks(allocator):
    block, neighbour = Buffer(allocator, 1000), Buffer(allocator, 1000)
    address = block.address
    del block
    with pytest.raises(DeviceError, match="out of bounds"):
        fill(address, 1)
    fill(neighbour.address, 1000)
    again = [Buffer(allocator, 600), Buffer(allocator, 1000)]
    for one in again:
        fill(one.address, one.nbytes)


@pytest.mark.parametrize(("name", "far", "words"), [
    ("caching", 250, ": 0 bytes past the end of a block of 1000 bytes at 0x"),
    ("buddy", 250, ": 0 bytes past the end of a block of 1000 bytes at 0x"),
    ("caching", 1030, "bytes past the end of a block of 1000 bytes at 0x"),
    ("caching", "freed - first", "bytes past the end of a block of 1000 bytes at 0x"),
    ("buddy", "freed - first", "bytes past the end of a block of 1000 bytes at 0x"),
])  # fmt: skip
def test_a_kernel_that_leaves_its_block(place, name, far, words):
    """It writes to the bytes next to a block, far beyond it, and to a block that was freed."""
    if place != "sim":
        pytest.skip("only the simulated device watches the bounds of blocks")
    text = run_gpu(f"""
    memory.use(memory.CUDAPlace(0), {name!r})
    stray = cuda.kernel('extern "C" __global__ void stray(float* p, long long far) {{ p[far] = 1; }}', "stray")
    blob, other = Blob((250,)), Blob((250,))
    first, freed = blob.gpu_data.address // 4, other.gpu_data.address // 4
    del other
    def use():
        stray((1,), (1,), (blob, {far}))
        cuda.current().synchronize()
    print(refused(errors.DeviceError, use, "CUDA_ERROR_ILLEGAL_ADDRESS", "kernel stray"))
    """, place, "deferred=0")   # with it no blocks are closed
    assert words in text, text
