"""The classes of docs/own_allocators.md do what the page says; test_docs.py runs the page as it is."""

import re
from pathlib import Path

import pytest

from minicaffe import memory
from minicaffe.errors import OutOfMemoryError
from minicaffe.memory import Buffer, CachingAllocator, CPUPlace, CUDAPlace, PinnedPlace, SystemAllocator

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own_allocators.md").read_text()


@pytest.fixture(scope="module")
def classes():
    """The page's classes by name: the imports and class definitions of its blocks of code."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S))
    names = {}
    exec("\n".join(re.findall(r"^(?:import .*|from .*|class \w+\(Allocator\):\n(?:(?:    .*)?\n)+)", code, re.M)), names)
    return names


@pytest.mark.parametrize("place", [CPUPlace(), PinnedPlace(), CUDAPlace(0)], ids=repr)
def test_nested_and_below_a_cache(classes, place, capsys):
    source = SystemAllocator(place)
    limit = classes["Limit"](source, 100_000)
    log = classes["Log"](limit)
    blocks = [Buffer(log, 30_000) for _ in range(3)]
    with pytest.raises(OutOfMemoryError, match="no 30,000 bytes: 90,000 of 100,000 are taken"):
        Buffer(log, 30_000)
    addresses = [block.address for block in blocks]
    del blocks[0]
    blocks.append(Buffer(log, 30_000))
    blocks.clear()
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [f"alloc 30,000 bytes at {address:#x}" for address in addresses] [:3] + [f"free {addresses[0]:#x}"]
    assert [line.split()[0] for line in said] == ["alloc"] * 3 + ["free", "alloc"] + ["free"] * 3
    assert log.stats().live == limit.stats().live == source.stats().live == 0
    cache = CachingAllocator(classes["Log"](source))
    Buffer(cache, 10)
    Buffer(cache, 20)
    assert capsys.readouterr().out.count("alloc 2,097,152 bytes") == 1


def test_fault_injector_repeats(classes):
    def failures(seed):
        bad, found = classes["Unlucky"](SystemAllocator(), 0.3, seed), []
        for i in range(50):
            try:
                Buffer(bad, 8)
            except OutOfMemoryError:
                found.append(i)
        return found

    assert failures(1) == failures(1) != failures(2) and 3 < len(failures(1)) < 30


def test_memory_of_its_own_serves_blobs(classes):
    mapped = classes["Mapped"]()
    before = memory.use(CPUPlace(), mapped)
    try:
        synced = memory.SyncedMemory(10_000)
        assert synced.cpu_data().address in mapped.maps and bytes(memoryview(synced.cpu_data())) == bytes(10_000)
    finally:
        memory.use(CPUPlace(), before)
    del synced
    assert mapped.maps == {} and mapped.stats().peak == 10_000
