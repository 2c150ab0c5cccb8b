"""Blob.copy_from on devices: no byte by way of the host, across GPUs by peer copies, in order, counted."""

import pytest
from processes import run

pytestmark = pytest.mark.slow(9)    # all together

BLOBS = """
from minicaffe.memory import CUDAPlace, SyncedHead
minicaffe.set_mode_gpu()

def blob(value, dtype=0, shape=(1000,), name="blob"):
    "A blob whose values are on the current GPU alone."
    result = Blob(shape, dtype, name)
    result.data[...] = value
    result.diff[...] = -value
    result.data_memory.mutable_gpu_data(), result.diff_memory.mutable_gpu_data()
    return result

def copies(call):
    with memory.record() as events:
        call()
    return [(e.detail, e.nbytes) for e in events if e.kind == "copy"]
"""
ORDERS = ["devices=3", "devices=3,race=1", "devices=3,deferred=1", "devices=3,peers=0-1,race=1"]


@pytest.mark.parametrize("settings", ORDERS)
def test_on_one_device(settings):
    run(BLOBS + """
def check_one_copy(source, target, **rest):
    before = target.data_memory.copies, target.data_memory.bytes_copied
    assert copies(lambda: target.copy_from(source, **rest)) == [("device to device", 4000)]
    if not rest:
        assert (target.data_memory.copies - before[0], target.data_memory.bytes_copied - before[1]) == (1, 4000)

source, target, fresh = blob(3), blob(0), Blob((1000,))
check_one_copy(source, target)
assert target.data_memory.head == source.data_memory.head == SyncedHead.HEAD_AT_GPU
check_one_copy(source, target, copy_diff=True)
source.scale_data(2)        # behind the copy
assert (target.cpu_data == 3).all() and (target.cpu_diff == -3).all() and (source.cpu_data == 6).all()
assert source.data_memory.head == SyncedHead.SYNCED     # both sides are valid: still no copy by way of the host
check_one_copy(source, target)
check_one_copy(source, fresh)                           # no memory yet, and it gets none on the host
assert not fresh.data_memory.own_cpu_data
target.data[...] = 9                                    # what only the host has is overwritten, not sent first
check_one_copy(source, target)
assert (target.cpu_data == 6).all() and (fresh.cpu_data == 6).all()
check_one_copy(Blob((1000,)), target)                   # of memory never touched: zeros
assert not target.cpu_data.any()
source.data[...] = 7                                    # the host alone has it, so it is copied there
assert copies(lambda: target.copy_from(source)) == []
assert target.data_memory.head == SyncedHead.HEAD_AT_CPU and (target.cpu_data == 7).all()
""", "sim", settings)


@pytest.mark.parametrize("settings", ORDERS)
def test_between_devices(settings):
    run(BLOBS + """
source = blob(3)
minicaffe.set_device(2)
target = blob(0)
for diff in False, True:
    assert copies(lambda: target.copy_from(source, diff)) == [("device to peer", 4000)]
assert source.data_memory.place == CUDAPlace(0) and target.data_memory.place == CUDAPlace(2)
refused(errors.WrongDeviceError, lambda: source.copy_from(target), "is on GPU 0, the current GPU is 2")
minicaffe.set_device(0)
source.scale_data(2)        # behind the copy, though on another stream
del source
gc.collect()
other = Blob((1000,))
other.gpu_data
other.scale_data(0)
minicaffe.set_device(2)
target.scale_data(2)
assert (target.cpu_data == 6).all() and (target.cpu_diff == -3).all()
""", "sim", settings)


def test_sizes_and_types(place):
    run(BLOBS + """
source = blob(3)
for rest, on_host in (5, False), (6, True):
    big = blob(rest, shape=(2000,))
    if on_host:             # only the host has it
        big.data[...] = rest
    big.reshape(1000)
    big.copy_from(source)   # what is beyond stays, for the time when the blob is larger again
    big.reshape(2000)
    assert (big.cpu_data[:1000] == 3).all() and (big.cpu_data[1000:] == rest).all()
for dtype in 1, 2:
    refused(errors.WrongTypeError, lambda: Blob((1000,), dtype).copy_from(source), "the source is float32", "convert it")
minicaffe.set_mode_cpu()
on_cpu = Blob((1000,))
on_cpu.copy_from(source)    # in CPU mode on the host, wherever it is current
assert (on_cpu.cpu_data == 3).all() and not on_cpu.data_memory.own_gpu_data
""", place)


COPIES = """
from minicaffe.memory import Buffer, CPUPlace, CUDAPlace, PinnedPlace
from minicaffe.memory.registry import registry
minicaffe.set_mode_gpu()
N = 4096
places = [CPUPlace(), PinnedPlace(), *(CUDAPlace(i) for i in range(cuda.count()))]
values = np.arange(N, dtype=np.uint32).astype(np.uint8)

def get(end):
    out = np.zeros(N, np.uint8)
    memory.copy(out, end)
    return out
"""


@pytest.mark.parametrize("settings", [*ORDERS, "devices=3,uninitialized=1"])
def test_memory_copy_between_any_two_places(settings):
    """Also to and from a GPU that is not the current one, which needs no peer access."""
    run(COPIES + """
for a in places:
    for b in places:
        one, two = (a, memory.alloc(a, N)), Buffer(registry.allocator(b), N)
        memory.copy(one, values)
        memory.copy(two, one)
        assert (get(two) == values).all() and (get(one) == values).all(), (a, b)
        memory.copy((a, one[1] + 100), two, N - 100)
        assert (get(one)[100:] == values[:-100]).all() and (get(one)[:100] == values[:100]).all()
        memory.free(*one)
minicaffe.set_device(2)
""", "sim", settings)


@pytest.mark.parametrize("settings", ORDERS)
def test_memory_copy_on_a_stream(settings):
    """Both blocks go before the copy ran; it comes behind what the computing still does with the block."""
    run(COPIES + f"late = {'deferred' in settings}" + """
for device in range(3):
    minicaffe.set_device(device)
    gpu, stream = CUDAPlace(device), cuda.Stream(cuda.current())
    blob = Blob((N // 4,))
    blob.scale_data(1), blob.data_memory.mutable_gpu_data()
    out = np.zeros(N // 4, np.float32)
    host, target = Buffer(registry.allocator(PinnedPlace()), N), blob.data_memory.mutable_gpu_data()
    memory.copy(host, np.full(N // 4, device + 1, np.float32))
    memory.copy(target, host, stream=stream)
    used = host.address
    del host
    other, back, there, away = (Buffer(registry.allocator(p), N) for p in (PinnedPlace(), PinnedPlace(), gpu, CUDAPlace((device + 1) % 3)))
    assert not late or other.address != used
    for end in other, back:
        np.frombuffer(end, np.uint8)[:] = 0
    for end in back, there:
        memory.copy(end, target, stream=stream)
    memory.copy(there, away, 0, stream)
    refused(errors.WrongDeviceError, lambda: memory.copy(away, there, stream=stream), "push on a stream of")
    if late:
        assert not np.frombuffer(back, np.float32).any()
    stream.synchronize()
    assert (np.frombuffer(back, np.float32) == device + 1).all()
    memory.copy(out, there.toreadonly())
    assert (out == device + 1).all() and (blob.cpu_data == device + 1).all()
    memory.copy(away, np.zeros(N, np.uint8))
    memory.copy(there, away, stream=stream)      # from another GPU
    del away
    stream.synchronize()
    assert not get(there).any()
    del there, target, back, other, blob
""", "sim", settings)


OWNERS = """
import ctypes
side, deleted = registry.device_side(CUDAPlace(0)), []

class Theirs:
    "Memory of a library, page-locked or on the GPU. When it is deleted, the library gives it to another user, who overwrites it."

    def __init__(self, place, byte):
        self.address, self.on_gpu = memory.alloc(place, N), place == CUDAPlace(0)
        interface = dict(shape=(N,), typestr="|u1", data=(self.address, False), version=3, strides=None)
        setattr(self, "__cuda_array_interface__" if self.on_gpu else "__array_interface__", interface)
        memory.copy((place, self.address), np.full(N, byte, np.uint8))

    def __del__(self):
        deleted.append(self.address)
        side.zero(self.address, N) if self.on_gpu else ctypes.memset(self.address, 99, N)

def others():
    "Copies that have nothing to do with it: they drop what is done."
    for _ in range(3):
        side.copy_to_device(elsewhere, zeros.ctypes.data, N)
        gc.collect()

elsewhere, zeros, stream = memory.alloc(CUDAPlace(0), N), np.zeros(N, np.uint8), cuda.Stream(cuda.current())
"""


@pytest.mark.parametrize("settings", ["deferred=1", "race=1"])
@pytest.mark.parametrize(("source", "target"), [("PinnedPlace()", "CUDAPlace(0)"), ("CUDAPlace(0)", "CUDAPlace(0)"), ("CUDAPlace(0)", "PinnedPlace()")])
def test_memory_kept_until_copied(place, source, target, settings):
    """With deferred=1 a copy runs when something waits for it; race=1 finds a writer on a device."""
    run(COPIES + OWNERS + f"source, target = {source}, {target}" + """
for byte in range(1, 5):
    theirs, mine = Theirs(source, byte), memory.alloc(target, N)
    memory.copy((target, mine), theirs if source == CUDAPlace(0) else np.asarray(theirs), stream=stream)
    del theirs
    others()
    stream.synchronize()
    assert (get((target, mine)) == byte).all(), byte
cuda.current().synchronize()
others()
assert len(deleted) == 4, deleted       # and no longer
""", place, settings)
