"""The caching allocator: events, names, errors, and the pool of the host. Its rules: test_heaps.py, test_random_allocators.py."""

import threading

import pytest
from doubles import FakeStreams
from heaps import make_heap

from minicaffe import memory
from minicaffe.errors import ConfigError, OutOfMemoryError, PointerError
from minicaffe.memory import Buffer, CPUPlace, CUDAPlace, SystemAllocator
from minicaffe.memory.registry import Registry

MIB = 1 << 20


def test_statistics_and_events_of_a_hit():
    cache = make_heap("caching")
    with memory.record() as events:
        first = cache.alloc(1000)
        cache.free(first)
        assert cache.alloc(100) == first
    assert {e.place for e in events} == {CUDAPlace(0)} and [(e.kind, e.nbytes) for e in events] == [
        ("segment taken", 2 * MIB), ("split", 1024), ("merge", 2 * MIB), ("cache hit", 512), ("split", 512)]
    cache.free(cache.alloc(30 * MIB))
    assert cache.stats()._asdict() == {
        "live": 100, "peak": 30 * MIB + 100, "reserved": 32 * MIB, "count": 1, "allocations": 3, "peak_reserved": 32 * MIB,
        "hits": 1, "upstream_allocations": 2, "retries": 0, "waiting": 0, "largest_free": 30 * MIB,
    }  # fmt: skip


def test_snapshot_names_the_blobs():
    cache = make_heap("caching")
    data, diff = Buffer(cache, 700, "conv1 data"), Buffer(cache, 3 * MIB, "conv1 diff")
    small, large = sorted(cache.snapshot(), key=lambda s: s.nbytes)
    assert small.blocks == [(data.address, 1024, 700, "live", "conv1 data"), (data.address + 1024, 2 * MIB - 1024, 0, "free", "")]
    assert [(b.name, b.state) for b in large.blocks] == [("conv1 diff", "live"), ("", "free")]
    assert diff.address == large.address


def test_out_of_memory_after_all_retries():
    cache = make_heap("caching", 50 * MIB)
    kept = Buffer(cache, 30 * MIB, "conv1 data")
    also = [Buffer(cache, 1000, "ip1 data"), Buffer(cache, 2000, "ip1 data")]
    with pytest.raises(OutOfMemoryError) as caught:
        cache.alloc(25 * MIB)
    error = caught.value
    assert (error.place, error.nbytes, error.live) == (CUDAPlace(0), 25 * MIB, 30 * MIB + 3000)
    assert (error.reserved, error.largest_free, error.free, error.total) == (32 * MIB, 2 * MIB - 3072, None, None)
    assert [h for h in error.holders if h[0] in ("conv1 data", "ip1 data")] == [("conv1 data", 30 * MIB), ("ip1 data", 3000)]
    assert str(error).startswith(
        "CUDAPlace(0): no memory for 26,214,400 bytes; live are 31,460,280 bytes, the limit is 52,428,800 bytes; "
        "33,554,432 bytes are reserved, the largest free block in them has 2,094,080; largest holders: conv1 data 31,457,280, "
    )
    assert "empty_cache()" in str(error) and "close other programs" in str(error)
    del kept, also
    cache.free(cache.alloc(50 * MIB))


def test_host_pool_gives_memory_back():
    registry = Registry()
    pool = registry.host_pool()
    pool.free(pool.alloc(3 * MIB))
    assert registry.host_pool() is pool and pool.stats().reserved
    registry.empty_cache(CPUPlace())
    assert not pool.stats().reserved
    registry.use(CPUPlace(), "limit:64MiB")     # of which free blocks take nothing
    pool = registry.host_pool()
    pool.free(pool.alloc(3 * MIB))
    registry.free(CPUPlace(), registry.alloc(CPUPlace(), 64 * MIB))
    with pytest.raises(OutOfMemoryError):
        pool.alloc(65 * MIB)


def test_host_pool_of_another_thread():
    """Another thread that chooses one in the middle waits."""
    class Slow(Registry):
        other = None

        def allocator(self, place, name=None):
            made = super().allocator(place, name)
            if self.other is None:
                self.other = threading.Thread(target=self.use, args=(place, "limit:64MiB"))
                self.other.start()
                self.other.join(0.2)
            return made

    registry = Slow()
    registry.host_pool()
    registry.other.join()
    assert registry.host_pool() is registry.allocator(CPUPlace())


def test_base_of_no_block():
    cache = make_heap("caching")
    freed, block = cache.alloc(512), cache.alloc(512)
    cache.free(freed)
    for wrong in freed, block + 256, 64:
        with pytest.raises(PointerError):
            cache.base_allocation(wrong)


def test_place_and_stream():
    streams = FakeStreams()
    memory.register(CUDAPlace, SystemAllocator, streams=lambda place: streams, default="caching")
    address = memory.alloc(CUDAPlace(0), 100, "mine", stream=9)
    (segment,) = memory.allocator_of(CUDAPlace(0)).snapshot()
    assert (segment.stream, segment.blocks[0].name) == (9, "mine")
    memory.free(CUDAPlace(0), address)
    memory.use(CUDAPlace(0), "limit:1MiB+caching")
    with pytest.raises(ConfigError, match="a LimitAllocator gives no memory for a chosen stream; use a CachingAllocator"):
        memory.alloc(CUDAPlace(0), 100, stream=9)
