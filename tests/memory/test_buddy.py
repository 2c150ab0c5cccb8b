"""The buddy allocator: splits, merges, pools, misuse, and random walks with a model beside them."""

import ctypes

import pytest
from fake_streams import FakeStreams
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from no_access import no_access

from minicaffe import memory
from minicaffe.errors import ConfigError, OutOfMemoryError, PointerError, WrongTypeError
from minicaffe.memory import (
    BuddyAllocator,
    Buffer,
    CachingAllocator,
    CachingHostAllocator,
    CPUPlace,
    CUDAPlace,
    FailAllocator,
    LimitAllocator,
    PinnedPlace,
    SystemAllocator,
)
from minicaffe.memory.allocator import Allocator
from minicaffe.memory.red_zones import RedZones


def make(limit=1 << 20, pool=1024, max_pool=4096, place=None):
    upstream = LimitAllocator(SystemAllocator(*[place] if place else []), limit)
    return BuddyAllocator(upstream, min_chunk_size=128, max_chunk_size=max_pool, first_pool_size=pool), upstream


def test_splits_and_coalesces():
    buddy, upstream = make()
    with memory.record() as events:
        small = buddy.alloc(128 - 8)  # with its guard exactly one chunk
        assert [e.nbytes for e in events if e.kind == "split"] == [512, 256, 128]
        other = buddy.alloc(64)
        assert abs(other - small) == 128  # its buddy
        buddy.free(small)
        buddy.free(other)
    assert [e.nbytes for e in events if e.kind == "merge"] == [256, 512, 1024]
    assert upstream.stats().live == buddy.stats().reserved == 1024
    whole = buddy.alloc(1024 - 8)  # only a whole pool holds it
    assert upstream.stats().live == 1024
    buddy.free(whole)
    buddy.empty_cache()
    assert upstream.stats().live == buddy.stats().reserved == 0


def test_splits_of_a_chunk_that_was_split_before_are_reported_alone():
    buddy, _ = make()
    with memory.record() as events:
        for nbytes, splits in ((100, [512, 256, 128]), (100, []), (200, []), (100, [256, 128]), (100, [])):
            events.clear()
            buddy.alloc(nbytes)
            assert [e.nbytes for e in events if e.kind == "split"] == splits


def test_a_snapshot_names_the_live_blocks():
    """Of one that waits for a stream the name is gone."""
    buddy, _ = streamed()
    weights, other = Buffer(buddy, 100, "weights"), Buffer(buddy, 300, "other")
    late = other.address
    buddy.record_stream(late, 5)
    del other
    (pool,) = buddy.snapshot()
    blocks = {block.address: block[1:] for block in pool.blocks if block.state != "free"}
    assert blocks == {weights.address: (128, 100, "live", "weights"), late: (512, 0, "waiting", "")}


def test_events_of_pools():
    buddy, _ = make()
    with memory.record() as events:
        block = buddy.alloc(1000)
        buddy.free(block)
        buddy.empty_cache()
    assert [(e.kind, e.address, e.nbytes) for e in events] == [("pool taken", block, 1024), ("pool given back", block, 1024)]


@pytest.mark.parametrize("nbytes", [2**64 - 1, 2**64 - 8, 2**64 - 9, 2**63])
def test_requests_that_are_too_large_for_any_memory(nbytes):
    """With its guard the first two have more than 2^64 bytes."""
    buddy, upstream = make()
    with pytest.raises(OutOfMemoryError, match=f"no memory for {nbytes:,} bytes"):
        buddy.alloc(nbytes)
    assert buddy.stats().count == upstream.stats().live == 0


def test_an_error_gives_the_largest_free_chunk():
    buddy, _ = make(limit=1024)
    for nbytes, largest in ((500, 512), (200, 256), (200, 0)):
        buddy.alloc(nbytes)
        with pytest.raises(OutOfMemoryError) as caught:
            buddy.alloc(900)
        assert caught.value.largest_free == largest
        assert f"1,024 bytes are reserved, the largest free block in them has {largest};" in str(caught.value)


def test_pools_double_and_the_largest_empty_one_stays():
    buddy, upstream = make()
    blocks = [buddy.alloc(900) for _ in range(1 + 2 + 4 + 4)]
    assert upstream.stats()[:4] == (1024 * 11, 1024 * 11, 1024 * 11, 4)
    for block in blocks:
        buddy.free(block)
    assert upstream.stats().live == 4096
    buddy.free(buddy.alloc(4000))
    assert upstream.stats().allocations == 4  # served from the pool that stayed


def test_large_requests_fall_through():
    buddy, upstream = make()
    block = buddy.alloc(4096 - 7)
    assert upstream.stats().live == buddy.stats().live == buddy.stats().reserved == 4096 - 7
    buddy.free(block)
    assert upstream.stats().live == 0
    with pytest.raises(PointerError):
        buddy.free(block)


def test_takes_a_smaller_pool_where_the_usual_one_is_not_to_be_had():
    buddy, upstream = make(limit=2048)
    blocks = [buddy.alloc(900), buddy.alloc(900)]
    assert upstream.stats().live == 2048  # 1024 and 1024, as 2048 more would be too much
    with pytest.raises(OutOfMemoryError, match="no memory for 900 bytes; live are 1,800 bytes, the limit is 2,048 bytes; 2,048"):
        buddy.alloc(900)
    for block in blocks:
        buddy.free(block)


def test_gives_up_an_empty_pool_for_a_larger_request():
    buddy, upstream = make(limit=2048)
    buddy.free(buddy.alloc(900))
    assert upstream.stats().live == 1024
    buddy.free(buddy.alloc(1900))
    assert upstream.stats().live == 2048


def test_a_large_request_gets_what_empty_pools_hold():
    """Also what still waits for another stream; only then is it refused."""
    limit = LimitAllocator(SystemAllocator(PinnedPlace()), 5500)
    buddy = BuddyAllocator(limit, min_chunk_size=128, max_chunk_size=4096, first_pool_size=1024, streams=FakeStreams())
    block = buddy.alloc(100)
    buddy.record_stream(block, 7)
    buddy.free(block)
    assert limit.stats().live == 1024
    buddy.free(buddy.alloc(5000))
    assert limit.stats().live == 0
    block = buddy.alloc(100)
    assert limit.stats().live == 2048   # pools double
    with pytest.raises(OutOfMemoryError):
        buddy.alloc(5000)
    buddy.free(block)
    assert limit.stats().live == 2048   # the empty pool, with which it would be more than the limit
    buddy.free(buddy.alloc(5000))
    assert limit.stats().live == 0


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_failed_growth_leaves_it_usable(nth):
    upstream = FailAllocator(SystemAllocator(), nth)
    buddy = BuddyAllocator(upstream, 128, 256, 256)
    blocks, failures = [], 0
    for _ in range(4):
        try:
            blocks.append(buddy.alloc(192))
        except OutOfMemoryError:
            failures += 1
    # The second try of the same request succeeds, since only one allocation fails.
    assert (failures, len(blocks), buddy.stats().count) == (0, 4, 4)
    for block in blocks:
        buddy.free(block)
    buddy.empty_cache()
    assert upstream.stats().live == 0


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 100, 120])
def test_overrun_is_found_when_the_block_is_freed(nbytes):
    buddy, _ = make()
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


def test_a_long_overrun_harms_no_books():
    buddy, upstream = make()
    first, second = sorted(buddy.alloc(64) for _ in range(2))
    ctypes.memset(first + 64, 0xEE, 900 - 128)
    for block in first, second:
        with pytest.raises(PointerError, match="written beyond its end"):
            buddy.free(block)
    for block in [buddy.alloc(100) for _ in range(6)]:
        buddy.free(block)
    assert buddy.stats().count == 2


def test_overwritten_free_block_is_found_when_it_is_taken():
    buddy, _ = make()
    first, second = sorted(buddy.alloc(64) for _ in range(2))
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


def test_what_a_user_wrote_is_no_false_alarm():
    """Freed, merged, taken as part of a larger block, filled, freed again: no stale word may be looked for."""
    buddy, _ = make()
    for _ in range(3):
        small = [buddy.alloc(100) for _ in range(8)]
        for block in small:
            ctypes.memset(block, 0xAA, 100)
        for block in small[::2] + small[1::2]:
            assert ctypes.string_at(block, 100) == b"\xaa" * 100  # freeing its neighbours wrote nothing here
            buddy.free(block)
        whole = buddy.alloc(1000)
        ctypes.memset(whole, 0xBB, 1000)
        buddy.free(whole)
        assert buddy.stats().live == 0


def test_the_half_that_just_has_room_is_cut():
    """Larger chunks stay whole, and a half with too little room is passed over."""
    buddy, upstream = make()
    left, right, last = buddy.alloc(504), buddy.alloc(248), buddy.alloc(248)
    assert last - right == 256 and right - left == 512
    buddy.free(left)
    buddy.free(right)
    assert buddy.alloc(248) == right  # left has room for twice as much
    assert buddy.alloc(504) == left
    buddy.free(left)
    buddy.free(right)
    assert buddy.alloc(120) == right
    assert buddy.alloc(248) == left  # 128 bytes are free on the right
    assert upstream.stats().count == 1


def test_misuse_of_pointers():
    buddy, _ = make()
    block = buddy.alloc(500)
    for wrong in block + 1, block + 128, 64:
        with pytest.raises(PointerError, match=f"no live block starts at {wrong:#x}"):
            buddy.free(wrong)
    buddy.free(block)
    with pytest.raises(PointerError, match="no live block starts at"):
        buddy.free(block)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"min_chunk_size": 96}, "min_chunk_size"),
        ({"min_chunk_size": 32}, "min_chunk_size"),
        ({"first_pool_size": 128}, "first_pool_size"),
        ({"first_pool_size": 3000}, "first_pool_size"),
        ({"first_pool_size": 1 << 27}, "first_pool_size"),
        ({"max_chunk_size": 128}, "max_chunk_size"),
        ({"max_chunk_size": 1 << 62}, "max_chunk_size"),
    ],
)
def test_options_are_checked(options, field):
    with pytest.raises(ConfigError, match=f"BuddyAllocator.{field}"):
        BuddyAllocator(SystemAllocator(), **options)


def test_device_memory_is_never_touched():
    buddy = BuddyAllocator(SystemAllocator(CUDAPlace(0)), 128, 1 << 20, 1 << 20)
    base = buddy.alloc(1 << 20)  # a power of two fits exactly, as no guard follows
    buddy.free(base)
    with no_access(base, 1 << 20):
        taken = [buddy.alloc(n) for n in (0, 128, 129, 1 << 14, 1 << 16, 1 << 18, 3000, 4096)]
        buddy.free(taken[1])
        assert buddy.alloc(128) == taken[1]
        for block in taken:
            assert base <= block < base + (1 << 20)
            buddy.free(block)
            with pytest.raises(PointerError):
                buddy.free(block)
    buddy.empty_cache()
    assert buddy.stats().reserved == 0


def streamed(limit=1 << 30, place=None, **options):
    streams = FakeStreams()
    options = {"min_chunk_size": 128, "max_chunk_size": 4096, "first_pool_size": 1024, **options}
    return BuddyAllocator(LimitAllocator(SystemAllocator(place or CUDAPlace(0)), limit), streams=streams, **options), streams


def test_pools_belong_to_streams():
    buddy, streams = streamed()
    first = buddy.alloc(100)
    buddy.free(first)
    streams.stream = 7
    other = buddy.alloc(100)
    assert other != first and buddy.stats().reserved == 1024 + 2048
    streams.stream = 0
    assert buddy.alloc(100) == first
    buddy.free(other)  # goes back to stream 7, whichever is current
    assert buddy.malloc(100, 7) == other
    buddy.free(first)
    buddy.free(other)
    assert buddy.stats().reserved == 1024 + 2048  # an empty pool is kept for each
    buddy.empty_cache()
    assert buddy.stats().reserved == 0


@pytest.mark.parametrize("place", [CUDAPlace(0), PinnedPlace()])
def test_a_block_used_elsewhere_waits(place):
    buddy, streams = streamed(place=place)
    block, beside = buddy.alloc(100), buddy.alloc(100)
    buddy.record_stream(block, 5)
    buddy.record_stream(block, 5)
    buddy.record_stream(block, 0)  # its own
    buddy.free(block)
    assert streams.calls == ["record"] and buddy.stats().count == 1
    with pytest.raises(PointerError, match="no live block starts at"):
        buddy.free(block)
    with pytest.raises(PointerError, match="no live block starts at"):
        buddy.record_stream(block, 5)
    assert buddy.alloc(100) != block
    streams.reach(5)
    assert buddy.alloc(100) == block
    assert buddy.stats().live == 300 and buddy.stats().count == 3
    buddy.free(block)  # the uses were those of its former life
    assert streams.calls.count("record") == 1 and buddy.alloc(100) == block
    buddy.free(beside)


def test_waiting_blocks_are_waited_for_before_memory_is_refused():
    buddy, streams = streamed(1024, first_pool_size=1024)
    block = buddy.alloc(1000)
    buddy.record_stream(block, 5)
    buddy.free(block)
    assert buddy.alloc(1000) == block and "wait" in streams.calls
    buddy.record_stream(block, 5)
    buddy.free(block)
    large = buddy.alloc(900 + 100)
    buddy.free(large)
    buddy.record_stream(again := buddy.alloc(10), 5)
    buddy.free(again)
    buddy.empty_cache()
    assert buddy.stats().reserved == 0


def test_large_block_records_streams_upstream():
    streams = FakeStreams()
    below = CachingAllocator(SystemAllocator(CUDAPlace(0)), streams)
    buddy = BuddyAllocator(below, 128, 4096, streams=streams)
    block = buddy.malloc(10_000, 3)
    buddy.record_stream(block, 4)
    buddy.free(block)
    assert streams.put == {4: 1} and below.stats().waiting == 10_240
    streams.reach(4)
    assert below.malloc(10_000, 3) == block


def test_a_failed_event_leaves_the_block_live():
    buddy, streams = streamed()
    block = buddy.alloc(100)
    buddy.record_stream(block, 3)
    streams.broken = "record"
    with pytest.raises(OSError, match="record failed"):
        buddy.free(block)
    assert buddy.stats().count == 1
    streams.broken = ""
    buddy.free(block)
    assert buddy.stats().count == 0


def test_without_streams():
    buddy, _ = make(place=CUDAPlace(0))
    block = buddy.alloc(1)
    buddy.record_stream(block, 0)  # the only one there is
    for call in (lambda: buddy.record_stream(block, 1), lambda: buddy.malloc(1, 1)):
        with pytest.raises(ConfigError, match="made without `streams`, so it supports only one stream"):
            call()
    with pytest.raises(PointerError):
        buddy.record_stream(block + 64, 1)
    with pytest.raises(PointerError):
        buddy.record_stream(12345 * 64, 1)
    with pytest.raises(WrongTypeError, match=r"a stream must be a cuda.Stream or its address \(an int, at least 0\), got 'copies'"):
        buddy.record_stream(block, "copies")
    pageable, _ = make()
    pageable.record_stream(pageable.alloc(1), 1)


def test_pools_go_with_the_allocator():
    buddy, upstream = make()
    buddy.free(buddy.alloc(1))
    buddy.alloc(5000)
    assert upstream.stats().count == 2
    del buddy
    assert upstream.stats().count == 0


class ZonedUpstream(Allocator):
    """Addresses that are no memory, with red zones of 64 bytes; `marks` has what was closed and opened."""

    def __init__(self):
        super().__init__(CUDAPlace(0))
        self.marks, function = [], ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t)
        self.functions = [function(lambda address, nbytes, kind=kind: self.marks.append((kind, address - BASE, nbytes)))
                          for kind in ("close", "open")]

    def red_zones(self):
        return RedZones(64, *(ctypes.cast(function, ctypes.c_void_p).value for function in self.functions))

    def alloc(self, nbytes):
        return BASE

    def free(self, address):
        pass


BASE = 1 << 40


@pytest.mark.parametrize(("kind", "pool", "chunk"), [(BuddyAllocator, 1 << 20, 1024), (CachingAllocator, 2 << 20, 576)])
def test_what_is_closed_and_opened_where_memory_has_red_zones(kind, pool, chunk):
    """A new pool as a whole, so that a request opens no more than its bytes; a block that is freed."""
    upstream = ZonedUpstream()
    allocator = kind(upstream)
    block = allocator.alloc(500)
    assert upstream.marks == [("close", 0, pool), ("open", block - BASE, 500)]
    allocator.free(block)
    assert upstream.marks[2:] == [("close", block - BASE, chunk)]


def test_blocks_that_are_never_split_have_no_red_zones():
    upstream = ZonedUpstream()
    allocator = CachingHostAllocator(upstream)
    allocator.free(allocator.alloc(500))
    assert not upstream.marks


class BuddyMachine(RuleBasedStateMachine):
    """The model: a dict of live blocks with the byte each is filled with."""

    blocks = Bundle("blocks")

    place = CPUPlace()
    guard = 8

    def __init__(self):
        super().__init__()
        self.limit = 20000
        self.buddy, self.upstream = make(self.limit, pool=512, max_pool=4096, place=self.place)
        self.live = {}
        self.filling = 0

    @rule(target=blocks, size=st.one_of(st.integers(0, 300), st.integers(0, 6000)))
    def allocate(self, size):
        try:
            block = self.buddy.alloc(size)
        except OutOfMemoryError:
            # Only refused when the smallest pool, or the block itself, does not fit beside what is held.
            need = size if size > 4096 - self.guard else max(128, 1 << (size + self.guard - 1).bit_length())
            assert self.upstream.stats().live + need > self.limit
            return None
        assert block % 64 == 0
        assert all(block + size <= other or other + n <= block for other, (n, _) in self.live.items())
        self.filling = (self.filling + 1) % 256
        ctypes.memset(block, self.filling, size)
        self.live[block] = size, self.filling
        return block

    @rule(block=consumes(blocks))
    def release(self, block):
        if block in self.live:
            self.check(block)
            self.buddy.free(block)
            del self.live[block]

    @rule(block=blocks, offset=st.sampled_from([1, 64, 128, 512]))
    def misuse(self, block, offset):
        if block is not None and block + offset not in self.live:
            with pytest.raises(PointerError):
                self.buddy.free(block + offset)

    @rule()
    def empty_cache(self):
        self.buddy.empty_cache()

    def check(self, block):
        size, filling = self.live[block]
        assert ctypes.string_at(block, size) == bytes([filling]) * size

    @invariant()
    def books_agree(self):
        stats = self.buddy.stats()
        assert (stats.count, stats.live) == (len(self.live), sum(n for n, _ in self.live.values()))
        assert stats.reserved == self.upstream.stats().live <= self.limit

    def teardown(self):
        for block in list(self.live):
            self.check(block)
            self.buddy.free(block)
        # Everything coalesced: what is left is at most one pool, and it is whole.
        assert self.upstream.stats().count <= 1
        self.buddy.empty_cache()
        assert self.upstream.stats().live == 0


TestBuddyMachine = BuddyMachine.TestCase
TestBuddyMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


class DeviceBuddyMachine(BuddyMachine):
    """The same without guards; the double's memory is the host's, so it can be filled and checked here."""

    place = CUDAPlace(0)
    guard = 0


TestDeviceBuddyMachine = DeviceBuddyMachine.TestCase
TestDeviceBuddyMachine.settings = TestBuddyMachine.settings
