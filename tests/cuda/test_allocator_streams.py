"""Allocators on a device with several streams: blocks belong to one, wait for the others, and are never shared in flight."""


import numpy as np
import pytest

import minicaffe
from minicaffe import cuda, memory
from minicaffe.errors import ConfigError, OutOfMemoryError
from minicaffe.memory import Buffer, CUDAPlace, PinnedPlace

KINDS = ["caching", "caching:thc", "buddy", "buddy:min_chunk_size=4KiB,max_chunk_size=1MiB"]
MIB = 1 << 20


@pytest.fixture(params=KINDS)
def allocator(request):
    return memory.allocator_of(CUDAPlace(0), request.param)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_a_stream(kind, index):
    if index >= cuda.count():
        pytest.skip(f"needs {index + 1} devices")
    allocator, line = memory.allocator_of(CUDAPlace(index), kind), cuda.Stream(cuda.get_device(index))
    block = allocator.malloc(1000, line)
    allocator.free(block)
    other = allocator.alloc(1000)
    assert other != block
    assert allocator.malloc(1000, line.address) == block
    allocator.record_stream(block, line)  # its own
    allocator.free(block)
    assert allocator.malloc(900, line) == block


def test_a_block_of_another_stream_waits(allocator):
    line = cuda.Stream(cuda.get_device(0))
    block = Buffer(allocator, 5000)
    address = block.address
    block.record_stream(line)
    del block
    line.synchronize()
    blocks = [Buffer(allocator, 5000) for _ in range(3)]
    assert address in [b.address for b in blocks]
    allocator.empty_cache()
    del blocks
    allocator.empty_cache()
    assert allocator.stats().reserved == 0


def waiting_bytes():
    return memory.allocator_of(CUDAPlace(0)).stats().waiting


@pytest.mark.parametrize("copies_on_line", [True, False])
def test_blocks_of_a_copy_wait(copies_on_line):
    """Which is another than theirs, and may not have copied yet when they are freed."""
    line = cuda.Stream(cuda.get_device(0))
    source, target = (Buffer(memory.allocator_of(CUDAPlace(0)), 1 << 16, name, None if copies_on_line else line) for name in ("source", "target"))
    memory.copy(target, source, stream=line if copies_on_line else None)
    before = waiting_bytes()
    del source, target
    assert waiting_bytes() - before >= 2 << 16


def test_block_dropped_by_a_recording():
    line = cuda.Stream(cuda.get_device(0))
    block, graph = Buffer(memory.allocator_of(CUDAPlace(0)), 1 << 16, "dropped", line), cuda.Graph(cuda.get_device(0))
    with graph:
        del block
    before = waiting_bytes()
    graph.replay(0.1, 0)
    assert waiting_bytes() == before    # the graph keeps it
    del graph
    assert waiting_bytes() - before >= 1 << 16


@pytest.mark.parametrize("kind", KINDS)
def test_a_net_trains_on_it(kind):
    """The results are those of the default allocator; red zones lie between the blocks where the device watches them."""
    def values():
        minicaffe.set_random_seed(3)
        net = minicaffe.Net("models/lenet/deploy.prototxt", minicaffe.TEST)
        net.blobs["data"].data[...] = np.linspace(0, 1, net.blobs["data"].data.size).reshape(net.blobs["data"].data.shape)
        return net.forward()["prob"].copy()

    expected = values()
    memory.use(CUDAPlace(0), kind)
    memory.use(PinnedPlace(), "buddy")
    assert (values() == expected).all()


def test_percentage_of_the_device():
    total = cuda.get_device(0).memory_info()[1]
    assert memory.allocator_of(CUDAPlace(0), "limit:25%").max_bytes == total // 4
    with pytest.raises(ConfigError, match="alignment can be chosen where the C library gives the memory; here it comes from a DriverAllocator"):
        memory.allocator_of(CUDAPlace(0), "plain:alignment=4096")


def test_blocks_are_aligned(allocator):
    blocks = [Buffer(allocator, n) for n in (1, 100, 513, 5000, 3 * MIB)]
    assert all(block.address % 64 == 0 for block in blocks)


def test_pools_below_a_red_zone():
    """Where the device watches its memory, a red zone follows each block of a pool; what does not fit with it is no pool's."""
    buddy = memory.BuddyAllocator(memory.allocator_of(CUDAPlace(0), "plain"), min_chunk_size=64, max_chunk_size=1024)
    blocks = [buddy.alloc(nbytes) for nbytes in (0, 10, 1000, 1024, 3000)]
    assert buddy.stats().reserved < 1024 * 8
    with pytest.raises(OutOfMemoryError):
        buddy.alloc(2**64 - 4000)
    for block in blocks:
        buddy.free(block)
    buddy.empty_cache()
    assert buddy.stats().reserved == buddy.stats().live == 0
