"""Allocators on a device with several streams: blocks belong to one, wait for the others, and are never shared in flight.

Allocators written in Python that serve a device and its page-locked host memory.
"""

import gc

import pytest

from minicaffe import cuda, memory
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, OutOfMemoryError
from minicaffe.memory import Allocator, BuddyAllocator, Buffer, CachingAllocator, CachingHostAllocator, CUDAPlace, PinnedPlace

KINDS = ["caching", "caching:thc", "buddy", "buddy:min_chunk_size=4KiB,max_chunk_size=1MiB"]
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
    blocks = [Buffer(allocator, nbytes) for nbytes in (5000, 5000, 5000, 1, 513, 3 << 20)]
    assert address in [block.address for block in blocks] and all(block.address % 64 == 0 for block in blocks)
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


def test_percentage_of_the_device():
    total = cuda.get_device(0).memory_info()[1]
    assert memory.allocator_of(CUDAPlace(0), "limit:25%").max_bytes == total // 4
    with pytest.raises(ConfigError, match="alignment can be chosen where the C library gives the memory; here it comes from a DriverAllocator"):
        memory.allocator_of(CUDAPlace(0), "plain:alignment=4096")


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


class Watch(Allocator):
    """Note each block."""

    def __init__(self, upstream):
        super().__init__(upstream.place, upstream)
        self.live = {}

    def alloc(self, nbytes):
        address = super().alloc(nbytes)
        self.live[address] = nbytes
        return address

    def free(self, address):
        del self.live[address]
        super().free(address)


@pytest.mark.parametrize("where", ["above", "below"])
def test_each_place_takes_one(where):
    places = CUDAPlace(0), PinnedPlace()
    watches = [Watch(memory.allocator_of(place, "caching" if where == "above" else "plain")) for place in places]
    serving = watches if where == "above" else [CachingAllocator(watches[0]), CachingHostAllocator(watches[1])]
    for allocator in serving:
        memory.use(allocator.place, allocator)
    blobs = [Blob((n, 1000)) for n in (1, 3, 700)]
    for n, blob in enumerate(blobs):
        blob.data[...] = n
        assert blob.gpu_data.address in watches[0].live or where == "below"
    for watch in watches:
        assert watch.stats().live == sum(watch.live.values()) >= 4000 * 704 and memory.stats(watch.place).reserved >= 4000 * 704
    del blob, blobs
    gc.collect()
    for place, watch in zip(places, watches):
        memory.empty_cache(place)
        assert (watch.live, watch.stats().count) == ({}, 0)


class Header(Allocator):
    """Blocks that begin in the middle of one."""

    def __init__(self, upstream):
        super().__init__(upstream.place, upstream)

    def alloc(self, nbytes):
        return super().alloc(nbytes + 64) + 64

    def free(self, address):
        super().free(address - 64)


@pytest.mark.parametrize("above", [CachingAllocator, BuddyAllocator])
def test_middle_of_a_block(above):
    """No red zones lie there then, as they begin with an allocation of the driver."""
    cut = above(Header(memory.allocator_of(CUDAPlace(0), "plain")))
    memory.use(cut.place, cut)
    blobs = [Blob((n,)) for n in (1, 100, 5000, 2_000_000)]
    for n, blob in enumerate(blobs):
        blob.data[...] = n
        str(blob.mutable_gpu_data)
        assert (blob.data == n).all()
    del blob, blobs
    gc.collect()
    cut.empty_cache()
    assert cut.stats().reserved == 0
