"""The caching allocator: every rule of its head comment, misuse, failures, threads, and random walks with a model."""

import gc
import threading

import numpy as np
import pytest
from fake_streams import FakeStreams
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from no_access import no_access

from minicaffe import memory
from minicaffe.errors import ConfigError, Error, OutOfMemoryError, PointerError, WrongTypeError
from minicaffe.memory import (
    BuddyAllocator,
    Buffer,
    CachingAllocator,
    CPUPlace,
    CUDAPlace,
    FailAllocator,
    LimitAllocator,
    StreamOrder,
    SystemAllocator,
)
from minicaffe.memory.registry import Registry

MIB = 1 << 20


def make(limit=1 << 40, streams=None):
    """A caching allocator of a pretended device; its books must not touch the memory, which is never filled."""
    upstream = LimitAllocator(SystemAllocator(CUDAPlace(0)), limit)
    return CachingAllocator(upstream, streams), upstream


def blocks(cache):
    """(bytes, state) of all blocks by address."""
    return [(b.nbytes, b.state) for segment in cache.snapshot() for b in segment.blocks]


@pytest.mark.parametrize(
    ("requested", "rounded", "segment", "pool"),
    [
        (0, 512, 2 * MIB, "small"),
        (1, 512, 2 * MIB, "small"),
        (512, 512, 2 * MIB, "small"),
        (513, 1024, 2 * MIB, "small"),
        (MIB, MIB, 2 * MIB, "small"),
        (MIB + 1, MIB + 512, 20 * MIB, "large"),
        (10 * MIB, 10 * MIB, 20 * MIB, "large"),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB, "large"),
        (11 * MIB + 1, 12 * MIB, 12 * MIB, "large"),  # the rest of less than 1 MiB stays with the block
        (22 * MIB, 22 * MIB, 22 * MIB, "large"),
    ],
)
def test_rounding_and_segments(requested, rounded, segment, pool):
    cache, upstream = make()
    address = cache.alloc(requested)
    (found,) = cache.snapshot()
    assert (found.nbytes, found.pool, found.stream) == (segment, pool, 0)
    assert found.blocks[0][:4] == (address, rounded, requested, "live")
    assert upstream.stats().live == cache.stats().reserved == segment
    assert cache.stats().live == requested
    cache.free(address)


@pytest.mark.parametrize(
    ("cached", "requested", "kept"),
    [
        (1024, 512, [512, 512]),  # 512 bytes left: worth keeping
        (12 * MIB, 11 * MIB, [12 * MIB]),  # 1 MiB left: not worth it in the large pool
        (12 * MIB, 11 * MIB - 512, [11 * MIB - 512, MIB + 512]),
    ],
)
def test_a_rest_is_split_off_if_it_is_big_enough(cached, requested, kept):
    cache, _ = make()
    first = cache.alloc(cached)
    if cached == 1024:
        cache.alloc(512)    # keeps it from merging with the rest of the segment
    cache.free(first)
    assert cache.alloc(requested) == first
    assert [n for n, _ in blocks(cache)][: len(kept)] == kept


def test_best_fit_takes_the_smallest_then_the_lowest():
    cache, _ = make()
    wanted = [4096, 512, 2048, 512, 8192, 512, 2048, 512]  # the blocks of 512 keep the others apart
    taken = [cache.alloc(n) for n in wanted]
    rest = cache.alloc(MIB), cache.alloc(2 * MIB - MIB - sum(wanted))
    for i in (0, 2, 4, 6):
        cache.free(taken[i])
    assert taken == sorted(taken) and max(taken) < rest[0]
    assert cache.alloc(2000) == taken[2]  # of the two that fit exactly the lower one
    assert cache.alloc(1025) == taken[6]
    assert cache.alloc(4097) == taken[4]  # 4,608 bytes of 8,192
    assert cache.alloc(3584) == taken[4] + 4608  # the rest fits better than the 4,096 at the start
    assert cache.alloc(2048) == taken[0]
    assert cache.stats().upstream_allocations == 1


def test_small_and_large_pools_do_not_mix():
    cache, upstream = make()
    cache.free(cache.alloc(2 * MIB))
    cache.alloc(1000)
    assert upstream.stats().count == 2
    cache.alloc(18 * MIB)  # fits into the cached 20 MiB
    assert upstream.stats().count == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_free_neighbours_merge_in_any_order(order):
    cache, _ = make()
    three = [cache.alloc(512) for _ in range(3)]
    with memory.record() as events:
        for i in order:
            cache.free(three[i])
    assert blocks(cache) == [(2 * MIB, "free")]
    assert [e for e in events if e.kind == "merge"][-1][3:5] == (three[0], 2 * MIB)
    assert cache.alloc(MIB) == three[0]


def test_segments_that_touch_do_not_merge():
    # The double gives its segments side by side out of one range, as a driver may.
    cache = CachingAllocator(BuddyAllocator(SystemAllocator(CUDAPlace(0)), 1 << 12, 1 << 27, 1 << 27))
    taken = [cache.alloc(32 * MIB) for _ in range(4)]
    assert sorted(taken) == list(range(min(taken), min(taken) + 128 * MIB, 32 * MIB))
    for address in taken:
        cache.free(address)
    assert blocks(cache) == [(32 * MIB, "free")] * 4


def test_statistics_and_events_of_a_hit():
    cache, upstream = make()
    with memory.record() as events:
        first = cache.alloc(1000)
        cache.free(first)
        assert cache.alloc(100) == first
    kinds = [(e.kind, e.nbytes, e.place) for e in events]
    assert kinds == [
        ("segment taken", 2 * MIB, CUDAPlace(0)),
        ("split", 1024, CUDAPlace(0)),
        ("merge", 2 * MIB, CUDAPlace(0)),
        ("cache hit", 512, CUDAPlace(0)),
        ("split", 512, CUDAPlace(0)),
    ]
    big = cache.alloc(30 * MIB)
    cache.free(big)
    stats = cache.stats()
    assert stats._asdict() == {
        "live": 100, "peak": 30 * MIB + 100, "reserved": 32 * MIB, "count": 1, "allocations": 3, "peak_reserved": 32 * MIB,
        "hits": 1, "upstream_allocations": 2, "retries": 0, "waiting": 0, "largest_free": 30 * MIB,
    }  # fmt: skip
    cache.empty_cache()
    assert cache.stats()[:3] == (100, 30 * MIB + 100, 2 * MIB) and cache.stats().peak_reserved == 32 * MIB
    assert upstream.stats().live == 2 * MIB


def test_snapshot_names_the_blobs():
    cache, _ = make()
    data, diff = Buffer(cache, 700, "conv1 data"), Buffer(cache, 3 * MIB, "conv1 diff")
    small, large = sorted(cache.snapshot(), key=lambda s: s.nbytes)
    assert small.blocks == [
        (data.address, 1024, 700, "live", "conv1 data"),
        (data.address + 1024, 2 * MIB - 1024, 0, "free", ""),
    ]
    assert [(b.name, b.state) for b in large.blocks] == [("conv1 diff", "live"), ("", "free")]
    assert diff.address == large.address


def test_blocks_stay_with_their_stream():
    streams = FakeStreams()
    cache, upstream = make(streams=streams)
    streams.stream = 7
    first = cache.alloc(1000)
    cache.free(first)
    streams.stream = 8
    other = cache.alloc(1000)
    assert other != first and upstream.stats().count == 2
    assert sorted(s.stream for s in cache.snapshot()) == [7, 8]
    streams.stream = 7
    assert cache.alloc(1000) == first
    cache.free(other)  # goes back to stream 8, whichever is current
    assert cache.alloc(1000) not in (first, other)
    assert streams.calls == []  # nothing was recorded or requested for that


def test_a_block_used_on_other_streams_waits_for_them():
    streams = FakeStreams()
    cache, upstream = make(streams=streams)
    block = cache.alloc(20 * MIB)
    for stream in (1, 2, 2, 0):  # 0 is its own
        cache.record_stream(block, stream)
    cache.free(block)
    assert (streams.put, cache.stats().live, cache.stats().waiting) == ({1: 1, 2: 1}, 0, 20 * MIB)
    assert blocks(cache) == [(20 * MIB, "waiting")]
    with pytest.raises(PointerError, match="no live block starts at"):
        cache.free(block)
    with pytest.raises(PointerError, match="no live block starts at"):
        cache.record_stream(block, 1)
    streams.reach(1)
    second = cache.alloc(20 * MIB)
    assert second != block  # stream 2 is not there yet
    streams.reach(2)
    assert cache.alloc(20 * MIB) == block
    cache.free(block)  # the uses were those of its former life
    assert blocks(cache).count((20 * MIB, "free")) == 1
    assert (cache.stats().waiting, upstream.stats().count) == (0, 2)


def test_a_waiting_block_does_not_merge():
    streams = FakeStreams()
    cache, _ = make(streams=streams)
    one, two = cache.alloc(512), cache.alloc(512)
    cache.record_stream(one, 5)
    cache.free(one)
    cache.free(two)
    assert blocks(cache) == [(512, "waiting"), (2 * MIB - 512, "free")]
    cache.empty_cache()  # waits
    assert streams.calls[-1] == "wait" and blocks(cache) == []


def test_streams_that_fail_leave_the_books_right():
    streams = FakeStreams()
    cache, upstream = make(streams=streams)
    block = cache.alloc(512)
    cache.record_stream(block, 3)
    streams.broken = "record"
    with pytest.raises(OSError, match="record failed"):
        cache.free(block)
    assert (cache.stats().live, cache.stats().count) == (512, 1)
    streams.broken = "done"
    cache.free(block)
    with pytest.raises(OSError, match="done failed"):
        cache.alloc(512)
    streams.broken = "wait"
    with pytest.raises(OSError, match="wait failed"):
        cache.empty_cache()
    streams.broken = ""
    assert blocks(cache)[0] == (512, "waiting")
    cache.empty_cache()
    assert (upstream.stats().count, cache.stats().reserved) == (0, 0)


def test_streams_may_come_back_into_the_allocator():
    """What streams do may run other code, as another thread would: it finds the books in order."""

    class Busy(FakeStreams):
        depth = 0

        def _call(self, name):
            super()._call(name)
            if self.depth < 2:
                self.depth += 1
                inner = cache.alloc(700)
                cache.record_stream(inner, 4)
                cache.free(inner)
                if taken:
                    cache.free(taken.pop())
                if name == "wait":
                    cache.empty_cache()
                assert sum(b.nbytes for s in cache.snapshot() for b in s.blocks) == cache.stats().reserved
                self.depth -= 1

    streams = Busy()
    cache, upstream = make(streams=streams)
    taken = []
    taken += [cache.alloc(n) for n in [512, 1024, 3 * MIB] * 20]
    while taken:
        block = taken.pop()
        cache.record_stream(block, 1)
        cache.free(block)
        if len(taken) % 3 == 0:
            streams.reach(1)
        cache.free(cache.alloc(len(taken) * 1000))
    cache.empty_cache()
    cache.empty_cache()  # the first one made more to wait for
    assert cache.stats().count == cache.stats().live == 0
    assert cache.stats().reserved == upstream.stats().live


def test_a_buffer_knows_its_streams():
    streams = FakeStreams()
    cache, _ = make(streams=streams)
    buffer = Buffer(cache, 512)
    buffer.record_stream(3)
    del buffer
    assert cache.stats().waiting == 512


def test_record_stream_without_streams_is_refused():
    cache, _ = make()
    block = cache.alloc(1)
    cache.record_stream(block, 0)  # the only one there is
    with pytest.raises(ConfigError, match="made without `streams`"):
        cache.record_stream(block, 1)
    with pytest.raises(PointerError, match="comes from another allocator"):
        cache.record_stream(64, 1)
    cache.free(block)
    for method, arguments in [("current", ()), ("record", (0,)), ("done", (None,)), ("wait", (None,))]:
        with pytest.raises(Error, match=f"must override {method}"):
            getattr(StreamOrder(), method)(*arguments)


def test_misuse_of_pointers():
    cache, _ = make()
    block = cache.alloc(1000)
    for wrong, message in [(block + 1, "no live block"), (block + 1024, "no live block"), (64, "another allocator")]:
        with pytest.raises(PointerError, match=message):
            cache.free(wrong)
    cache.free(block)
    with pytest.raises(PointerError, match="no live block"):
        cache.free(block)
    cache.empty_cache()
    with pytest.raises(PointerError, match="no live block"):
        cache.free(block)
    assert cache.stats()[:2] == (0, 1000)


def test_retry_gives_back_the_smallest_segment_that_is_big_enough_first():
    streams = FakeStreams()
    cache, upstream = make(100 * MIB, streams)
    for mib in (40, 30, 12):
        cache.free(cache.alloc(mib * MIB))  # each is cut from none before: 30 MiB splits the 40
    sizes = sorted(s.nbytes // MIB for s in cache.snapshot())
    assert sizes == [40]  # one segment serves all three
    streams.stream = 1
    cache.free(cache.alloc(30 * MIB))
    streams.stream = 2
    cache.free(cache.alloc(22 * MIB))
    streams.stream = 3
    with memory.record() as events:
        cache.alloc(24 * MIB)
    assert [e.nbytes // MIB for e in events if e.kind == "segment given back"] == [30]
    assert sorted(s.nbytes // MIB for s in cache.snapshot()) == [22, 24, 40]
    assert cache.stats().retries == 1


def test_retry_then_gives_back_everything_that_is_free():
    streams = FakeStreams()
    cache, upstream = make(100 * MIB, streams)
    for stream in range(4):
        streams.stream = stream
        cache.free(cache.alloc(24 * MIB))
    streams.stream = 9
    cache.alloc(60 * MIB)
    assert [s.nbytes for s in cache.snapshot()] == [60 * MIB]
    assert cache.stats().retries == 1


def test_retry_waits_for_streams_and_takes_what_they_give_back():
    streams = FakeStreams()
    cache, upstream = make(50 * MIB, streams)
    block = cache.alloc(40 * MIB)
    cache.record_stream(block, 1)
    cache.free(block)
    assert cache.alloc(39 * MIB) == block
    assert streams.calls[-1] == "wait" and upstream.stats().allocations == 1


def test_retry_takes_less_than_a_usual_segment():
    cache, upstream = make(5 * MIB)
    address = cache.alloc(3 * MIB)
    assert upstream.stats().live == 4 * MIB
    cache.free(address)


def test_out_of_memory_after_all_retries():
    cache, upstream = make(50 * MIB)
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


@pytest.mark.parametrize("nbytes", [1 << 63, (1 << 64) - 1, (1 << 62)])
def test_requests_beyond_reason(nbytes):
    cache, _ = make()
    with pytest.raises(OutOfMemoryError):
        cache.alloc(nbytes)
    assert cache.stats().reserved == cache.stats().count == 0


def test_segments_go_with_the_allocator():
    cache, upstream = make()
    cache.alloc(1)
    cache.free(cache.alloc(5 * MIB))
    assert upstream.stats().count == 2
    del cache
    assert upstream.stats().count == 0


def test_device_memory_is_never_touched():
    cache, upstream = make()
    base = cache.alloc(64 * MIB)
    cache.free(base)
    with no_access(base, 64 * MIB):
        taken = [cache.alloc(n * MIB) for n in (2, 20, 3, 5, 30)]
        for block in taken[::2] + taken[1::2]:
            cache.free(block)
        assert cache.alloc(64 * MIB) == base and upstream.stats().allocations == 1
    cache.free(base)


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_failure_of_the_nth_upstream_allocation(nth):
    upstream = FailAllocator(SystemAllocator(), nth)
    cache = CachingAllocator(upstream)
    got = [cache.alloc(n) for n in (100, 2 * MIB, 30 * MIB, 24 * MIB)]  # a second try always succeeds
    assert cache.stats().retries == (nth <= 4)
    assert cache.stats().reserved == upstream.stats().live
    for address in got:
        cache.free(address)
    cache.empty_cache()
    assert upstream.stats().live == cache.stats().reserved == 0


def test_errors_that_are_not_for_want_of_memory_pass_and_leave_the_books_right():
    cache = CachingAllocator(memory.Allocator(CPUPlace()))
    with pytest.raises(Error, match="must override alloc"):
        cache.alloc(1)
    assert cache.stats().reserved == cache.stats().count == 0


def test_many_threads():
    cache = CachingAllocator(LimitAllocator(SystemAllocator(), 200 * MIB))
    shared, errors = [], []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for size in rng.integers(0, 3 * MIB, 300):
                view = np.ndarray(int(size), np.uint8, buffer=Buffer(cache, int(size), f"thread {seed}"))
                view[::4096] = seed
                shared.append(view)
                if len(shared) > 20:
                    found = shared.pop(0)
                    assert found.size == 0 or (found[::4096] == found[0]).all()
                if size % 16 == 0:
                    cache.empty_cache()
                if size % 16 == 1:
                    cache.snapshot()
        except BaseException as error:
            errors.append(error)
            raise

    with memory.record() as events:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shared.clear()
        gc.collect()
    assert not errors
    assert cache.stats().count == 0 and any(e.kind == "merge" for e in events)
    cache.empty_cache()
    assert cache.stats().reserved == 0


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, MIB),
        (513, 1024, MIB),
        (MIB - 511, MIB, MIB),
        (MIB, MIB, MIB),
        (MIB + 1, MIB + (128 << 10), MIB + (128 << 10)),
        (3 * MIB, 3 * MIB, 3 * MIB),
        (20 * MIB - 1, 20 * MIB, 20 * MIB),
    ],
)
def test_the_first_thc_takes_what_was_asked_for(requested, block, segment):
    cache = CachingAllocator(SystemAllocator(), constants="thc")
    address = cache.alloc(requested)
    (found,) = cache.snapshot()
    assert found.blocks[0].nbytes == block and found.nbytes == segment
    assert cache.base_allocation(address) == (address, segment)
    cache.free(address)
    assert cache.cache_info() == (segment, segment)


def test_the_first_thc_splits_what_leaves_more_than_a_mebibyte():
    cache = CachingAllocator(SystemAllocator(), constants="thc")
    first = cache.alloc(20 * MIB)
    cache.free(first)
    whole = cache.alloc(19 * MIB)
    assert whole == first and [b.nbytes for b in cache.snapshot()[0].blocks] == [20 * MIB]
    cache.free(whole)
    part, rest = cache.alloc(5 * MIB), cache.alloc(15 * MIB)
    assert (part, rest) == (first, first + 5 * MIB) and len(cache.snapshot()[0].blocks) == 2
    assert cache.base_allocation(rest) == (first, 20 * MIB)
    cache.free(part)
    cache.free(rest)
    assert cache.cache_info() == (20 * MIB, 20 * MIB)
    small = [cache.alloc(512 << 10) for _ in range(3)]
    assert cache.stats().reserved == 22 * MIB and small[1] == small[0] + (512 << 10)


def test_constants_are_checked():
    with pytest.raises(ConfigError, match="CachingAllocator.constants: must be one of pytorch, thc, arena, got 'caffe'"):
        CachingAllocator(SystemAllocator(), constants="caffe")


def test_an_arena_holds_hardly_more_than_is_in_use():
    cache = CachingAllocator(SystemAllocator(), constants="arena")
    blocks = [cache.alloc(nbytes) for nbytes in (100, 3 * MIB, 700, 40 * MIB)]
    assert [b - a for a, b in zip(blocks, blocks[1:])] == [512, 3 * MIB, 1024]
    cache.free(blocks[1])
    assert cache.alloc(2 * MIB) == blocks[1] and cache.alloc(MIB) == blocks[1] + 2 * MIB
    assert cache.stats().reserved == 1024 * MIB and cache.stats().upstream_allocations == 1
    cache.alloc(2048 * MIB)
    assert cache.stats().reserved == 3072 * MIB


def test_an_arena_takes_what_it_needs_where_there_is_less():
    cache = CachingAllocator(LimitAllocator(SystemAllocator(), 8 * MIB), constants="arena")
    first = cache.alloc(3 * MIB)
    assert cache.stats().reserved == 4 * MIB
    cache.free(first)
    assert cache.alloc(4 * MIB) == first and cache.stats().reserved == 4 * MIB
    with pytest.raises(OutOfMemoryError):
        cache.alloc(5 * MIB)


def test_the_pool_of_the_host_gives_memory_back():
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


def test_the_pool_of_the_host_is_made_of_the_allocator_in_use():
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


def test_base_allocation_and_cache_info():
    cache = CachingAllocator(SystemAllocator())
    assert cache.cache_info() == (0, 0)
    three = [cache.alloc(512) for _ in range(3)]
    large = cache.alloc(30 * MIB)
    for address in three:
        assert cache.base_allocation(address) == (three[0], 2 * MIB)
    assert cache.base_allocation(large) == (large, 30 * MIB)
    assert cache.cache_info() == (2 * MIB - 1536, 2 * MIB - 1536)
    cache.free(three[0])
    assert cache.cache_info() == (2 * MIB - 1024, 2 * MIB - 1536)
    for wrong in (three[0], three[1] + 256, 64):
        with pytest.raises(PointerError):
            cache.base_allocation(wrong)


def test_memory_for_a_chosen_stream():
    streams = FakeStreams()
    cache = CachingAllocator(SystemAllocator(), streams)
    block = cache.malloc(1000, 4)
    assert cache.snapshot()[0].stream == 4
    cache.record_stream(block, 4)  # its own
    cache.free(block)
    assert streams.calls == [] and cache.cache_info(4) == (2 * MIB, 2 * MIB) and cache.cache_info(0) == (0, 0)
    assert cache.alloc(1000) != block
    assert cache.malloc(1000, 4) == block

    class Line:
        address = 4

    assert cache.malloc(500, Line()) == block + 1024
    for wrong in ("copies", -1, None, 1.0):
        with pytest.raises(WrongTypeError, match="a stream must be a cuda.Stream or its address"):
            cache.malloc(1, wrong)


def test_a_chosen_stream_is_known_below_allocators_that_keep_none_apart():
    streams = FakeStreams()
    below = CachingAllocator(SystemAllocator(CUDAPlace(0)), streams)
    top = CachingAllocator(LimitAllocator(below, 1 << 30), streams)
    for stream, waited in ((0, {}), (4, {4: 1})):
        top.free(top.malloc(1000, stream))
        top.empty_cache()
        assert streams.put == streams.at == waited and below.stats().reserved == 0
    unaware = CachingAllocator(SystemAllocator(CUDAPlace(0)))
    for above in (CachingAllocator, lambda *stack: BuddyAllocator(stack[0], streams=stack[1])):
        top = above(LimitAllocator(unaware, 1 << 30), streams)
        with pytest.raises(ConfigError, match="was made without `streams`"):
            top.malloc(1000, 4)
        assert unaware.stats().live == top.stats().reserved == top.stats().live == 0


def test_a_place_gives_memory_for_a_chosen_stream():
    streams = FakeStreams()
    memory.register(CUDAPlace, SystemAllocator, streams=lambda place: streams, default="caching")
    try:
        address = memory.alloc(CUDAPlace(0), 100, "mine", stream=9)
        (segment,) = memory.allocator_of(CUDAPlace(0)).snapshot()
        assert (segment.stream, segment.blocks[0].name) == (9, "mine")
        memory.free(CUDAPlace(0), address)
        memory.use(CUDAPlace(0), "limit:1MiB+caching")
        with pytest.raises(ConfigError, match="a LimitAllocator gives no memory for a chosen stream; use a CachingAllocator"):
            memory.alloc(CUDAPlace(0), 100, stream=9)
    finally:
        memory.unregister(CUDAPlace)


class CachingMachine(RuleBasedStateMachine):
    """The model: live blocks with size and streams, and blocks that wait for events."""

    blocks = Bundle("blocks")

    def __init__(self):
        super().__init__()
        self.streams = FakeStreams()
        self.limit = 120 * MIB
        self.cache, self.upstream = make(self.limit, self.streams)
        self.live = {}  # address -> (bytes, other streams)
        self.waiting = {}  # address -> (bytes, {stream: number})

    def settle(self):
        """Forget the waiting blocks whose events are all done: they may be given out."""
        for address, (_, events) in list(self.waiting.items()):
            if all(self.streams.at.get(stream, 0) >= number for stream, number in events.items()):
                del self.waiting[address]

    @rule(target=blocks, nbytes=st.one_of(st.integers(0, 5000), st.integers(0, 2 * MIB), st.integers(0, 40 * MIB)))
    def allocate(self, nbytes):
        try:
            address = self.cache.alloc(nbytes)
        except OutOfMemoryError:
            # Everything that could be given back was: only segments with live blocks are left, and no room beside them.
            self.settle()
            assert not self.waiting
            for segment in self.cache.snapshot():
                assert any(b.state == "live" for b in segment.blocks)
            assert self.upstream.stats().live + max(2 * MIB, nbytes) > self.limit - 2 * MIB
            return None
        self.settle()
        busy = [(a, n) for a, (n, _) in [*self.live.items(), *self.waiting.items()]]
        assert all(address + max(nbytes, 1) <= a or a + max(n, 1) <= address for a, n in busy)
        (segment,) = (s for s in self.cache.snapshot() if s.address <= address < s.address + s.nbytes)
        assert segment.stream == self.streams.stream and address + nbytes <= segment.address + segment.nbytes
        self.live[address] = nbytes, set()
        return address

    @rule(block=consumes(blocks))
    def release(self, block):
        if block in self.live:
            nbytes, others = self.live.pop(block)
            self.cache.free(block)
            if others:
                self.waiting[block] = nbytes, {s: self.streams.put[s] for s in others}
            with pytest.raises(PointerError):
                self.cache.free(block)

    @rule(block=blocks, stream=st.integers(0, 3))
    def use_elsewhere(self, block, stream):
        if block in self.live:
            self.cache.record_stream(block, stream)
            (own,) = (s.stream for s in self.cache.snapshot() if s.address <= block < s.address + s.nbytes)
            if stream != own:
                self.live[block][1].add(stream)

    @rule(stream=st.integers(0, 3))
    def switch(self, stream):
        self.streams.stream = stream

    @rule(stream=st.integers(0, 3))
    def get_on(self, stream):
        self.streams.reach(stream)

    @rule(block=blocks, offset=st.sampled_from([1, 256, 512, 4096]))
    def misuse(self, block, offset):
        if block is not None and block + offset not in self.live:
            with pytest.raises(PointerError):
                self.cache.free(block + offset)

    @precondition(lambda self: self.waiting)
    @rule()
    def a_waiting_block_is_not_listed_as_free(self):
        self.settle()
        states = {b.address: b.state for s in self.cache.snapshot() for b in s.blocks}
        assert all(states[address] == "waiting" for address in self.waiting)

    @rule()
    def empty_cache(self):
        self.cache.empty_cache()
        self.waiting.clear()
        assert all(any(b.state == "live" for b in s.blocks) for s in self.cache.snapshot())

    @invariant()
    def books_agree(self):
        stats, segments = self.cache.stats(), self.cache.snapshot()
        parts = [b for s in segments for b in s.blocks]
        assert (stats.count, stats.live) == (len(self.live), sum(n for n, _ in self.live.values()))
        assert {b.address: b.requested for b in parts if b.state == "live"} == {a: n for a, (n, _) in self.live.items()}
        assert stats.reserved == self.upstream.stats().live == sum(s.nbytes for s in segments) <= self.limit
        assert stats.waiting == sum(b.nbytes for b in parts if b.state == "waiting")
        assert stats.largest_free == max([b.nbytes for b in parts if b.state == "free"], default=0)
        for segment in segments:
            at = segment.address
            for block, following in zip(segment.blocks, [*segment.blocks[1:], None]):
                assert block.address == at and block.nbytes % 512 == 0 and block.nbytes >= max(block.requested, 512)
                assert following is None or (block.state, following.state) != ("free", "free")
                at += block.nbytes

    def teardown(self):
        for block in list(self.live):
            self.cache.free(block)
        self.cache.empty_cache()
        assert self.upstream.stats().live == self.upstream.stats().count == 0


TestCachingMachine = CachingMachine.TestCase
TestCachingMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
