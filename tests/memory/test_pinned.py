"""The caching allocator of pinned host memory: whole blocks of power-of-two size, kept until their streams are done."""

import pickle
import threading

import pytest
from fake_streams import FakeStreams

from minicaffe import memory
from minicaffe.errors import ConfigError, OutOfMemoryError, PointerError
from minicaffe.memory import (
    BuddyAllocator,
    CachingAllocator,
    CachingHostAllocator,
    FailAllocator,
    LimitAllocator,
    PinnedPlace,
    SystemAllocator,
)


def make(limit=1 << 40, streams=None):
    upstream = LimitAllocator(SystemAllocator(PinnedPlace()), limit)
    return CachingHostAllocator(upstream, streams), upstream


@pytest.mark.parametrize(("asked", "held"), [(0, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20), ((1 << 20) + 1, 1 << 21)])
def test_sizes_are_powers_of_two(asked, held):
    cache, upstream = make()
    address = cache.alloc(asked)
    assert upstream.stats().live == cache.stats().reserved == held
    assert (cache.stats().live, cache.stats().largest_free) == (asked, 0)
    cache.free(address)
    assert (cache.stats().live, cache.stats().largest_free) == (0, held)


def test_free_blocks_of_the_size_are_reused_and_nothing_is_split():
    cache, upstream = make()
    one, two = cache.alloc(4000), cache.alloc(4096)
    cache.free(one)
    cache.free(two)
    other = cache.alloc(2048)  # a larger block stays whole
    assert other not in (one, two)
    with memory.record() as events:
        assert {cache.alloc(3000), cache.alloc(2049)} == {one, two}
    assert [(e.kind, e.nbytes) for e in events] == [("cache hit", 4096)] * 2
    assert (cache.stats().hits, cache.stats().upstream_allocations) == (2, 3)


def test_a_block_waits_for_the_streams_that_copy_it():
    streams = FakeStreams()
    cache, upstream = make(streams=streams)
    block = cache.alloc(512)
    cache.record_stream(block, 0)  # host memory belongs to no stream, so the current one counts as well
    cache.record_stream(block, 4)
    cache.free(block)
    assert (cache.stats().live, cache.stats().waiting, cache.stats().reserved) == (0, 512, 512)
    with pytest.raises(PointerError, match="no live block"):
        cache.free(block)
    streams.reach(0)
    assert cache.alloc(512) != block
    streams.reach(4)
    assert cache.alloc(512) == block
    assert cache.stats().waiting == 0
    cache.free(block)
    assert cache.alloc(512) == block


def test_memory_for_a_chosen_stream_waits_for_it():
    streams = FakeStreams()
    cache, _ = make(streams=streams)
    block = cache.malloc(512, 4)
    cache.free(block)
    assert streams.put == {4: 1} and cache.alloc(512) != block
    streams.reach(4)
    assert cache.alloc(512) == block


def test_a_failed_record_leaves_the_block_live():
    streams = FakeStreams()
    cache, _ = make(streams=streams)
    block = cache.alloc(512)
    cache.record_stream(block, 1)
    streams.broken = "record"
    with pytest.raises(OSError):
        cache.free(block)
    assert (cache.stats().live, cache.stats().waiting) == (512, 0)
    streams.broken = ""
    cache.free(block)
    cache.empty_cache()
    assert cache.stats()[:5] == (0, 512, 0, 0, 1)


def test_retry_waits_and_gives_back_before_the_error():
    streams = FakeStreams()
    cache, upstream = make(8192, streams)
    waiting, free = cache.alloc(4096), cache.alloc(2048)
    cache.record_stream(waiting, 1)
    cache.free(waiting)
    cache.free(free)
    assert cache.alloc(4096) == waiting  # there is no room for a second one
    assert streams.calls[-1] == "wait"
    cache.free(waiting)
    cache.free(cache.alloc(8192))
    assert (cache.stats().reserved, cache.stats().retries) == (8192, 2)
    with pytest.raises(OutOfMemoryError, match="no memory for 8,193 bytes; .* the limit is 8,192 bytes"):
        cache.alloc(8193)
    with pytest.raises(OutOfMemoryError, match="half of the address space"):
        cache.alloc(1 << 63)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_failure_of_the_nth_upstream_allocation(nth):
    upstream = FailAllocator(SystemAllocator(), nth)
    cache = CachingHostAllocator(upstream)
    got = [cache.alloc(n) for n in (10, 1000, 3000)]
    assert (cache.stats().retries, cache.stats().reserved) == (1, 512 + 1024 + 4096)
    for address in got:
        cache.free(address)
    cache.empty_cache()
    assert upstream.stats().count == cache.stats().reserved == 0


def test_misuse():
    cache, _ = make()
    block = cache.alloc(1000)
    with pytest.raises(PointerError, match="CachingHostAllocator: no live block starts at .*, lies inside a block"):
        cache.free(block + 512)
    with pytest.raises(PointerError, match="no live block starts at .*another allocator"):
        cache.free(64)
    with pytest.raises(ConfigError, match="made without `streams`"):
        cache.record_stream(block, 1)
    cache.free(block)
    with pytest.raises(PointerError, match="no live block starts at"):
        cache.record_stream(block, 1)


def test_blocks_go_with_the_allocator():
    cache, upstream = make()
    cache.alloc(1)
    cache.free(cache.alloc(1000))
    del cache
    assert upstream.stats().count == 0


def test_threads():
    cache, upstream = make()

    def work():
        for i in range(2000):
            cache.free(cache.alloc(i * 7 % 5000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.stats().count == 0
    cache.empty_cache()
    assert upstream.stats().count == 0


@pytest.mark.parametrize("kind", [SystemAllocator, BuddyAllocator, CachingAllocator, CachingHostAllocator])
def test_allocators_are_not_pickled(kind):
    allocator = kind() if kind is SystemAllocator else kind(SystemAllocator())
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(allocator)
