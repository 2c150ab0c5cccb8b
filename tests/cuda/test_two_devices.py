"""Several devices: each has its memory, stream and kernels; choosing one, what is refused to the others, and peer access."""

import pytest
from processes import run

pytestmark = pytest.mark.slow(10)    # all together


BLOBS = """
from minicaffe.memory import Buffer, CUDAPlace, SyncedMemory
from minicaffe.memory.registry import registry
minicaffe.set_mode_gpu()
zero, one, two = (cuda.get_device(i) for i in range(3))

def blob_on(device, value, name="", shape=(1000,)):
    "A blob whose data and diff are on a device, and only there."
    minicaffe.set_device(device)
    blob = Blob(shape, name=name)
    blob.data[...] = value
    blob.diff[...] = 1
    blob.scale_data(1)
    blob.scale_diff(1)
    return blob

def wrong(call, name="there"):
    refused(errors.WrongDeviceError, call, name, "is on GPU 0, the current GPU is 1", "set_device(0)", "copy_from", "enable_peer_access(1, 0)")

def content(end):
    found = np.zeros(1000, np.float32)
    memory.copy(found, end)
    return found
"""


def test_memory_of_another_gpu_refused():
    run(BLOBS + """
there = blob_on(0, 5, "there")
array, memory_ = there.gpu_data, there.data_memory
here = blob_on(1, 2, "here")
minicaffe.set_device(1)
k = cuda.kernel('extern "C" __global__ void touch(float* x) { x[0] = 1; }', "touch")
f = cuda.elementwise("T x", "T y", "y = x", "same")
state = memory_.head, memory_.copies
for call in (lambda: there.gpu_data, lambda: there.gpu_diff, lambda: there.__cuda_array_interface__, memory_.gpu_data, memory_.mutable_gpu_data,
             there.update, lambda: there.scale_data(2), there.asum_data, there.sumsq_data, lambda: there.fill_diff(0), lambda: f(there, here),
             lambda: f(here, there), lambda: k((1,), (1,), (there,))):
    wrong(call)
wrong(lambda: k((1,), (1,), (array,)), "argument 0")        # an array that was taken when GPU 0 was the current one
assert (memory_.head, memory_.copies) == state

there.data[...] = 6         # the host may look and write from anywhere
memory_.cpu_data()
wrong(lambda: memory_.gpu_data())                           # nor does anything go there
wrong(lambda: memory_.async_gpu_push(cuda.Stream(one)))
assert memory_.head == memory.SyncedHead.HEAD_AT_CPU

place = SyncedMemory(4000, "placed", CUDAPlace(0))          # before it has any memory
used = memory.used(CUDAPlace(0))
wrong(lambda: place.gpu_data(), "placed")
assert memory.used(CUDAPlace(0)) == used

minicaffe.set_device(0)
assert (there.cpu_data == 6).all() and there.asum_data() == 6000
memory_.mutable_cpu_data()
refused(errors.WrongDeviceError, lambda: memory_.async_gpu_push(cuda.Stream(one)))
refused(errors.WrongTypeError, lambda: memory_.async_gpu_push(7), "needs a minicaffe.cuda.Stream, got int")
""", "sim", "devices=3")


def test_adopted_addresses():
    run("""
from minicaffe.memory import Buffer, CUDAPlace, SyncedMemory
from minicaffe.memory.registry import registry
cuda.get_device(0)      # the driver runs, but GPU mode was never chosen
block = Buffer(registry.allocator(CUDAPlace(1)), 64)
mine = SyncedMemory(64)
mine.set_gpu_data(block.address, block)
assert mine.place == CUDAPlace(1) and mine.gpu_data().address == block.address
""" + BLOBS + """
minicaffe.set_device(0)
block = Buffer(registry.allocator(CUDAPlace(0)), 4000, "block")
minicaffe.set_device(1)
wrong(lambda: SyncedMemory(4000, "there").set_gpu_data(block.address, block))
settled = SyncedMemory(4000, "settled")
settled.gpu_data()
refused(errors.WrongDeviceError, lambda: settled.set_gpu_data(block.address, block), "settled", "memory of GPU 0", "is on GPU 1")
host = np.zeros(1000, np.float32)
refused(errors.PointerError, lambda: SyncedMemory(4000).set_gpu_data(host.ctypes.data, host), "not memory of a GPU")
minicaffe.set_device(0)
mine = SyncedMemory(4000)
mine.set_gpu_data(block.address, block)
assert mine.gpu_data().address == block.address and mine.place == CUDAPlace(0)
cuda.enable_peer_access(1, 0)
minicaffe.set_device(1)
lent = SyncedMemory(4000)
lent.set_gpu_data(block.address, block)
assert lent.place == CUDAPlace(0)
""", "sim", "devices=3,peers=0-1")


def test_matrix_of_peer_access():
    run(BLOBS + """
def matrix():
    return [[a.peer_access(b) for b in (zero, one, two)] for a in (zero, one, two)]

assert matrix() == [[1, -1, -1], [-1, 1, -1], [-1, -1, 1]]
assert zero.reaches(one) and one.reaches(zero) and not zero.reaches(two)
there = blob_on(0, 3, "there")
assert zero.peer_access(one) == -1      # asking does not open it, nor does a copy
blob_on(1, 0).copy_from(there)
wrong(lambda: there.gpu_data)
cuda.enable_peer_access(1, 0)
cuda.enable_peer_access(1, 0)           # twice does no harm
there.scale_data(2)
assert matrix() == [[1, -1, -1], [1, 1, -1], [-1, -1, 1]]
refused(errors.DeviceError, lambda: cuda.enable_peer_access(2, 0), "GPU 2 cannot use the memory of GPU 0", "not peers")
refused(errors.DeviceError, lambda: cuda.enable_peer_access(1, 1), "not a peer of itself")
refused(errors.DeviceError, lambda: cuda.disable_peer_access(0, 1), "cuCtxDisablePeerAccess")
assert matrix() == [[1, -1, -1], [1, 1, -1], [0, -1, 1]]
cuda.disable_peer_access(1, 0)
assert one.peer_access(zero) == 0
wrong(lambda: there.gpu_data)
minicaffe.set_device(0)
assert there.asum_data() == 6000
""", "sim", "devices=3,peers=0-1,1-2")


def test_each_side_of_lent_memory():
    """It needs peer access, be it valid already or not; its block waits for the GPU that uses it."""
    run(BLOBS + """
class Same(memory.Layout):
    "The plain order, on the device."

    def __init__(self):
        super().__init__(4000, 4000, "same", on_device=True)

    def from_plain(self, private, plain, stream):
        registry.device_side(CUDAPlace(0)).copy_within(private, plain, 4000)

    def to_plain(self, plain, private, stream):
        registry.device_side(CUDAPlace(0)).copy_within(plain, private, 4000)

def waiting():
    "How many blocks of GPU 0 wait for a stream."
    return sum(block.state == "waiting" for segment in memory.allocator_of(CUDAPlace(0)).snapshot() for block in segment.blocks)

layout = Same(),
for name, arguments in (("gpu_data", ()), ("mutable_gpu_data", ()), ("private_data", layout), ("mutable_private_data", layout),
                        ("overwrite_private_data", layout)):
    def call(mem):
        return getattr(mem, name)(*arguments)
    for ready in True, False:
        there = blob_on(0, 4, "there")
        minicaffe.set_device(0)
        if ready:
            call(there.data_memory)
        head = there.data_memory.head
        minicaffe.set_device(1)
        wrong(lambda: call(there.data_memory))
        assert there.data_memory.head == head
        cuda.enable_peer_access(1, 0)
        side = call(there.data_memory)
        assert side.place == CUDAPlace(0)
        before = waiting()
        one_busy = blob_on(1, 0)        # the work of GPU 1 that the block waits for
        del side
        there.data_memory.recycle()
        assert waiting() - before == (2 if arguments else 1), (name, ready)     # the plain side, too
        cuda.disable_peer_access(1, 0)
""", "sim", "devices=3,peers=0-1,deferred=1")


GUESTS = ["devices=3,peers=0-1,0-2,race=1", "devices=3,peers=0-1,0-2,deferred=1"]


@pytest.mark.parametrize("settings", GUESTS)
def test_lent_memory_of_two_guests(settings):
    """The owner itself does nothing between the two, so that its stream alone does not show it."""
    run(BLOBS + """
cuda.enable_peer_access(1, 0)
cuda.enable_peer_access(2, 0)
there = blob_on(0, 1, "there")
minicaffe.set_device(1)
there.scale_data(2)
minicaffe.set_device(2)
there.scale_data(3)
assert (there.cpu_data == 6).all(), there.cpu_data

# A copy on a stream comes behind the owner's work and that of all guests, be it of the owner or of another GPU; the host waits for the stream alone.
for gpu, writer in (0, 1), (1, 0), (1, 2):
    device = cuda.get_device(gpu)
    for stream in cuda.Stream(device), device.copies:
        source = blob_on(0, 1, "source")
        block = source.data_memory.gpu_data()
        minicaffe.set_device(writer)
        source.scale_data(5)
        out = Buffer(registry.allocator(CUDAPlace(gpu)), 4000)
        memory.copy(out, block, stream=stream)
        stream.synchronize()
        assert (content(out) == 5).all(), (gpu, writer)
""", "sim", settings)


@pytest.mark.parametrize("settings", GUESTS)
@pytest.mark.parametrize("gpu", [0, 1])
def test_copied_block_of_a_stream(settings, gpu):
    run(BLOBS + f"""
from strided_arrays import Foreign
minicaffe.set_device(0)
own, place = cuda.Stream(zero), CUDAPlace(0)
store = cuda.kernel('extern "C" __global__ void store(float* x) {{ x[threadIdx.x] = 4; }}', "store")

def stored():
    "A block of the stream, in which a kernel writes."
    block = memory.alloc(place, 4000, stream=own)
    store((1,), (256,), (Foreign(block, (1000,)),), stream=own)
    own.synchronize()
    return place, block

first, end = (place, memory.alloc(place, 4000, stream=own)), Buffer(registry.allocator(CUDAPlace({gpu})), 4000)
memory.copy(first, np.full(1000, 3, np.float32))
memory.copy(end, first)                 # under way when the block goes
memory.free(*first)
second = stored()
assert (content(end) == 3).all()
memory.copy(second, end)                # into it, too
memory.free(*second)
third = stored()
zero.synchronize()
assert (content(third)[:256] == 4).all()
""", "sim", settings)


def test_copy_beside_a_recording():
    run(BLOBS + """
import threading
from minicaffe.memory.synced import device_lock
minicaffe.set_device(0)
blob = blob_on(0, 1)
source, target, third = (Buffer(registry.allocator(CUDAPlace(d)), 4000) for d in (0, 0, 1))
memory.copy(source, np.full(1000, 2, np.float32))
stream = cuda.Stream(zero)
graph = cuda.Graph(zero)

def copy():
    memory.copy(target, source, stream=stream)
    stream.synchronize()
    memory.copy(third, source)
    memory.copy(source, third)

thread = threading.Thread(target=copy)
with device_lock, graph:
    thread.start()
    thread.join(0.3)
    blob.scale_data(3)
thread.join()
assert graph.nodes == 1 and (content(target) == 2).all()
""", "sim", GUESTS[0])


def test_mode_device_and_places():
    """After each choice, and after one that fails: what was chosen is stored in one place (device/context.pyx)."""
    run("""
    from minicaffe.common import caffe
    from minicaffe.cuda.mode import selected
    from minicaffe.memory import CPUPlace, CUDAPlace, PinnedPlace, SyncedMemory
    from minicaffe.memory.registry import registry

    def agree(mode, index):
        host = PinnedPlace() if mode == "gpu" else CPUPlace()
        assert (caffe.mode, selected(), registry.device_place, registry.host_place) == (mode, index, CUDAPlace(index), host)
        assert (cuda.current() and cuda.current().index) == (index if mode == "gpu" else None)
        fresh = SyncedMemory(8)
        assert fresh.cpu_data().place == host and fresh.gpu_data().place == CUDAPlace(index)

    minicaffe.set_mode_cpu()
    minicaffe.set_device(1)
    agree("cpu", 1)
    minicaffe.set_mode_gpu()
    agree("gpu", 1)
    cuda.use_gpu(2)
    agree("gpu", 2)
    cuda.use_cpu()
    agree("cpu", 2)
    minicaffe.set_device(0)
    agree("cpu", 0)
    for mode, choose in (("cpu", cuda.use_cpu), ("gpu", cuda.use_gpu)):
        choose()
        for call in (cuda.use_gpu, minicaffe.set_device):
            refused(errors.DeviceError, lambda: call(3))
            agree(mode, 0)
    memory.set_device_place(CUDAPlace(1))
    assert SyncedMemory(8).place == CUDAPlace(1) and selected() == 0
    minicaffe.set_device(0)
    agree("gpu", 0)
    """, "sim", "devices=3")
