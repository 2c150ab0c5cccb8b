"""Allocators, buffers, and the registry by place."""

import contextlib
import copy
import gc
import os
import pickle
import random
import re

import numpy as np
import pytest

from minicaffe import memory
from minicaffe.errors import ConfigError, DependencyError, OutOfMemoryError, PointerError, WrongTypeError
from minicaffe.memory import Allocator, Buffer, CPUPlace, CUDAPlace, LimitAllocator, PinnedPlace, SystemAllocator
from minicaffe.memory.allocator import nanoseconds


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
    allocator, stranger = wrap(), SystemAllocator()
    sizes = [0, 0, 1, 63, 64, 65, 4096, 1 << 20, (1 << 26) + 1]
    addresses = [allocator.alloc(n) for n in sizes]
    assert len(set(addresses)) == len(sizes) and all(a % 64 == 0 and a for a in addresses)
    stats = allocator.stats()
    assert (stats.live, stats.peak, stats.count, stats.allocations) == (sum(sizes), sum(sizes), len(sizes), len(sizes))
    assert stats.reserved >= stats.live
    other = stranger.alloc(64)
    for address in addresses:
        allocator.free(address)
        for wrong in address, other:
            with pytest.raises(PointerError):
                allocator.free(wrong)
    assert allocator.stats()[:2] == (0, sum(sizes)) and allocator.stats().count == 0
    stranger.free(other)


def mapping_flags(address):
    """The flags of the mapping that holds an address, from /proc/self/smaps; empty where that does not exist."""
    found, here = "", False
    with contextlib.suppress(OSError), open("/proc/self/smaps") as lines:
        for line in lines:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                first, end = (int(part, 16) for part in line.split()[0].split("-"))
                here = first <= address < end
            elif here and line.startswith("VmFlags:"):
                found = line
    return found


def test_large_blocks_ask_for_huge_pages():
    """A block that is not cached asks Linux for pages of 2 MiB, from its first byte to its last."""
    if not os.path.exists("/sys/kernel/mm/transparent_hugepage"):
        pytest.skip("this system has no transparent huge pages")
    large = Buffer(SystemAllocator(), 64 << 20)
    for address in large.address, large.address + large.nbytes // 2, large.address + large.nbytes - 1:
        assert " hg" in mapping_flags(address)


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


@pytest.mark.parametrize("nbytes, live", [(40, 100), (41, 60)])
def test_limit_during_a_call(nbytes, live):
    """The block that is too much then goes back."""
    class Reenters(Allocator):
        def alloc(self, nbytes):
            address = super().alloc(nbytes)
            if nbytes != 60:
                limited.alloc(60)
            return address

    below = SystemAllocator()
    limited = LimitAllocator(Reenters(CPUPlace(), below), 100)
    refused = pytest.raises(OutOfMemoryError, match="no memory for 41 bytes; live are 60 bytes, the limit is 100 bytes")
    with refused if live == 60 else contextlib.nullcontext():
        limited.alloc(nbytes)
    assert limited.stats().live == below.stats().live == live and limited.stats().count == below.stats().count == (2 if live == 100 else 1)


def test_arguments_of_a_plain_allocator(host):
    for error, words, call, *wrong in (
            (WrongTypeError, "nbytes must be an int from 0 to below 2", lambda nbytes: host.malloc(nbytes, 0), -1, "10", 1 << 64),
            (ConfigError, "a SystemAllocator gives no memory for a chosen stream; use a CachingAllocator or Buddy", lambda n: host.malloc(n, 0), 10),
            (WrongTypeError, "address must be ", lambda address: host.record_stream(address, 0), -1, "10"),
            (ConfigError, "SystemAllocator.alignment: must be a power of two from 64 to 2", lambda n: SystemAllocator(alignment=n), "4096", 128.0, None)):
        for value in wrong:
            with pytest.raises(error, match=words):
                call(value)
    assert nanoseconds(host, 64, 10) > 0 and host.stats() == (0, 64, 0, 0, 10)


def test_buffer_freed_with_last_view(host):
    view = np.ndarray((3, 4), np.float32, buffer=Buffer(host, 48, "b"))
    part = view[1:, ::2]
    part[...] = 7
    del view
    gc.collect()
    assert host.stats().live == 48 and (part == 7).all()
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
    assert memory.used(CUDAPlace(0)) == memory.stats(CUDAPlace(0)).reserved == 100 and memory.used(CUDAPlace(1)) == 200
    with pytest.raises(ConfigError, match="no DeviceSide to copy to it"):
        memory.SyncedMemory(4).gpu_data()
    memory.unregister(CUDAPlace)
    for place, address in (CUDAPlace(0), one), (CUDAPlace(1), two):
        memory.free(place, address)  # a block keeps its allocator
    for place in CUDAPlace(0), CUDAPlace(1), CUDAPlace(7), PinnedPlace():
        before = memory.used(place)
        with pytest.raises(DependencyError, match="no CUDA provider is registered; install"):
            memory.alloc(place, 1)
        assert memory.used(place) == before


@pytest.mark.parametrize("kept, asked", [(0, 900), (500, 600)])
def test_cycles_collected_before_failure(kept, asked):
    """The request succeeds then; and where it still fails, the error names no holder that is gone."""
    unit = 1 << 20      # so that the blocks are above those that other tests have left alive; they are never written
    allocator = LimitAllocator(SystemAllocator(), 1000 * unit)
    gc.disable()
    try:
        holder, ring = Buffer(allocator, kept * unit, "kept"), [Buffer(allocator, 400 * unit, "unreachable")]
        ring.append(ring)
        del ring
        if not kept:
            Buffer(allocator, asked * unit)
            return
        with pytest.raises(OutOfMemoryError, match="live are 524,288,000 bytes") as info:
            Buffer(allocator, asked * unit)
        assert "kept 524,288,000" in str(info.value) and "unreachable" not in str(info.value) and holder.nbytes == 500 * unit
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
