"""SyncedMemory: the whole table, ownership, zero-fill, failures, and random walks with a model beside them."""

import copy
import ctypes
import pickle
import threading
import time

import numpy as np
import pytest
from host_double import HostDouble

from minicaffe import memory
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, DependencyError, OutOfMemoryError, WrongTypeError
from minicaffe.memory import (
    BuddyAllocator,
    CPUPlace,
    CUDAPlace,
    FailAllocator,
    LimitAllocator,
    PinnedPlace,
    SyncedHead,
    SyncedMemory,
    SystemAllocator,
)
from minicaffe.memory.registry import registry

N = 24

# How to reach each state, with the other side allocated before or not.
ROUTES = {
    "UNINITIALIZED": [[]],
    "HEAD_AT_CPU": [["mutable_cpu_data"], ["mutable_gpu_data", "mutable_cpu_data"], ["set_cpu_data"]],
    "HEAD_AT_GPU": [["mutable_gpu_data"], ["mutable_cpu_data", "mutable_gpu_data"], ["set_gpu_data"]],
    "SYNCED": [["mutable_cpu_data", "gpu_data"], ["mutable_gpu_data", "cpu_data"], ["mutable_cpu_data", "push"]],
}

# Caffe's rules, written out by hand: what each call does in the states of ROUTES, and the new state.
ROWS = {
    "cpu_data": ["zero host -> HEAD_AT_CPU", "nothing -> HEAD_AT_CPU", "device to host -> SYNCED", "nothing -> SYNCED"],
    "mutable_cpu_data": ["zero host -> HEAD_AT_CPU", "nothing -> HEAD_AT_CPU", "device to host -> HEAD_AT_CPU", "nothing -> HEAD_AT_CPU"],
    "gpu_data": ["zero device -> HEAD_AT_GPU", "host to device -> SYNCED", "nothing -> HEAD_AT_GPU", "nothing -> SYNCED"],
    "mutable_gpu_data": ["zero device -> HEAD_AT_GPU", "host to device -> HEAD_AT_GPU", "nothing -> HEAD_AT_GPU", "nothing -> HEAD_AT_GPU"],
    "set_cpu_data": ["adopt host -> HEAD_AT_CPU"] * 4,
    "set_gpu_data": ["adopt device -> HEAD_AT_GPU"] * 4,
    "set_cpu_copy": ["refuse -> UNINITIALIZED", "refuse -> HEAD_AT_CPU", "adopt copy -> SYNCED", "adopt copy -> SYNCED"],
    "push": ["refuse -> UNINITIALIZED", "push -> SYNCED", "refuse -> HEAD_AT_GPU", "refuse -> SYNCED"],
    "copy_on_device": ["fill device -> HEAD_AT_GPU"] * 4,
}
EXPECTED = {(state, call): tuple(cell.split(" -> ")) for call, row in ROWS.items() for state, cell in zip(ROUTES, row, strict=True)}


def read(buffer):
    """Bytes of a side; the device of these tests is host memory, so its address can be read."""
    return ctypes.string_at(buffer.address, buffer.nbytes)


def fill(buffer, byte):
    ctypes.memset(buffer.address, byte, buffer.nbytes)


def perform(mem, call, keep):
    """Make one call; the mutable ones write a byte of their own. `keep` holds foreign device memory."""
    if call == "set_cpu_data":
        mem.set_cpu_data(bytearray(b"\x05" * N))
    elif call == "set_gpu_data":
        keep.append(np.full(N, 6, np.uint8))
        mem.set_gpu_data(keep[-1].ctypes.data, keep[-1])
    elif call == "set_cpu_copy":
        mem.set_cpu_copy(bytearray(b"\x07" * N))
    elif call == "push":
        mem.async_gpu_push("stream")
    elif call == "copy_on_device":
        source = SyncedMemory(N, "source")
        fill(source.mutable_gpu_data(), 8)
        mem.copy_on_device(source, N)
    else:
        side = getattr(mem, call)()
        if call.startswith("mutable"):
            fill(side, 3 if "cpu" in call else 4)


@pytest.mark.parametrize("call", ROWS)
@pytest.mark.parametrize(("state", "route"), [(s, r) for s, routes in ROUTES.items() for r in routes])
def test_table(host, device, state, route, call):
    mem, keep = SyncedMemory(N, "blob"), []
    for step in route:
        perform(mem, step, keep)
    device.synchronise()
    assert SyncedHead(mem.head).name == state
    sides_before = len(memory.reporter.live())
    content = None if not route else read(mem.gpu_data() if state == "HEAD_AT_GPU" else mem.cpu_data())
    device.calls.clear()
    copies, nbytes = mem.copies, mem.bytes_copied
    action, new_state = EXPECTED[state, call]

    if action == "refuse":
        with pytest.raises(ConfigError, match=f"blob: .*{call.replace('push', 'async_gpu_push')} has nothing to do in state {state}"):
            perform(mem, call, keep)
        assert device.calls == []
        assert len(memory.reporter.live()) == sides_before
    elif call == "push":
        perform(mem, call, keep)
        assert [stream for stream, _ in device.pending] == ["stream"]
        device.synchronise()
    elif call.startswith("set") or call == "copy_on_device":
        perform(mem, call, keep)
    else:  # not through perform(), which would write
        side = getattr(mem, call)()
        assert read(side) == (bytes(N) if action.startswith("zero") else content)

    assert SyncedHead(mem.head).name == new_state
    made = [action] if action in ("zero device", "host to device", "device to host", "push") else []
    if action == "fill device":
        made = ["zero device", "device to device"]      # the first is the source's
        assert read(mem.gpu_data()) == b"\x08" * N
    assert device.calls == made
    copied = action in ("host to device", "device to host", "push", "fill device")
    assert (mem.copies - copies, mem.bytes_copied - nbytes) == (copied, N * copied)
    if action == "adopt copy":  # taken at its word: it holds what the device holds
        assert read(mem.cpu_data()) == b"\x07" * N and read(mem.gpu_data()) == content
    elif new_state == "SYNCED":
        assert read(mem.cpu_data()) == read(mem.gpu_data()) == content
    if action == "adopt host":
        assert read(mem.cpu_data()) == b"\x05" * N
        assert read(mem.gpu_data()) == b"\x05" * N  # what the device held is dropped
    if action == "adopt device":
        assert read(mem.gpu_data()) == read(mem.cpu_data()) == b"\x06" * N


def test_the_products_table_is_this_table():
    from minicaffe.memory.states import TABLE, Action

    theirs = {}
    for call, row in TABLE.items():     # but for the private side, which is in test_private
        if "PRIVATE" in call.name:
            continue
        for state, (action, head) in enumerate(row[:len(ROUTES)]):
            name = call.name.lower().replace("async_gpu_push", "push")
            theirs[SyncedHead(state).name, name] = Action(action).name, SyncedHead(head).name
    words = {"KEEP": "nothing", "TO_HOST": "device to host", "TO_DEVICE": "host to device"}
    theirs = {k: (words.get(action, action.lower().replace("_", " ")), head) for k, (action, head) in theirs.items()}
    theirs = {k: ("adopt copy" if k[1] == "set_cpu_copy" and action == "adopt host" else action, head)
              for k, (action, head) in theirs.items()}
    assert theirs == EXPECTED


def dirty(allocator, nbytes):
    """Let the next block of a buddy allocator have non-zero bytes in it."""
    address = allocator.alloc(nbytes)
    ctypes.memset(address, 0xAB, nbytes)
    allocator.free(address)


def test_zero_fill_of_used_memory(host):
    buddy = BuddyAllocator(host)
    memory.use(CPUPlace(), buddy)
    dirty(buddy, N)
    # The memory is dirty indeed; the allocator wrote into the first 8 bytes.
    assert read(memory.Buffer(buddy, N))[8:] == b"\xab" * (N - 8)
    assert read(SyncedMemory(N).cpu_data()) == bytes(N)


def test_no_zero_fill_before_copies(host, device):
    buddy = BuddyAllocator(host)
    memory.use(CPUPlace(), buddy)
    mem = SyncedMemory(N)
    mem.mutable_gpu_data()
    assert device.calls == ["zero device"]
    dirty(buddy, N)
    device._do = lambda name, work: None  # a copy that does not touch its target shows what was there
    assert read(mem.cpu_data())[8:] == b"\xab" * (N - 8)

    device.calls.clear()
    del device._do
    mem = SyncedMemory(N)
    fill(mem.mutable_cpu_data(), 1)
    mem.gpu_data()
    assert device.calls == ["host to device"]


def test_nothing_before_first_access(host):
    mem = SyncedMemory(1 << 50, "huge")  # no provider, no such memory: neither matters yet
    assert (mem.size, mem.head, mem.copies, mem.bytes_copied) == (1 << 50, SyncedHead.UNINITIALIZED, 0, 0)
    assert host.stats().allocations == 0
    assert not mem.own_cpu_data and not mem.own_gpu_data


def test_size_zero(host, device):
    mem = SyncedMemory(0)
    assert read(mem.cpu_data()) == read(mem.gpu_data()) == b""
    assert mem.head == SyncedHead.SYNCED
    mem.set_cpu_data(np.empty((0, 3), np.float32))
    assert mem.head == SyncedHead.HEAD_AT_CPU


def test_gpu_calls_without_provider(host):
    mem = SyncedMemory(N)
    fill(mem.mutable_cpu_data(), 9)
    for call in (
        mem.gpu_data,
        mem.mutable_gpu_data,
        lambda: mem.async_gpu_push(None),
        lambda: mem.set_gpu_data(64),
    ):
        with pytest.raises(DependencyError, match="no CUDA provider"):
            call()
    assert mem.head == SyncedHead.HEAD_AT_CPU
    assert read(mem.cpu_data()) == b"\x09" * N


def test_own_flags_and_what_is_freed(host, device):
    device_memory = registry.allocator(CUDAPlace(0))
    mem = SyncedMemory(N)
    mem.cpu_data()
    mem.gpu_data()
    assert mem.own_cpu_data and mem.own_gpu_data
    assert (host.stats().count, device_memory.stats().count) == (1, 1)

    foreign = np.full(N, 2, np.uint8)
    mem.set_cpu_data(foreign)
    assert not mem.own_cpu_data and mem.own_gpu_data
    assert (host.stats().count, device_memory.stats().count) == (0, 1)  # the owned block went at once
    fill(mem.mutable_cpu_data(), 8)
    assert (foreign == 8).all()  # it is that memory, not a copy

    far = np.zeros(N, np.uint8)
    mem.set_gpu_data(far.ctypes.data, far)
    assert not mem.own_gpu_data
    assert device_memory.stats().count == 0
    del mem
    assert (foreign == 8).all() and (far == 0).all()
    assert (host.stats().allocations, device_memory.stats().allocations) == (1, 1)


def test_foreign_memory_is_kept_and_released(host):
    import weakref

    class Array(np.ndarray):
        pass

    source = np.arange(N, dtype=np.uint8).view(Array)
    gone = weakref.ref(source)
    mem = SyncedMemory(N)
    mem.set_cpu_data(source)
    del source
    assert read(mem.cpu_data()) == bytes(range(N))
    view = np.ndarray(N, np.uint8, buffer=mem.cpu_data())
    del mem
    assert gone() is not None and view.tolist() == list(range(N))
    del view
    assert gone() is None


def test_const_sides(host, device):
    mem = SyncedMemory(N, "blob")
    const, mutable = mem.cpu_data(), mem.mutable_cpu_data()
    assert (const.readonly, mutable.readonly, mem.gpu_data().readonly, mem.mutable_gpu_data().readonly) == (True, False, True, False)
    assert const.address == mutable.address and const.nbytes == N and const.place == CPUPlace()
    assert const.toreadonly() is const and memoryview(const).readonly and not memoryview(mutable).readonly
    view = np.ndarray(N, np.uint8, buffer=const)
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    del mem, mutable, const
    assert not view.any() and host.stats().live == N
    del view
    assert host.stats().live == 0


def test_an_adopted_bytearray_cannot_be_resized(host):
    source, mem = bytearray(N), SyncedMemory(N)
    mem.set_cpu_data(source)
    with pytest.raises(BufferError):
        source.append(1)
    del mem
    source.append(1)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (bytearray(N - 1), f"needs {N} bytes, got {N - 1}"),
        (np.zeros(N, np.float32), f"needs {N} bytes, got {4 * N}"),
        (bytes(N), "writable"),
        (np.zeros(2 * N, np.uint8)[::2], "contiguous"),
        ([0] * N, "got list"),
        (None, "got NoneType"),
    ],
)
def test_set_cpu_data_checks_its_source(host, source, message):
    mem = SyncedMemory(N, "data")
    fill(mem.mutable_cpu_data(), 1)
    with pytest.raises(ConfigError, match=f"data: SyncedMemory.set_cpu_data .*{message}"):
        mem.set_cpu_data(source)
    assert mem.head == SyncedHead.HEAD_AT_CPU and read(mem.cpu_data()) == b"\x01" * N


def test_set_gpu_data_needs_an_address(device):
    with pytest.raises(ConfigError, match="needs a device address, got 0"):
        SyncedMemory(N).set_gpu_data(0)


def test_views_outlive_the_memory(host):
    mem = SyncedMemory(N)
    view = np.ndarray(N, np.uint8, buffer=mem.mutable_cpu_data())
    view[...] = 5
    mem.set_cpu_data(np.zeros(N, np.uint8))
    assert (view == 5).all() and host.stats().live == N
    del mem
    assert (view == 5).all() and host.stats().live == N
    del view
    assert host.stats().live == 0


def test_place_of_the_host_side(host, device):
    before = memory.used(PinnedPlace())
    memory.register(PinnedPlace, SystemAllocator)
    memory.set_host_place(PinnedPlace())
    try:
        pinned, never = SyncedMemory(N), SyncedMemory(N)
        pinned.cpu_data()
    finally:
        memory.set_host_place(CPUPlace())
        memory.unregister(PinnedPlace)
    assert pinned.cpu_data().place == PinnedPlace()
    assert never.cpu_data().place == CPUPlace()  # decided at the allocation, not at the creation
    del pinned
    assert memory.used(PinnedPlace()) == before


def test_device_of_first_gpu_call(host):
    sides = {}
    memory.register(CUDAPlace, SystemAllocator, lambda place: sides.setdefault(place, HostDouble(place)))
    memory.set_device_place(CUDAPlace(3))
    try:
        mem = SyncedMemory(N)
        first = mem.gpu_data()
        memory.set_device_place(CUDAPlace(0))
        assert first.place == mem.gpu_data().place == mem.place == CUDAPlace(3)
        assert SyncedMemory(N, place=CUDAPlace(1)).gpu_data().place == CUDAPlace(1)
        assert set(sides) == {CUDAPlace(3), CUDAPlace(1)}
    finally:
        memory.set_device_place(CUDAPlace(0))
        memory.unregister(CUDAPlace)


@pytest.mark.parametrize("make_named", [lambda name: SyncedMemory(N, name), lambda name: Blob((2,), name=name)])
def test_a_name_is_a_str(make_named):
    for wrong in 3, None, b"data":
        with pytest.raises(WrongTypeError, match="name must be a str, got "):
            make_named(wrong)


def test_copies_are_refused():
    for refuse in (copy.copy, copy.deepcopy, pickle.dumps):
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


def what_can_fail():
    for (state, call), (action, _) in EXPECTED.items():
        if action in ("zero host", "zero device", "host to device", "device to host", "push"):
            yield state, call, "allocation"
            if action != "zero host":
                yield state, call, "copy"


@pytest.mark.parametrize(("state", "call", "fault"), list(what_can_fail()))
def test_a_failure_changes_nothing(host, device, state, call, fault):
    action, new_state = EXPECTED[state, call]
    mem, keep = SyncedMemory(N), []
    for step in ROUTES[state][0]:
        perform(mem, step, keep)
    target = CPUPlace() if action in ("zero host", "device to host") else CUDAPlace(0)
    failing = FailAllocator(registry.allocator(target), 1 if fault == "allocation" else 0)
    memory.use(target, failing)
    device.broken = fault == "copy"
    with pytest.raises(OutOfMemoryError if fault == "allocation" else OSError):
        perform(mem, call, keep)
    assert SyncedHead(mem.head).name == state
    assert failing.stats().live == 0  # a block without its bytes is not kept
    assert mem.copies == 0
    device.broken = False
    perform(mem, call, keep)
    assert SyncedHead(mem.head).name == new_state


def test_first_access_of_two_threads(device):
    """One of them copies, the other waits, and both get the same memory."""
    inside, sides = threading.Event(), []

    def slow_copy(dst, src, nbytes, copy=device.copy_to_host):
        inside.set()
        time.sleep(0.02)  # Python lets the other thread in
        copy(dst, src, nbytes)

    device.copy_to_host = slow_copy
    mem = SyncedMemory(N, "shared")
    mem.mutable_gpu_data()
    thread = threading.Thread(target=lambda: sides.append(mem.cpu_data()))
    thread.start()
    inside.wait()
    sides.append(mem.cpu_data())
    thread.join()
    assert sides[0].address == sides[1].address and mem.copies == 1


def test_allocator_writes_its_memory(host, device):
    """Its code runs in the middle of the call; what it wrote stays, and no block goes to waste."""
    class Nosy(memory.Allocator):
        def alloc(self, nbytes):
            address = below.alloc(nbytes)
            if mems:
                fill(mems.pop().mutable_cpu_data(), 9)
            return address

        def free(self, address):
            below.free(address)

    below = SystemAllocator()
    for call in "cpu_data", "mutable_cpu_data", "gpu_data", "mutable_gpu_data":
        mem = SyncedMemory(N)
        mems = [mem]
        for place in CPUPlace(), CUDAPlace(0):
            memory.use(place, Nosy(place))
        assert read(getattr(mem, call)()) == b"\x09" * N
        assert read(mem.cpu_data()) == b"\x09" * N
        del mem
    assert below.stats().live == 0
