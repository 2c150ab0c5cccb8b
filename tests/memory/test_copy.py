"""memory.copy on the host and with the double of a device: every kind of end, sizes, types, overlap, objects, refusals."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from doubles import FakeStreams, HostDouble

from minicaffe import memory
from minicaffe.errors import ConfigError, DependencyError, PointerError, ShapeError, WrongTypeError
from minicaffe.memory import Buffer, CPUPlace, CUDAPlace, PinnedPlace, SyncedMemory, SystemAllocator
from minicaffe.memory.buffer import wrap
from minicaffe.memory.registry import registry

N = 48


def block(place=None, byte=0):
    buffer = Buffer(registry.allocator(place or CPUPlace()), N)
    ctypes.memset(buffer.address, byte, N)
    return buffer


def content(end):
    return ctypes.string_at(end.address, N)


ENDS = {
    "Buffer": block,
    "array": lambda: np.zeros((3, 4), np.float32),
    "array without axes": lambda: np.zeros((), f"V{N}"),
    "bytearray": lambda: bytearray(N),
    "memoryview": lambda: memoryview(bytearray(N)).cast("B", (6, 8)),
    "address": lambda: (CPUPlace(), memory.alloc(CPUPlace(), N)),
}


@pytest.mark.parametrize("kind", ENDS)
def test_ends_on_the_host(host, kind):
    values = np.arange(N, dtype=np.uint8).tobytes()
    end, back = ENDS[kind](), bytearray(N)
    memory.copy(end, values)
    memory.copy(back, end)
    assert bytes(back) == values and (kind in ("address", "array without axes") or bytes(memoryview(end).cast("B")) == values)
    if kind == "address":
        memory.free(*end)


def test_copies_of_the_device(host, device):
    on_device, other, on_host = block(CUDAPlace(0), 5), block(CUDAPlace(0)), np.zeros(N, np.uint8)
    for dst, src, asked in (on_host, on_device, "device to host"), (other, on_host, "host to device"), (other, on_device, "device to device"):
        device.calls.clear()
        memory.copy(dst, src)
        assert device.calls == [asked] and content(other if dst is other else on_device) == b"\5" * N
    assert (on_host == 5).all()
    address, found = memory.alloc(CUDAPlace(0), N), np.zeros(N, np.uint8)       # an address can be filled from Python, and read
    memory.copy((CUDAPlace(0), address), np.arange(N, dtype=np.uint8))
    memory.copy(found, (CUDAPlace(0), address))
    assert (found == np.arange(N)).all()
    memory.copy(found, (CUDAPlace(0), address + 8), nbytes=N - 8)
    assert (found[: N - 8] == np.arange(8, N)).all()
    memory.free(CUDAPlace(0), address)
    with pytest.raises(ConfigError, match="no end is on a GPU"):
        memory.copy(np.zeros(4), np.zeros(4), stream="s")
    array = np.full(N, 4, np.uint8)
    memory.copy(other, array, stream="s")
    assert [s for s, _ in device.pending] == ["s"] and device.fresh and content(other) == b"\5" * N
    device.synchronise()
    assert content(other) == b"\4" * N


def test_addresses_in_live_blocks(host):
    address = memory.alloc(CPUPlace(), N)
    array = np.zeros(N, np.uint8)
    for wrong in (CPUPlace(), address - 1), (CPUPlace(), address + N), (CPUPlace(), array.ctypes.data), (PinnedPlace(), address), (CPUPlace(), 0):
        for dst, src, words in (array, wrong, "memory.copy: src: .* lies in no live block"), (wrong, array, "memory.copy: dst"):
            with pytest.raises(PointerError, match=words):
                memory.copy(dst, src, 1)
    with pytest.raises(ShapeError, match="dst has 48 bytes, src has 40"):
        memory.copy(array, (CPUPlace(), address + 8))
    for wrong in "text", None, 1.5:
        with pytest.raises(WrongTypeError, match="memory.copy: src needs an address"):
            memory.copy(array, (CPUPlace(), wrong), 1)
    memory.free(CPUPlace(), address)
    with pytest.raises(PointerError):
        memory.copy(array, (CPUPlace(), address))


def test_sizes(host):
    small, large = np.zeros(4, np.uint8), np.ones(8, np.uint8)
    for error, words, *counts in ((ShapeError, "dst has 8 bytes, src has 4; say how many with nbytes=", None),
                                  (ShapeError, "nbytes must be 0 to what both ends have, 4, got (5|-1)", 5, -1),
                                  (WrongTypeError, "nbytes must be an int, got", 1.5, "2", np.float32(2))):
        for nbytes in counts:
            with pytest.raises(error, match=words):
                memory.copy(large, small, nbytes)
    memory.copy(large, small, np.int64(2))
    assert list(large) == [0, 0, 1, 1, 1, 1, 1, 1]
    memory.copy(large, small, 0)
    memory.copy(np.zeros((0, 3)), np.zeros(0))
    used = host.stats().live
    memory.copy(bytearray(N), block())
    assert host.stats().live == used


def test_types_and_layouts(host):
    floats, objects = np.zeros(4, np.float32), np.zeros(2, "O,i4")
    memory.copy(floats, np.full(4, 2, np.float32).tobytes())  # bytes have no type, nor has a Buffer
    strided, reversed_ = np.zeros((4, 4), np.float32)[:, :1], np.zeros((2, 2), np.float32)[::-1]
    for dst, src, error, words in (
            (floats, np.zeros(4, np.int32), WrongTypeError, "dst is float32, src is int32; convert it"),
            *((floats, wrong, ShapeError, "not C-contiguous") for wrong in (strided, reversed_)),
            *((wrong, floats, ShapeError, "dst is not C-contiguous") for wrong in (strided, reversed_)),
            *((floats, wrong, WrongTypeError, "src must be a Buffer, an array or")
              for wrong in (7, "text", None, SyncedMemory(16), (CPUPlace(),), (1, 2), (CPUPlace(), 64, 4))),
            (objects, objects.copy(), WrongTypeError, "references to objects")):
        with pytest.raises(error, match=words):
            memory.copy(dst, src)
    assert (floats == 2).all()


def test_read_only_ends_are_read_only(host):
    mem = SyncedMemory(N)
    array = np.zeros(N, np.uint8)
    array.flags.writeable = False
    for dst in mem.cpu_data(), array, b"\0" * N, memoryview(bytes(N)), memory.Buffer(host, N).toreadonly():
        with pytest.raises(ConfigError, match="dst is read-only"):
            memory.copy(dst, bytes(N))
        memory.copy(bytearray(N), dst)
    memory.copy(mem.mutable_cpu_data(), b"\3" * N)
    assert bytes(memoryview(mem.cpu_data())) == b"\3" * N


def test_overlap(host, device):
    array = np.arange(10, dtype=np.uint8)
    memory.copy(array[2:], array[:-2])
    assert list(array) == [0, 1, *range(8)]
    memory.copy(array, array)
    address = memory.alloc(CUDAPlace(0), N)
    for shift in 0, 1, N // 2 - 1:
        with pytest.raises(ConfigError, match="overlap"):
            memory.copy((CUDAPlace(0), address + shift), (CUDAPlace(0), address), N // 2)
    memory.copy((CUDAPlace(0), address + N // 2), (CUDAPlace(0), address), N // 2)
    memory.free(CUDAPlace(0), address)
    device.calls.clear()
    other = wrap(array.ctypes.data, 10, CUDAPlace(0), array)        # one address in two places
    memory.copy(array, other)
    memory.copy(other, array)
    assert device.calls == ["device to host", "host to device"] and list(array) == [0, 1, *range(8)]


def test_copy_of_no_bytes(host, device):
    on_device = block(CUDAPlace(0))
    for dst, src, stream in (on_device, b"", None), (bytearray(), on_device, None), (on_device, on_device, None), (on_device, bytes(N), "s"):
        memory.copy(dst, src, nbytes=0, stream=stream)
    assert device.calls == device.pending == []


class Peer(HostDouble):
    """A device that copies from others, and finds all addresses on the device `found`."""

    found = -1

    def copy_from_peer(self, dst, src, nbytes, source):
        self._do(f"from {source.place}", ctypes.memmove, dst.address, src.address, nbytes)

    def device_of(self, address):
        return self.found


@pytest.fixture
def peers():
    """The doubles of several devices by number, and their streams."""
    sides, streams = {}, FakeStreams()
    memory.register(CUDAPlace, SystemAllocator, lambda place: sides.setdefault(place.device, Peer(place)), lambda place: streams, "caching")
    return sides, streams


@pytest.mark.parametrize("source", [0, 1])
def test_stream_of_a_copy(host, peers, source):
    """Both blocks are of another stream: when they are freed, they wait for the one that copies."""
    sides, streams = peers
    target, origin = block(CUDAPlace(0)), block(CUDAPlace(source), 3)
    streams.stream = 9
    memory.copy(target, origin)
    assert content(target) == b"\3" * N
    assert {number: side.calls for number, side in sides.items() if side.calls} == {
        0: ["from CUDAPlace(1)" if source else "device to device"]}
    del target, origin
    assert streams.put == {9: 2}
    assert [registry.allocator(CUDAPlace(k)).stats().waiting for k in {0, source}] == ([512, 512] if source else [1024])


class Array:
    """A buffer as another library's array on a device."""

    def __init__(self, buffer, **more):
        self.buffer = buffer
        self.__cuda_array_interface__ = {"shape": (N,), "typestr": "|u1", "data": (buffer.address, False), "version": 3, **more}


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("found", [-1, 0, 1, 2])
def test_gpu_of_an_address(host, peers, monkeypatch, found, current):
    """Where the driver does not know the address it counts as the present GPU's."""
    monkeypatch.setattr(Peer, "found", found)
    memory.set_device_place(CUDAPlace(current))
    values = np.zeros(N, np.uint8)
    memory.copy(values, Array(block(byte=7)))
    assert (values == 7).all()
    assert [number for number, side in peers[0].items() if side.calls] == [current if found < 0 else found]


@pytest.mark.parametrize("end", ["src", "dst"])
@pytest.mark.parametrize(("stream", "waits"), [(None, {}), (1, {}), (2, {2: 1}), (77, {77: 1})])
def test_stream_of_an_array(host, peers, stream, waits, end):
    """Of either end. 1 is the legacy default stream, for which computing streams wait; an array without elements has no work."""
    buffer, values, nothing = block(byte=5), np.full(N, 3, np.uint8), np.zeros(0, np.uint8)
    memory.copy(*((values, Array(buffer, stream=stream)) if end == "src" else (Array(buffer, stream=stream), values)))
    assert peers[1].put == peers[1].at == waits and (values == (5 if end == "src" else 3)).all() and content(buffer) == values.tobytes()
    empty = Array(buffer, stream=stream, shape=(0,))
    memory.copy(*((nothing, empty) if end == "src" else (empty, nothing)))
    assert peers[1].put == waits


def test_objects_are_copied_one_by_one(host):
    source, target = [SimpleNamespace(value=[1]), "text", None], [0, 0, 0]
    memory.copy(target, source)
    assert target == source and target[0] is not source[0] and target[0].value is source[0].value
    array, other = np.array([[SimpleNamespace(value=1), SimpleNamespace(value=2)], [[3], (4,)]], object), np.empty((2, 2), object)
    for dst in other, other.T:
        memory.copy(dst, array)
        assert (dst == array).all() and not any(dst[at] is array[at] for at in ((0, 0), (0, 1), (1, 0)))
    scalar = np.empty((), object)
    memory.copy(scalar, [[5, 6]])
    assert scalar[()] == [5, 6]


def test_objects_refused(host):
    class Unique:
        def __copy__(self):
            raise TypeError("there is but one")

    target, fixed = [1, 2], np.empty(1, object)
    fixed.flags.writeable = False
    for dst, src, more, error, words in (
            (target, [3, Unique()], {}, TypeError, "there is but one"), ([0.0], np.zeros(1), {}, WrongTypeError, "got list and ndarray"),
            (np.zeros(1), [0.0], {}, WrongTypeError, "got ndarray and list"), (target, [1], {}, ShapeError, "dst has 2 items, src has 1"),
            (target, target, {"nbytes": 1}, ConfigError, "neither nbytes nor a stream"), (target, target, {"stream": 1}, ConfigError, "neither nbytes nor a stream"),
            (fixed, [1], {}, ConfigError, "read-only")):
        with pytest.raises(error, match=words):
            memory.copy(dst, src, **more)
    assert target == [1, 2]


def test_arrays_on_a_device(host, device):
    values, buffer = np.arange(12, dtype=np.float32).reshape(3, 4), block(CUDAPlace(0), 1)
    found = np.zeros_like(values)

    def on_device(**more):
        return Array(buffer, **{"shape": (3, 4), "typestr": "<f4", **more})

    memory.copy(on_device(strides=(16, 4)), values)
    memory.copy(found, on_device())
    assert (found == values).all()
    for nowhere in 0, None:
        memory.copy(np.zeros((0, 4), np.float32), on_device(shape=(0, 4), data=(nowhere, False)))
    for dst, src, error, words in (
            (found, on_device(strides=(4, 12)), ShapeError, "src: .* not C-contiguous"), (on_device(data=(buffer.address, True)), values, ConfigError, "dst is read-only"),
            (np.zeros(6), on_device(), WrongTypeError, "dst is float64"), (found, on_device(data=None), WrongTypeError, "src has no proper __cuda_array_interface__"),
            (found, on_device(typestr="no type"), WrongTypeError, "src has no proper __cuda_array_interface__"), (found, on_device(shape=12), ShapeError, None),
            (found, on_device(shape=(12,), strides=(4, 4)), ShapeError, None)):
        with pytest.raises(error, match=words):
            memory.copy(dst, src)
    memory.unregister(CUDAPlace)
    with pytest.raises(DependencyError, match="no CUDA provider"):
        memory.copy(found, on_device())
