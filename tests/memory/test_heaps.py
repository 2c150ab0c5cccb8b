"""Allocators above another one, of every kind: misuse, failures below them, streams, red zones, threads, events, errors, guards.

test_random_allocators.py compares their addresses, blocks and statistics with a second implementation of the rules.
"""

import ctypes
import gc
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from doubles import FakeStreams
from heaps import KINDS, POOLS, make_heap, make_streamed_heap

from minicaffe import memory
from minicaffe.errors import ConfigError, Error, OutOfMemoryError, PointerError, WrongTypeError
from minicaffe.memory import Allocator, Buffer, CachingAllocator, CPUPlace, CUDAPlace, LimitAllocator, SystemAllocator
from minicaffe.memory.red_zones import RedZones
from minicaffe.memory.registry import Registry

MIB = 1 << 20
BASE = 1 << 40
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_wrong_pointers(kind):
    heap = make_heap(kind)
    block = heap.alloc(1000)

    def check_refused(wrong, words):
        for call in heap.free, lambda address: heap.record_stream(address, 1):
            with pytest.raises(PointerError, match=f"no live block starts at {wrong:#x}{words}"):
                call(wrong)

    for wrong in block + 1, block + 512, block + 1024, 64, 12345 * 64:
        check_refused(wrong, ": .*, lies inside a block, or comes from another")
    heap.free(block)
    check_refused(block, "")
    heap.empty_cache()
    check_refused(block, "")
    assert heap.stats()[:2] == (0, 1000)
    for allocator in heap, heap.upstream:
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(allocator)


@every_kind
@pytest.mark.parametrize("nbytes", [2**64 - 1, 2**64 - 8, 2**64 - 9, 2**63, 2**62])
def test_sizes_beyond_all_memory(kind, nbytes):
    """With its guard a buddy's block of the first two has more than 2^64 bytes."""
    heap = make_heap(kind)
    with pytest.raises(OutOfMemoryError, match=f"no memory for {nbytes:,} bytes"):
        heap.alloc(nbytes)
    assert heap.stats()[:4] == (0, 0, 0, 0) and heap.upstream.stats().live == 0


@pytest.mark.parametrize("kind", ["caching", "buddy"])
def test_snapshot_and_another_thread(kind, monkeypatch):
    """Another thread may free blocks and segments whenever `snapshot` runs Python code."""
    heap = make_heap(kind)
    blocks = [heap.alloc(3 * MIB if kind == "caching" else 900) for _ in range(8)]
    segments = sys.modules[type(heap).__module__]
    block_of = segments.SegmentBlock

    def block_then_free(*fields):
        while blocks:
            heap.free(blocks.pop())
        heap.empty_cache()
        return block_of(*fields)

    monkeypatch.setattr(segments, "SegmentBlock", block_then_free)
    found = heap.snapshot()
    assert len(found) >= 2 and [block.state for segment in found for block in segment.blocks].count("live") == 8
    assert heap.stats().reserved == 0 and heap.snapshot() == []


@pytest.mark.slow(1)
@pytest.mark.parametrize("kind", ["caching", "pinned", "buddy"])
def test_many_threads(kind):
    """Blocks go from thread to thread with what was written, by buffers that free themselves."""
    heap, shared = make_heap(kind, upstream=LimitAllocator(SystemAllocator(), 200 * MIB)), []
    used = memory.used(CPUPlace())

    def work(seed):
        for size in np.random.default_rng(seed).integers(0, 6000 if kind == "buddy" else 3 * MIB, 300):
            view = np.ndarray(int(size), np.uint8, buffer=Buffer(heap, int(size), f"thread {seed}"))
            view[::64] = seed
            shared.append(view)
            if len(shared) > 20:
                found = shared.pop(0)       # most likely another thread's
                assert found.size == 0 or (found[::64] == found[0]).all()
            if size % 16 < 2:
                (heap.snapshot if size % 16 else heap.empty_cache)()

    with memory.record() as events:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(1, 5)))
        shared.clear()
        gc.collect()
    kinds = [event.kind for event in events]
    assert kinds.count("alloc") == kinds.count("free") == 1200
    assert heap.stats().count == 0 and memory.used(CPUPlace()) == used
    heap.empty_cache()
    assert heap.stats().reserved == heap.upstream.stats().live == 0


# ---- streams


@every_kind
def test_memory_for_a_stream(kind):
    heap, streams = make_streamed_heap(kind)

    class Line:
        address = 4

    block = heap.malloc(1000, 4)
    heap.free(block)
    assert heap.alloc(1000) != block
    streams.reach(4)
    again = heap.malloc(1000, Line())
    assert again == block or kind == "pinned"      # whose blocks belong to no stream
    for wrong in "copies", -1, None, 1.0:
        for call in lambda wrong: heap.malloc(1, wrong), lambda wrong: heap.record_stream(again, wrong):
            with pytest.raises(WrongTypeError, match=r"a stream must be a cuda.Stream or its address \(an int, at least 0\), got "):
                call(wrong)


@every_kind
def test_without_streams(kind):
    heap = make_heap(kind)
    block = heap.alloc(1)
    if kind != "pinned":
        heap.record_stream(block, 0)    # the only one there is
    for call in lambda: heap.record_stream(block, 1), lambda: heap.malloc(1, 1):
        with pytest.raises(ConfigError, match="was made without `streams`, so it supports only one stream"):
            call()
    assert heap.stats().count == 1
    heap.free(block)
    for method, arguments in ("current", ()), ("record", (0,)), ("done", (None,)), ("wait", (None,)):
        with pytest.raises(Error, match=f"must override {method}"):
            getattr(memory.StreamOrder(), method)(*arguments)


@pytest.mark.parametrize("kind", [CachingAllocator, memory.BuddyAllocator])
def test_pageable_memory_waits_for_no_stream(kind):
    streams = FakeStreams()
    heap = kind(SystemAllocator(), streams=streams)
    address = heap.alloc(5)
    heap.record_stream(address, 1)
    heap.free(address)
    assert heap.alloc(5) == address and streams.calls == []


@pytest.mark.parametrize("kind", ["caching", "pinned", "buddy"])
def test_streams_may_come_back(kind):
    """What streams do may run other code, as another thread would: it finds the books in order."""
    class Busy(FakeStreams):
        depth = 0

        def _call(self, name):
            super()._call(name)
            if self.depth < 2:
                self.depth += 1
                inner = heap.alloc(700)
                heap.record_stream(inner, 4)
                heap.free(inner)
                if taken:
                    heap.free(taken.pop())
                if name == "wait":
                    heap.empty_cache()
                assert kind == "buddy" or sum(b.nbytes for s in heap.snapshot() for b in s.blocks) == heap.stats().reserved
                self.depth -= 1

    streams = Busy()
    heap, taken = make_heap(kind, streams=streams), []
    taken += [heap.alloc(n) for n in [512, 1024, 3 * MIB] * 20]
    while taken:
        block = taken.pop()
        heap.record_stream(block, 1)
        heap.free(block)
        if len(taken) % 3 == 0:
            streams.reach(1)
        heap.free(heap.alloc(len(taken) * 1000))
    for _ in range(2):      # the first one made more to wait for
        heap.empty_cache()
    assert heap.stats().live == heap.stats().count == 0 and heap.stats().reserved == heap.upstream.stats().live


@pytest.mark.parametrize("above", ["caching", "buddy"])
def test_stream_known_below(above):
    """Allocators that keep no streams apart pass them on; one made without streams refuses."""
    streams = FakeStreams()
    below = CachingAllocator(SystemAllocator(CUDAPlace(0)), streams)
    top = make_heap(above, upstream=LimitAllocator(below, 1 << 30), streams=streams)
    for stream, waited in (0, {}), (4, {4: 1}):
        top.free(top.malloc(1000, stream))
        top.empty_cache()
        assert streams.put == streams.at == waited and below.stats().reserved == 0
    unaware = CachingAllocator(SystemAllocator(CUDAPlace(0)))
    top = make_heap(above, upstream=LimitAllocator(unaware, 1 << 30), streams=streams)
    with pytest.raises(ConfigError, match="was made without `streams`"):
        top.malloc(1000, 4)
    assert unaware.stats().live == top.stats().reserved == top.stats().live == 0


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


# ---- red zones


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


@pytest.mark.parametrize(("kind", "pool", "chunk"), [("buddy", 1024, 1024), ("caching", 2 * MIB, 576), ("pinned", None, None)])
def test_red_zones(kind, pool, chunk):
    """A new pool is closed as a whole, so that a request opens no more than its bytes; then a block that is freed."""
    upstream = ZonedUpstream()
    heap = make_heap(kind, upstream=upstream)
    block = heap.alloc(500) - BASE
    heap.free(BASE + block)
    assert upstream.marks == ([] if pool is None else [("close", 0, pool), ("open", block, 500), ("close", block, chunk)])


# ---- caches


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
        "hits": 1, "upstream_allocations": 2, "retries": 0, "waiting": 0, "largest_free": 30 * MIB}


def test_snapshot_names_the_blobs():
    """Of a buddy's block that waits for a stream the name is gone."""
    cache, (buddy, _) = make_heap("caching"), make_streamed_heap("buddy")
    data, diff = Buffer(cache, 700, "conv1 data"), Buffer(cache, 3 * MIB, "conv1 diff")
    small, large = sorted(cache.snapshot(), key=lambda s: s.nbytes)
    assert small.blocks == [(data.address, 1024, 700, "live", "conv1 data"), (data.address + 1024, 2 * MIB - 1024, 0, "free", "")]
    assert diff.address == large.address and [(b.name, b.state) for b in large.blocks] == [("conv1 diff", "live"), ("", "free")]
    weights, other = Buffer(buddy, 100, "weights"), Buffer(buddy, 300, "other")
    late = other.address
    buddy.record_stream(late, 5)
    del other
    (pool,) = buddy.snapshot()
    blocks = {block.address: block[1:] for block in pool.blocks if block.state != "free"}
    assert blocks == {weights.address: (128, 100, "live", "weights"), late: (512, 0, "waiting", "")}


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
        "33,554,432 bytes are reserved, the largest free block in them has 2,094,080; largest holders: conv1 data 31,457,280, ")
    assert "empty_cache()" in str(error) and "close other programs" in str(error)
    del kept, also
    cache.free(cache.alloc(50 * MIB))


def test_host_pool_gives_memory_back():
    """An arena on plain memory; any other allocator itself, from the next call on."""
    registry = Registry()
    pool = registry.host_pool()
    pool.free(pool.alloc(3 * MIB))
    assert registry.host_pool() is pool and pool.stats().reserved
    assert isinstance(pool, CachingAllocator) and pool.upstream is registry.allocator(CPUPlace())
    registry.empty_cache(CPUPlace())
    assert not pool.stats().reserved
    for name in "buddy", "caching", "limit:64MiB":
        registry.use(CPUPlace(), name)
        assert registry.host_pool() is registry.allocator(CPUPlace()) or name.startswith("limit")
        assert pool not in registry.all_in_use()
    limited = registry.host_pool()      # of which free blocks take nothing
    limited.free(limited.alloc(3 * MIB))
    registry.free(CPUPlace(), registry.alloc(CPUPlace(), 64 * MIB))
    with pytest.raises(OutOfMemoryError):
        limited.alloc(65 * MIB)
    registry.use(CPUPlace(), None)
    assert registry.host_pool() is not pool and registry.host_pool().upstream is registry.allocator(CPUPlace())


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


# ---- buddies in host memory


@pytest.fixture
def buddy():
    """One whose limit is that of its first pool."""
    return memory.BuddyAllocator(LimitAllocator(SystemAllocator(), 1024), **POOLS)


def test_events_of_a_buddy(buddy):
    with memory.record() as events:
        blocks = [buddy.alloc(n) for n in (128 - 8, 64, 100, 200)]      # the first with its guard is exactly one chunk
        for block in blocks:
            buddy.free(block)
        whole = buddy.alloc(1024 - 8)
        buddy.free(whole)
        buddy.empty_cache()
    assert abs(blocks[1] - blocks[0]) == 128        # its buddy
    assert [(e.kind, e.nbytes) for e in events] == [
        ("pool taken", 1024), ("split", 512), ("split", 256), ("split", 128), ("split", 128), ("split", 256), ("merge", 256), ("merge", 256),
        ("merge", 512), ("merge", 512), ("merge", 1024), ("pool given back", 1024)]
    assert events[0].address == events[-1].address == whole == min(blocks)


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


def test_a_long_overrun_harms_no_books(buddy):
    first, second = sorted(buddy.alloc(64) for _ in range(2))
    ctypes.memset(first + 64, 0xEE, 900 - 128)
    for block in first, second:
        with pytest.raises(PointerError, match="written beyond its end"):
            buddy.free(block)
    for block in [buddy.alloc(100) for _ in range(6)]:
        buddy.free(block)
    assert buddy.stats().count == 2


def test_overwritten_free_block(buddy):
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
