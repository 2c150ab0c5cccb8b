"""Allocators that take memory from another one, each kind above a limit, with streams that get on only when a test says so."""

from doubles import FakeStreams

from minicaffe.memory import (
    BuddyAllocator,
    CachingAllocator,
    CachingHostAllocator,
    CUDAPlace,
    LimitAllocator,
    PinnedPlace,
    SystemAllocator,
)

POOLS = {"min_chunk_size": 128, "max_chunk_size": 4096, "first_pool_size": 1024}
KINDS = {
    "caching": (CachingAllocator, CUDAPlace(0), {}),
    "thc": (CachingAllocator, CUDAPlace(0), {"constants": "thc"}),
    "pinned": (CachingHostAllocator, PinnedPlace(), {}),
    "buddy": (BuddyAllocator, CUDAPlace(0), POOLS),
    "pinned buddy": (BuddyAllocator, PinnedPlace(), POOLS),
}


def make_heap(kind, limit=1 << 40, upstream=None, streams=None, **options):
    """Return an allocator of a kind; its `upstream`, unless given, is a LimitAllocator above plain memory of the kind's place."""
    allocator, place, defaults = KINDS[kind]
    upstream = upstream or LimitAllocator(SystemAllocator(place), limit)
    return allocator(upstream, streams=streams, **{**defaults, **options})


def make_streamed_heap(kind, limit=1 << 40):
    """Return an allocator of a kind and its streams."""
    streams = FakeStreams()
    return make_heap(kind, limit, streams=streams), streams
