"""Allocators above another one, of every kind: misuse, failures below them, streams, red zones, threads, and their end.

test_random_allocators.py compares their addresses, blocks and statistics with a second implementation of the rules.
"""

import ctypes
import gc
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from doubles import FakeStreams
from heaps import KINDS, make_heap, make_streamed_heap

from minicaffe import memory
from minicaffe.errors import ConfigError, Error, OutOfMemoryError, PointerError, WrongTypeError
from minicaffe.memory import Allocator, Buffer, CachingAllocator, CPUPlace, CUDAPlace, LimitAllocator, StreamOrder, SystemAllocator
from minicaffe.memory.red_zones import RedZones

MIB = 1 << 20
BASE = 1 << 40
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_wrong_pointers(kind):
    heap = make_heap(kind)
    block = heap.alloc(1000)
    for wrong in block + 1, block + 512, block + 1024, 64, 12345 * 64:
        for call in heap.free, lambda address: heap.record_stream(address, 1):
            with pytest.raises(PointerError, match=f"no live block starts at {wrong:#x}: .*, lies inside a block, or comes from another"):
                call(wrong)
    heap.free(block)
    for emptied in False, True:
        if emptied:
            heap.empty_cache()
        for call in heap.free, lambda address: heap.record_stream(address, 1):
            with pytest.raises(PointerError, match=f"no live block starts at {block:#x}"):
                call(block)
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
            if size % 16 == 0:
                heap.empty_cache()
            if size % 16 == 1:
                heap.snapshot()

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
            getattr(StreamOrder(), method)(*arguments)


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
    heap.empty_cache()
    heap.empty_cache()      # the first one made more to wait for
    assert heap.stats().count == heap.stats().live == 0
    assert heap.stats().reserved == heap.upstream.stats().live


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
