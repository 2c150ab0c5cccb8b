"""How fast the processor or a GPU copies large arrays, in bytes each second, read and written."""

import functools
import timeit
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from minicaffe import cuda, sim
from minicaffe.memory import Buffer, CUDAPlace
from minicaffe.memory.registry import registry


@functools.cache
def host_bandwidth(threads):
    """Measure the copies of `threads` threads."""
    source, target = np.ones(1 << 23, np.float32), np.zeros(1 << 23, np.float32)    # 32 MiB each: more than caches of a core hold
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads)))
    with ThreadPoolExecutor(threads) as pool:
        return _peak_rate(lambda: list(pool.map(lambda part: np.copyto(*part), parts)), 2 * source.nbytes)


@functools.cache
def device_bandwidth(index):
    """Measure the copies of device `index` within its memory. Raises OutOfMemoryError if there is none for them."""
    place = CUDAPlace(index)
    nbytes = 1 << 20 if sim.selected() else 1 << 28
    allocator, side, device = registry.allocator(place, "plain"), registry.device_side(place), cuda.get_device(index)
    source, target = Buffer(allocator, nbytes), Buffer(allocator, nbytes)
    side.zero(source.address, nbytes)

    def copies():
        for _ in range(10):
            side.copy_within(target.address, source.address, nbytes)
        device.synchronize()

    return _peak_rate(copies, 20 * nbytes)


def _peak_rate(work, amount):
    """Return the amount each second of the fastest of some runs."""
    return int(amount / min(timeit.repeat(work, number=1, repeat=6)))
