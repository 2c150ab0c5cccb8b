"""Allocations, copies and fills: what is refused at which byte, what there is of memory, what was written."""

import contextlib
import itertools
import random

import numpy as np
from sim_runner import configure, cu, raises

GRANULE, PATTERN_FREE = 256, range(1, 100)     # values whose bytes the fill pattern of new memory does not have


def memory_counts_in_granules_of_256_bytes():
    """The last whole one can be used, and what is freed is there again."""
    for rest in (0, 1, 100, 255):
        total = 40 * GRANULE + rest
        configure(f"memory={total}")
        live = [int(cu.MemAlloc(size)) for size in (1, 255, 256, 257, 34 * GRANULE)]    # 39 granules
        for size in (257, total, total + 1):
            with raises("OUT_OF_MEMORY", f"cuMemAlloc: {size} bytes asked, {GRANULE + rest} of {total} free on device 0"):
                cu.MemAlloc(size)
        live.append(int(cu.MemAlloc(256)))
        assert cu.MemGetInfo() == (rest, total) and not any(address % GRANULE for address in live)
        with raises("OUT_OF_MEMORY", f"cuMemAlloc: 1 bytes asked, {rest} of {total} free on device 0"):
            cu.MemAlloc(1)
        for i, address in enumerate(live):
            cu.MemFree(address)
            assert cu.MemGetInfo()[0] == rest + GRANULE * [1, 2, 3, 5, 39, 40][i]
    configure("memory=4GiB")


def copies_are_refused_where_they_reach_outside():
    """Between two allocations and within one: the first and last bytes may be copied, one more may not; nor may the sides overlap."""
    sizes, host = [1000, 256], int(cu.MemHostAlloc(512, 0))
    places = [int(cu.MemAlloc(size)) for size in sizes]
    for to, source, size in itertools.product((0, 1), (0, 1), (1, 4, 255, 256, 300, 1000)):
        for at in (n for n in (0, sizes[to] - size, sizes[to] - size + 1) if n >= 0):
            ends = {0, sizes[source] - size, sizes[source] - size + 1, at + size, at - size, at - size + 1}
            for start in (n for n in ends if n >= 0):
                outside = at + size > sizes[to] or start + size > sizes[source]
                overlap = to == source and at < start + size and start < at + size
                words = "out of bounds" if outside else "source and destination overlap"
                with raises("INVALID_VALUE", words) if outside or overlap else contextlib.nullcontext():
                    cu.MemcpyDtoDAsync(places[to] + at, places[source] + start, size, 0)
            for offset in (n for n in (0, 512 - size, min(511, 513 - size)) if n >= 0):
                inside = at + size <= sizes[to] and offset + size <= 512
                with contextlib.nullcontext() if inside else raises("INVALID_VALUE", "out of bounds"):
                    cu.MemcpyDtoHAsync(host + offset, places[to] + at, size, 0)


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
