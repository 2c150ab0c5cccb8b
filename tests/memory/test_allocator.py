"""Allocators, buffers, and the registry by place."""

import copy
import gc
import pickle
import random

import numpy as np
import pytest

from minicaffe import memory
from minicaffe.errors import ConfigError, DependencyError, OutOfMemoryError, PointerError, WrongTypeError
from minicaffe.memory import Allocator, Buffer, CachingAllocator, CPUPlace, CUDAPlace, LimitAllocator, PinnedPlace, SystemAllocator
from minicaffe.memory.allocator import nanoseconds
from minicaffe.memory.registry import registry


def test_places_are_values():
    assert CUDAPlace(1) == CUDAPlace(1) != CUDAPlace(0)
    assert len({CPUPlace(), CPUPlace(), PinnedPlace(), CUDAPlace(0), CUDAPlace()}) == 3
    assert [repr(p) for p in (CPUPlace(), PinnedPlace(), CUDAPlace(2))] == ["CPUPlace()", "PinnedPlace()", "CUDAPlace(2)"]
    with pytest.raises(AttributeError):
        CUDAPlace(0).device = 1
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        CUDAPlace(-1)


@pytest.mark.parametrize("wrap", [SystemAllocator, lambda: LimitAllocator(SystemAllocator(), 1 << 30), lambda: memory.FailAllocator(SystemAllocator(), 0),
                                  lambda: memory.BuddyAllocator(SystemAllocator())], ids=["system", "limit", "fail", "buddy"])
def test_every_allocator_keeps_the_contract(wrap):
    allocator = wrap()
    sizes = [0, 0, 1, 63, 64, 65, 4096, 1 << 20, (1 << 26) + 1]
    addresses = [allocator.alloc(n) for n in sizes]
    assert len(set(addresses)) == len(sizes)
    assert all(a % 64 == 0 and a for a in addresses)
    stats = allocator.stats()
    assert (stats.live, stats.peak, stats.count, stats.allocations) == (sum(sizes), sum(sizes), len(sizes), len(sizes))
    assert stats.reserved >= stats.live
    for address in addresses:
        allocator.free(address)
        with pytest.raises(PointerError):
            allocator.free(address)
    assert (allocator.stats().live, allocator.stats().count) == (0, 0)
    assert allocator.stats().peak == sum(sizes)
    stranger = SystemAllocator()
    address = stranger.alloc(64)
    with pytest.raises(PointerError):
        allocator.free(address)
    stranger.free(address)


def test_limit():
    limited = LimitAllocator(SystemAllocator(), 1000)
    first = limited.alloc(600)
    with pytest.raises(OutOfMemoryError, match=r"no memory for 401 bytes; live are 600 bytes, the limit is 1,000 bytes"):
        limited.alloc(401)
    for address in limited.alloc(400), first:
        limited.free(address)
    limited.free(limited.alloc(1000))
    with pytest.raises(MemoryError):  # the error is Python's MemoryError, too
        limited.alloc(1 << 63)


def test_limit_during_a_call():
    """The block that is too much then goes back."""
    class Reenters(Allocator):
        def alloc(self, nbytes):
            address = super().alloc(nbytes)
            if asked:
                taken.append(limited.alloc(asked.pop()))
            return address

    below, asked, taken = SystemAllocator(), [], []
    limited = LimitAllocator(Reenters(CPUPlace(), below), 100)
    for nbytes, fits in (40, True), (41, False):
        asked.append(60)
        if fits:
            taken.append(limited.alloc(nbytes))
        else:
            with pytest.raises(OutOfMemoryError, match="no memory for 41 bytes; live are 60 bytes, the limit is 100 bytes"):
                limited.alloc(nbytes)
        assert limited.stats().live == below.stats().live == (100 if fits else 60)
        assert [limited.stats().count, below.stats().count] == [len(taken)] * 2
        while taken:
            limited.free(taken.pop())


def test_arguments_of_a_plain_allocator():
    allocator = SystemAllocator()
    for nbytes in -1, "10", 1 << 64:
        with pytest.raises(WrongTypeError, match="nbytes must be an int from 0 to below 2"):
            allocator.malloc(nbytes, 0)
    with pytest.raises(ConfigError, match="a SystemAllocator gives no memory for a chosen stream; use a CachingAllocator or Buddy"):
        allocator.malloc(10, 0)
    for address in -1, "10":
        with pytest.raises(WrongTypeError, match="address must be "):
            allocator.record_stream(address, 0)
    for alignment in "4096", 128.0, None:
        with pytest.raises(ConfigError, match="SystemAllocator.alignment: must be a power of two from 64 to 2"):
            SystemAllocator(alignment=alignment)


def test_time_of_an_allocation(host):
    assert nanoseconds(host, 64, 10) > 0
    assert host.stats() == (0, 64, 0, 0, 10)


def test_buffer_freed_with_last_view(host):
    view = np.ndarray((3, 4), np.float32, buffer=Buffer(host, 48, "b"))
    part = view[1:, ::2]
    part[...] = 7
    del view
    gc.collect()
    assert host.stats().live == 48
    assert (part == 7).all()
    del part
    assert host.stats().live == 0


def test_buffer_refusals(host):
    buffer, before = Buffer(host, 8), memory.used(CPUPlace())
    with pytest.raises(ConfigError, match="made once"):
        buffer.__init__(host, 16)
    for refuse in copy.copy, copy.deepcopy, pickle.dumps:
        with pytest.raises(TypeError, match="cannot pickle"):
            refuse(buffer)
    with pytest.raises(BufferError, match="device memory"):
        memoryview(Buffer(SystemAllocator(CUDAPlace(0)), 8))
    limited = LimitAllocator(SystemAllocator(), 10)
    with pytest.raises(OutOfMemoryError):
        Buffer(limited, 11)
    assert limited.stats()[:2] == (0, 0) and memory.used(CPUPlace()) == before


def test_alloc_free_used(host):
    before = memory.used(CPUPlace())
    address = memory.alloc(CPUPlace(), 1000, "mine")
    assert memory.used(CPUPlace()) == before + 1000 and memory.stats(CPUPlace()).reserved == 1000
    assert memory.reporter.Block(address, 1000, CPUPlace(), "mine") in memory.reporter.live()
    with pytest.raises(PointerError):
        memory.free(PinnedPlace(), address)
    memory.free(CPUPlace(), address)
    with pytest.raises(PointerError, match="not a live block of CPUPlace"):
        memory.free(CPUPlace(), address)
    assert memory.used(CPUPlace()) == before and host.stats().live == 0
    for wrong, place in (CUDAPlace(0), memory.set_host_place), (CPUPlace(), memory.set_device_place):
        with pytest.raises(ConfigError, match="must be CPUPlace|must be a CUDAPlace"):
            place(wrong)


def test_provider_of_each_place():
    memory.register(CUDAPlace, SystemAllocator)
    one, two = (memory.alloc(CUDAPlace(i), 100 * (i + 1)) for i in range(2))
    assert memory.used(CUDAPlace(0)) == memory.stats(CUDAPlace(0)).reserved == 100
    assert memory.used(CUDAPlace(1)) == 200
    with pytest.raises(ConfigError, match="no DeviceSide to copy to it"):
        memory.SyncedMemory(4).gpu_data()
    memory.unregister(CUDAPlace)
    memory.free(CUDAPlace(0), one)  # a block keeps its allocator
    memory.free(CUDAPlace(1), two)
    assert memory.used(CUDAPlace(1)) == 0
    for place in CUDAPlace(0), CUDAPlace(7), PinnedPlace():
        before = memory.used(place)
        with pytest.raises(DependencyError, match="no CUDA provider is registered; install"):
            memory.alloc(place, 1)
        assert memory.used(place) == before


def test_pool_of_the_host(host):
    """An arena on plain memory; any other allocator itself, from the next call on."""
    registry.use(CPUPlace(), None)
    plain = registry.host_pool()
    assert isinstance(plain, CachingAllocator) and plain.upstream is registry.allocator(CPUPlace()) and registry.host_pool() is plain
    for name in ("buddy", "caching"):
        registry.use(CPUPlace(), name)
        assert registry.host_pool() is registry.allocator(CPUPlace())
        assert plain not in registry.all_in_use()
    registry.use(CPUPlace(), None)
    again = registry.host_pool()
    assert again is not plain and again.upstream is registry.allocator(CPUPlace())


def test_cycles_collected_before_failure():
    """The request succeeds then; and where it still fails, the error names no holder that is gone."""
    unit = 1 << 20      # so that the blocks are above those that other tests have left alive; they are never written
    allocator = LimitAllocator(SystemAllocator(), 1000 * unit)
    gc.disable()
    try:
        for kept, asked, fits in (0, 900 * unit, True), (500 * unit, 600 * unit, False):
            blocks = [Buffer(allocator, kept, "kept")]
            ring = [Buffer(allocator, 400 * unit, "unreachable")]
            ring.append(ring)
            del ring
            if fits:
                blocks.append(Buffer(allocator, asked))
            else:
                with pytest.raises(OutOfMemoryError, match="live are 524,288,000 bytes") as info:
                    Buffer(allocator, asked)
                assert "kept 524,288,000" in str(info.value) and "unreachable" not in str(info.value)
            del blocks
    finally:
        gc.enable()


def test_largest_holders_by_name(host):
    def holders():
        with pytest.raises(OutOfMemoryError) as error:
            LimitAllocator(host, 10).alloc(11)
        return error.value.holders, str(error.value)

    gc.collect()
    pick, others = random.Random(3), dict(holders()[0])     # nets of other tests may be alive
    names = [*(f"holder {letter}" for letter in "abcdefghijklmnop"), *[""] * (not others)]
    for _ in range(20):
        buffers = [Buffer(host, pick.choice([64, 128, 1000, 5000]), pick.choice(names)) for _ in range(40)]
        held = dict(others)
        for buffer in buffers:
            held[buffer.name] = held.get(buffer.name, 0) + buffer.nbytes
        expected = sorted(held.items(), key=lambda item: (-item[1], item[0]))[:10]
        found, message = holders()
        assert found == expected
        assert "largest holders: " + ", ".join(f"{name or '(no name)'} {nbytes:,}" for name, nbytes in expected) in message
