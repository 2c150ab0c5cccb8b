"""Random allocations, copies and fills against a model: what is refused at which byte, what there is of memory, what was written."""

import random

import numpy as np
from sim_runner import configure, cu, raises

GRANULE, PATTERN_FREE = 256, range(1, 100)     # values whose bytes the fill pattern of new memory does not have


def random_allocations_fit_into_the_memory_there_is():
    """Sizes count in whole granules of 256 bytes; the last whole one can be used, and what is freed is there again."""
    for rest in (0, 1, 100, 255):
        _fill(40 * GRANULE + rest)
    configure("memory=4GiB")


def _fill(total):
    configure(f"memory={total}")
    dice, live, used, peak, done = random.Random(total), {}, 0, 0, 0
    for _ in range(400):
        if live and dice.random() < 0.45:
            address = dice.choice(list(live))
            cu.MemFree(address)
            used -= live.pop(address)
        else:
            size = dice.choice([1, 255, 256, 257, 512, total - used, total - used + 1, dice.randrange(1, total), (total - used) // 2])
            rounded = -(-size // GRANULE) * GRANULE
            if size == 0:
                continue
            if used + rounded > total:
                with raises("OUT_OF_MEMORY", f"cuMemAlloc: {size} bytes asked, {total - used} of {total} free on device 0"):
                    cu.MemAlloc(size)
            else:
                address = int(cu.MemAlloc(size))
                assert address % GRANULE == 0 and address not in live
                live[address], used, done = rounded, used + rounded, done + 1
                cu.MemsetD8Async(address, 1, size, 0)
                with raises("INVALID_VALUE", "out of bounds"):
                    cu.MemsetD8Async(address, 1, size + 1, 0)
        peak = max(peak, used)
        assert [int(n) for n in cu.MemGetInfo()] == [total - used, total]
    assert peak == total // GRANULE * GRANULE and done > 60
    for address in live:
        cu.MemFree(address)


def random_copies_are_refused_where_they_reach_outside():
    """Between two allocations and within one: the first and last bytes may be copied, one more may not; nor may the sides overlap."""
    dice, sizes = random.Random(2), [1000, 256, 4096]
    places = [int(cu.MemAlloc(size)) for size in sizes]
    host = int(cu.MemHostAlloc(512, 0))
    refused = [0, 0]
    for _ in range(1500):
        to, source = dice.randrange(3), dice.randrange(3)
        size = dice.choice([1, 4, dice.randint(1, 300), sizes[to]])
        near = [0, sizes[to] - size, sizes[to] - size + 1, dice.randrange(sizes[to])]
        at = dice.choice([n for n in near if n >= 0])
        start = dice.choice([n for n in (0, sizes[source] - size, sizes[source] - size + 1, at + size, at - size, at - size + 1, dice.randrange(sizes[source])) if n >= 0])
        outside = at + size > sizes[to] or start + size > sizes[source]
        overlap = to == source and at < start + size and start < at + size
        if outside or overlap:
            refused[overlap and not outside] += 1
            with raises("INVALID_VALUE", "out of bounds" if outside else "source and destination overlap"):
                cu.MemcpyDtoDAsync(places[to] + at, places[source] + start, size, 0)
        else:
            cu.MemcpyDtoDAsync(places[to] + at, places[source] + start, size, 0)
        offset = dice.choice([0, max(0, 512 - size), min(511, max(0, 513 - size))])
        if at + size <= sizes[to] and offset + size <= 512:
            cu.MemcpyDtoHAsync(host + offset, places[to] + at, size, 0)
        else:
            with raises("INVALID_VALUE", "out of bounds"):
                cu.MemcpyDtoHAsync(host + offset, places[to] + at, size, 0)
    assert min(refused) > 50


def random_words_that_were_never_written_are_found():
    """A copy to the host is refused if a whole word of it, at a multiple of 4, was never written; copies carry that."""
    configure("uninitialized=1")
    dice, size = random.Random(3), 96
    found = [0, 0]
    for _ in range(40):
        places, written = [int(cu.MemAlloc(size)) for _ in range(2)], [np.zeros(size, bool) for _ in range(2)]
        for _ in range(25):
            one, begin = dice.randrange(2), dice.randrange(size)
            end = dice.randint(begin + 1, min(size, begin + 20))
            choice = dice.random()
            if choice < 0.35:
                cu.MemsetD8Async(places[one] + begin, dice.choice(PATTERN_FREE), end - begin, 0)
                written[one][begin:end] = True
            elif choice < 0.55:
                words = dice.randint(1, 6)
                begin, start = 4 * dice.randrange(24 - words + 1), 4 * dice.randrange(24 - words + 1)
                cu.MemcpyDtoDAsync(places[one] + begin, places[1 - one] + start, 4 * words, 0)
                written[one][begin:begin + 4 * words] = written[1 - one][start:start + 4 * words]
            else:
                first = next((i for i in range(-(-begin // 4) * 4, end - 3, 4) if not written[one][i:i + 4].any()), None)
                target = np.zeros(end - begin, np.uint8)
                found[first is None] += 1
                if first is None:
                    cu.MemcpyDtoH(target.ctypes.data, places[one] + begin, end - begin)
                else:
                    with raises("INVALID_VALUE", f"uninitialized: bytes {first} to {first + 3} of allocation #"):
                        cu.MemcpyDtoH(target.ctypes.data, places[one] + begin, end - begin)
        for place in places:
            cu.MemFree(place)
    assert min(found) > 50
