"""Checks the answers of chapter8.py against the allocators."""

from chapter8 import best_fit, buddy_of, join, round_up

from minicaffe import memory


def test_round_up():
    assert [round_up(n, 512) for n in (1, 511, 512, 513)] == [512, 512, 512, 1024]
    for nbytes in (3, 500, 700, 1024, 5000):
        caching = memory.CachingAllocator(memory.SystemAllocator())
        first, second = caching.alloc(nbytes), caching.alloc(nbytes)
        assert second - first == round_up(nbytes, 512)      # neighbours in one segment
        caching.free(first), caching.free(second)


def test_buddy_of():
    buddy = memory.BuddyAllocator(memory.SystemAllocator(), min_chunk_size=64, max_chunk_size=1024)
    addresses = [buddy.alloc(50) for _ in range(16)]        # sixteen chunks of 64 bytes: the pool is full
    base = min(addresses)
    for address in sorted(addresses):
        if address not in addresses:
            continue
        other = base + buddy_of(address - base, 64)
        assert other in addresses
        buddy.free(address)
        with memory.record() as events:
            buddy.free(other)
        assert any(event.kind == "merge" for event in events), "these two do not become one chunk"
        addresses = [a for a in addresses if a not in (address, other)]
    assert [buddy_of(0, 256), buddy_of(256, 256), buddy_of(768, 256)] == [256, 0, 512]


def test_best_fit():
    caching = memory.CachingAllocator(memory.SystemAllocator())
    sizes = [2048, 512, 1024, 512, 4096, 512, 1024, 512]
    places = [caching.alloc(size) for size in sizes]
    base, gaps = places[0], (0, 2, 4, 6)
    for gap in gaps:
        caching.free(places[gap])
    free = [(places[gap] - base, sizes[gap]) for gap in gaps]
    for wanted in (1024, 600, 4000, 400):       # the first fits exactly
        taken = best_fit(free, wanted)
        assert base + taken == caching.alloc(wanted), wanted
        free = [block for block in free if block[0] != taken]
    assert best_fit([(0, 512)], 513) is None
    for place in places:
        caching.free(place)


def test_join():
    assert join([(0, 4), (4, 4), (12, 4)]) == [(0, 8), (12, 4)]
    assert join([(0, 4), (4, 4), (8, 2), (10, 6)]) == [(0, 16)]
    assert join([(8, 1)]) == [(8, 1)] and join([]) == []
