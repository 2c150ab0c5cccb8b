"""The buddy allocator in host memory: events, names, errors, guards. Its rules: test_heaps.py, test_random_allocators.py."""

import ctypes

import pytest
from heaps import POOLS, make_streamed_heap

from minicaffe import memory
from minicaffe.errors import ConfigError, OutOfMemoryError, PointerError
from minicaffe.memory import BuddyAllocator, Buffer, LimitAllocator, SystemAllocator


@pytest.fixture
def buddy():
    """One whose limit is that of its first pool."""
    return BuddyAllocator(LimitAllocator(SystemAllocator(), 1024), **POOLS)


@pytest.fixture
def pair(buddy):
    """Two blocks of 64 bytes side by side, by address."""
    return sorted(buddy.alloc(64) for _ in range(2))


def test_events(buddy):
    with memory.record() as events:
        small = buddy.alloc(128 - 8)    # with its guard exactly one chunk
        other = buddy.alloc(64)
        assert abs(other - small) == 128    # its buddy
        buddy.alloc(200)
        beside = buddy.alloc(100)
        buddy.free(small)
        buddy.free(other)
        buddy.free(beside)
    pool = min(small, other)
    assert [(e.kind, e.nbytes) for e in events] == [
        ("pool taken", 1024), ("split", 512), ("split", 256), ("split", 128), ("split", 256), ("split", 128), ("merge", 256), ("merge", 256),
        ("merge", 512)]
    assert events[0].address == pool


def test_whole_pool(buddy):
    whole = buddy.alloc(1024 - 8)
    with memory.record() as events:
        buddy.free(whole)
        buddy.empty_cache()
    assert [(e.kind, e.address, e.nbytes) for e in events] == [("pool given back", whole, 1024)]


def test_a_snapshot_names_the_live_blocks():
    """Of one that waits for a stream the name is gone."""
    buddy, _ = make_streamed_heap("buddy")
    weights, other = Buffer(buddy, 100, "weights"), Buffer(buddy, 300, "other")
    late = other.address
    buddy.record_stream(late, 5)
    del other
    (pool,) = buddy.snapshot()
    blocks = {block.address: block[1:] for block in pool.blocks if block.state != "free"}
    assert blocks == {weights.address: (128, 100, "live", "weights"), late: (512, 0, "waiting", "")}


def test_largest_free_in_errors(buddy):
    for nbytes, largest in ((500, 512), (200, 256), (200, 0)):
        buddy.alloc(nbytes)
        with pytest.raises(OutOfMemoryError) as caught:
            buddy.alloc(900)
        assert caught.value.largest_free == largest
        assert f"1,024 bytes are reserved, the largest free block in them has {largest};" in str(caught.value)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 100, 120])
def test_overrun(buddy, nbytes):
    first, second = sorted(buddy.alloc(nbytes) for _ in range(2))
    kept = ctypes.string_at(first + nbytes, 8)
    ctypes.memset(first + nbytes, kept[0] ^ 1, 1)  # a single byte
    for _ in range(2):
        with pytest.raises(PointerError, match=f"block of {nbytes} bytes at {first:#x} was written beyond its end"):
            buddy.free(first)
    assert buddy.stats().count == 2
    buddy.free(second)
    ctypes.memmove(first + nbytes, kept, 8)  # repair it to end in order
    buddy.free(first)
    assert buddy.stats().count == 0


def test_a_long_overrun_harms_no_books(buddy, pair):
    first, second = pair
    ctypes.memset(first + 64, 0xEE, 900 - 128)
    for block in first, second:
        with pytest.raises(PointerError, match="written beyond its end"):
            buddy.free(block)
    for block in [buddy.alloc(100) for _ in range(6)]:
        buddy.free(block)
    assert buddy.stats().count == 2


def test_overwritten_free_block(buddy, pair):
    first, second = pair
    buddy.free(second)
    kept = ctypes.string_at(second, 8)
    ctypes.memset(second, 0, 8)
    with pytest.raises(PointerError, match=f"free block at {second:#x} was overwritten"):
        buddy.alloc(64)
    assert buddy.stats().count == 1
    ctypes.memmove(second, kept, 8)
    assert buddy.alloc(64) == second
    buddy.free(second)
    buddy.free(first)


@pytest.mark.parametrize(("field", "wrong"), [
    ("min_chunk_size", 96), ("min_chunk_size", 32), ("first_pool_size", 128), ("first_pool_size", 3000), ("first_pool_size", 1 << 27),
    ("max_chunk_size", 128), ("max_chunk_size", 1 << 62)])
def test_options_are_checked(field, wrong):
    with pytest.raises(ConfigError, match=f"BuddyAllocator.{field}"):
        BuddyAllocator(SystemAllocator(), **{field: wrong})
