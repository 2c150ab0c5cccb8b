"""SyncedMemory: the whole table, ownership, zero-fill, failures; more of the private side is in test_private.py."""

import copy
import ctypes
import pickle
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from doubles import HostDouble
from synced_states import CALLS, CONTENT, DEVICE_LAYOUT, EXPECTED, LAYOUT, ROUTES, N, call_side, in_state, layout_of, perform, read

from minicaffe import memory
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, DependencyError, OutOfMemoryError, RecycledError, WrongTypeError
from minicaffe.memory import (
    BuddyAllocator,
    CPUPlace,
    CUDAPlace,
    FailAllocator,
    LimitAllocator,
    PinnedPlace,
    SyncedHead,
    SyncedMemory,
)
from minicaffe.memory.allocator import SystemAllocator
from minicaffe.memory.registry import registry
from minicaffe.memory.states import TABLE

GIVEN = {"set_cpu_data": b"\x05" * N, "set_gpu_data": b"\x06" * N, "set_cpu_copy": b"\x07" * N, "copy_on_device": b"\x08" * N}
DEVICE_CALLS = {"0": ["zero device"], ">": ["host to device"], "<": ["device to host"], "^": ["push"],
                "=": ["zero device", "device to device"]}      # the first is that of the source


def fill(buffer, byte):
    ctypes.memset(buffer.address, byte, buffer.nbytes)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("state", "route"), [(state, route) for state, routes in ROUTES.items() for route in routes])
def test_table(host, device, state, route, call):
    mem, content = in_state(state, route=route), CONTENT if route else bytes(N)
    before = mem.copies, mem.bytes_copied, mem.reorders, len(memory.reporter.live())
    device.calls.clear()
    if EXPECTED[state, call] is None:
        name = call.replace("gpu_private", "private")
        words = r"the data of blob 'blob' is gone.*keep=\['blob'\]" if state == "RECYCLED" else f"blob data: .*{name} has nothing to do in state {state}"
        with pytest.raises((ConfigError, RecycledError), match=words):
            perform(mem, call, content)
        assert SyncedHead(mem.head).name == state and device.calls == []
        assert (mem.copies, mem.bytes_copied, mem.reorders, len(memory.reporter.live())) == before
        return
    (new_state, steps), given = EXPECTED[state, call], GIVEN.get(call)
    if (route, call) in ((["set_cpu_data"], "private_data"), (["set_gpu_data"], "gpu_private_data")):
        new_state = state       # adopted memory counts as shown, so that no private side is valid beside it
    with memory.record() as events:
        seen = perform(mem, call, given)
    assert SyncedHead(mem.head).name == new_state
    assert device.calls == sum((DEVICE_CALLS.get(step, []) for step in steps), [])
    copied, reorders = sum(step in "<>^=" for step in steps), steps.count("+")
    assert (mem.copies, mem.bytes_copied, mem.reorders) == (before[0] + copied, before[1] + N * copied, before[2] + reorders)
    assert mem.layout() is (DEVICE_LAYOUT if "GPU_PRIVATE" in new_state else LAYOUT if "PRIVATE" in new_state else None)
    to_plain = {"HEAD_AT_PRIVATE": ["backwards after 8 to plain"], "HEAD_AT_GPU_PRIVATE": ["backwards after 0 to plain"]}.get(state, [])
    assert [e.detail for e in events if e.kind == "reorder"] == [*to_plain, f"plain to {layout_of(call).name}"][:reorders]
    if call.startswith("overwrite"):
        assert len(seen) == layout_of(call).nbytes
    else:
        assert seen is None or seen == (layout_of(call).arranged(content) if "private" in call else content)
        assert read(mem.cpu_data()) == (given or content)
        assert read(mem.gpu_data()) == (content if call == "set_cpu_copy" else given or content)     # the copy is taken at its word
    if call != "set_cpu_copy" and not call.startswith("overwrite"):
        assert read(call_side(mem, "gpu_private_data")) == DEVICE_LAYOUT.arranged(given or content)


def test_table_is_complete():
    assert [call.name.lower() for call in TABLE] == CALLS and {len(row) for row in TABLE.values()} == {len(ROUTES)}


def dirty(allocator, nbytes):
    """Let the next block of a buddy allocator have non-zero bytes in it."""
    address = allocator.alloc(nbytes)
    ctypes.memset(address, 0xAB, nbytes)
    allocator.free(address)


def test_zero_fill_of_used_memory(host, device):
    """None before a copy."""
    buddy = BuddyAllocator(host)
    memory.use(CPUPlace(), buddy)
    dirty(buddy, N)
    # The memory is dirty indeed; the allocator wrote into the first 8 bytes.
    assert read(memory.Buffer(buddy, N))[8:] == b"\xab" * (N - 8)
    assert read(SyncedMemory(N).cpu_data()) == bytes(N)
    mem = SyncedMemory(N)
    mem.mutable_gpu_data()
    assert device.calls == ["zero device"]
    dirty(buddy, N)
    device._do = lambda *_: None  # a copy that does not touch its target shows what was there
    assert read(mem.cpu_data())[8:] == b"\xab" * (N - 8)


def test_sizes_without_memory(host, device):
    mem = SyncedMemory(1 << 50, "huge")  # no such memory: that does not matter yet
    assert (mem.size, mem.head, mem.copies, mem.bytes_copied) == (1 << 50, SyncedHead.UNINITIALIZED, 0, 0)
    assert host.stats().allocations == 0 and not mem.own_cpu_data and not mem.own_gpu_data
    mem = SyncedMemory(0)
    assert read(mem.cpu_data()) == read(mem.gpu_data()) == b"" and mem.head == SyncedHead.SYNCED
    mem.set_cpu_data(np.empty((0, 3), np.float32))
    assert mem.head == SyncedHead.HEAD_AT_CPU


def test_gpu_calls_without_provider(host):
    mem = SyncedMemory(N)
    fill(mem.mutable_cpu_data(), 9)
    for call in mem.gpu_data, mem.mutable_gpu_data, lambda: mem.async_gpu_push(None), lambda: mem.set_gpu_data(64):
        with pytest.raises(DependencyError, match="no CUDA provider"):
            call()
    with pytest.raises(ConfigError, match="needs a device address, got 0"):
        mem.set_gpu_data(0)
    assert mem.head == SyncedHead.HEAD_AT_CPU and read(mem.cpu_data()) == b"\x09" * N


def test_own_flags_and_what_is_freed(host, device):
    device_memory, mem = registry.allocator(CUDAPlace(0)), SyncedMemory(N)

    def check_owned(mem, on_host, on_device):
        assert (mem.own_cpu_data, mem.own_gpu_data) == (on_host, on_device)
        assert (host.stats().count, device_memory.stats().count) == (on_host, on_device)

    mem.cpu_data()
    mem.gpu_data()
    check_owned(mem, True, True)
    foreign, far = np.full(N, 2, np.uint8), np.zeros(N, np.uint8)
    mem.set_cpu_data(foreign)
    check_owned(mem, False, True)        # the owned block went at once
    fill(mem.mutable_cpu_data(), 8)
    assert (foreign == 8).all()     # it is that memory, not a copy
    mem.set_gpu_data(far.ctypes.data, far)
    check_owned(mem, False, False)
    del mem
    assert (foreign == 8).all() and (far == 0).all() and (host.stats().allocations, device_memory.stats().allocations) == (1, 1)


def test_foreign_memory_is_kept_and_released(host):
    class Array(np.ndarray):
        pass

    source = np.arange(N, dtype=np.uint8).view(Array)
    gone = weakref.ref(source)
    mem = SyncedMemory(N)
    mem.set_cpu_data(source)
    del source
    view = np.ndarray(N, np.uint8, buffer=mem.cpu_data())
    del mem
    assert gone() is not None and view.tolist() == list(range(N))
    del view
    assert gone() is None
    source, mem = bytearray(N), SyncedMemory(N)
    mem.set_cpu_data(source)
    with pytest.raises(BufferError):
        source.append(1)
    del mem
    source.append(1)


def test_const_sides(host, device):
    mem = SyncedMemory(N, "blob")
    const, mutable = mem.cpu_data(), mem.mutable_cpu_data()
    assert (const.readonly, mutable.readonly, mem.gpu_data().readonly, mem.mutable_gpu_data().readonly) == (True, False, True, False)
    assert const.address == mutable.address and const.nbytes == N and const.place == CPUPlace()
    assert const.toreadonly() is const and memoryview(const).readonly and not memoryview(mutable).readonly
    view = np.ndarray(N, np.uint8, buffer=const)
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    del mutable, const
    mem.set_cpu_data(np.ones(N, np.uint8))      # a view outlives the side, and the memory
    assert not view.any() and host.stats().live == N
    del mem
    assert not view.any() and host.stats().live == N
    del view
    assert host.stats().live == 0


@pytest.mark.parametrize(("source", "message"), [
    (bytearray(N - 1), f"needs {N} bytes, got {N - 1}"), (np.zeros(N, np.float32), f"needs {N} bytes, got {4 * N}"), (bytes(N), "writable"),
    (np.zeros(2 * N, np.uint8)[::2], "contiguous"), ([0] * N, "got list"), (None, "got NoneType")])
def test_set_cpu_data_checks_its_source(host, source, message):
    mem = SyncedMemory(N, "data")
    fill(mem.mutable_cpu_data(), 1)
    with pytest.raises(ConfigError, match=f"data: SyncedMemory.set_cpu_data .*{message}"):
        mem.set_cpu_data(source)
    assert mem.head == SyncedHead.HEAD_AT_CPU and read(mem.cpu_data()) == b"\x01" * N


def test_places_of_both_sides(host):
    """Decided at the first allocation, not at the creation."""
    sides, before = {}, memory.used(PinnedPlace())
    memory.register(PinnedPlace, SystemAllocator)
    memory.register(CUDAPlace, SystemAllocator, lambda place: sides.setdefault(place, HostDouble(place)))
    memory.set_host_place(PinnedPlace())
    memory.set_device_place(CUDAPlace(3))
    pinned, never = SyncedMemory(N), SyncedMemory(N)
    pinned.cpu_data()
    first = pinned.gpu_data()
    memory.set_host_place(CPUPlace())
    memory.set_device_place(CUDAPlace(0))
    memory.unregister(PinnedPlace)
    assert pinned.cpu_data().place == PinnedPlace() and never.cpu_data().place == CPUPlace()
    assert first.place == pinned.gpu_data().place == pinned.place == CUDAPlace(3) and never.gpu_data().place == CUDAPlace(0)
    assert SyncedMemory(N, place=CUDAPlace(1)).gpu_data().place == CUDAPlace(1) and set(sides) == {CUDAPlace(number) for number in (0, 1, 3)}
    del pinned, first
    assert memory.used(PinnedPlace()) == before


def test_names_and_copies():
    for wrong in 3, None, b"data":
        for make_named in lambda name: SyncedMemory(N, name), lambda name: Blob((2,), name=name):
            with pytest.raises(WrongTypeError, match="name must be a str, got "):
                make_named(wrong)
    for refuse in copy.copy, copy.deepcopy, pickle.dumps:
        with pytest.raises(TypeError, match="cannot pickle"):
            refuse(SyncedMemory(N))


def test_out_of_memory_says_how_much(host):
    memory.use(CPUPlace(), LimitAllocator(host, 100))
    first, second = SyncedMemory(60), SyncedMemory(60, "conv1 data")
    first.cpu_data()
    with pytest.raises(OutOfMemoryError, match=r"no memory for 60 bytes; live are 60 bytes, the limit is 100 bytes"):
        second.cpu_data()
    assert second.head == SyncedHead.UNINITIALIZED
    del first
    assert read(second.cpu_data()) == bytes(60)


CAN_FAIL = [(*key, fault) for key, cell in EXPECTED.items() for fault in ("allocation", "copy")
            if cell and cell[1] in ("z", "0", "<", ">", "^") and "private" not in key[1] and (cell[1], fault) != ("z", "copy")]


@pytest.mark.parametrize(("state", "call", "fault"), CAN_FAIL)
def test_a_failure_changes_nothing(host, device, state, call, fault):
    (new_state, step), mem = EXPECTED[state, call], in_state(state)
    before, target = mem.copies, CPUPlace() if step in "z<" else CUDAPlace(0)
    failing = FailAllocator(registry.allocator(target), 1 if fault == "allocation" else 0)
    memory.use(target, failing)
    device.broken = fault == "copy"
    with pytest.raises(OutOfMemoryError if fault == "allocation" else OSError):
        perform(mem, call, CONTENT)
    assert SyncedHead(mem.head).name == state and mem.copies == before
    assert failing.stats().live == 0  # a block without its bytes is not kept
    device.broken = False
    perform(mem, call, CONTENT)
    assert SyncedHead(mem.head).name == new_state


def test_first_access_of_two_threads(device):
    """One of them copies, the other waits, and both get the same memory."""
    inside = threading.Event()

    def slow_copy(dst, src, nbytes, copy=device.copy_to_host):
        inside.set()
        time.sleep(0.02)  # Python lets the other thread in
        copy(dst, src, nbytes)

    device.copy_to_host = slow_copy
    mem = SyncedMemory(N, "shared")
    mem.mutable_gpu_data()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(mem.cpu_data)
        inside.wait()
        assert mem.cpu_data().address == first.result().address and mem.copies == 1


@pytest.mark.parametrize("call", ["cpu_data", "mutable_cpu_data", "gpu_data", "mutable_gpu_data"])
def test_allocator_writes_its_memory(host, device, call):
    """Its code runs in the middle of the call; what it wrote stays, and no block goes to waste."""
    class Nosy(memory.Allocator):
        def alloc(self, nbytes):
            address = super().alloc(nbytes)
            if mems:
                fill(mems.pop().mutable_cpu_data(), 9)
            return address

    below, mem = SystemAllocator(), SyncedMemory(N)
    mems = [mem]
    for place in CPUPlace(), CUDAPlace(0):
        memory.use(place, Nosy(place, below if place == CPUPlace() else SystemAllocator(place)))
    assert read(getattr(mem, call)()) == read(mem.cpu_data()) == b"\x09" * N
    del mem
    assert below.stats().live == registry.allocator(CUDAPlace(0)).stats().live == 0
