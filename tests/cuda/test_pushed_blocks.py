"""Blocks that a second stream uses: dropped, reused or taken again while a push runs, they are not given to others before it is done.

``deferred=1`` runs work only when something waits for it; ``race=1`` finds two streams on the same bytes without an order.
"""

import pytest
from processes import run

pytestmark = pytest.mark.slow(18)    # all together

PUSHES = """
from minicaffe.memory import Buffer, CUDAPlace, PinnedPlace, SyncedMemory
from minicaffe.memory.registry import registry
minicaffe.set_mode_gpu()
N = 4096
device = cuda.current()
stream = cuda.Stream(device)
side = registry.device_side(CUDAPlace(0))

def pushed(byte, stream, name="pushed"):
    mem = SyncedMemory(N, name)
    np.frombuffer(mem.mutable_cpu_data(), np.uint8)[:] = byte
    mem.async_gpu_push(stream)
    return mem

def bytes_of(address):
    out = np.empty(N, np.uint8)
    side.copy_to_host(out.ctypes.data, address, N)
    return out
"""
ORDERS = ["deferred=1", "race=1", "deferred=1,race=1"]
ALLOCATORS = ["caching", "buddy", "plain", "caching+limit:1GiB"]


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("settings", ORDERS)
def test_dropped_while_it_is_pushed(place, settings, allocator):
    """The device block and the host block go to new owners, whose bytes the push must neither overwrite nor send."""
    run(PUSHES + f"""
for p in CUDAPlace(0), PinnedPlace():
    memory.use(p, {allocator!r})
for _ in range(3):
    mem = pushed(1, stream)
    kept = pushed(2, stream)                # the host block of the first goes, the device block stays
    target = kept.gpu_data()
    del mem
    kept.set_cpu_data(np.zeros(N, np.uint8))
    del kept
    hosts, blocks = [Buffer(registry.allocator(PinnedPlace()), N) for _ in range(2)], [SyncedMemory(N) for _ in range(3)]
    for host in hosts:
        np.frombuffer(host, np.uint8)[:] = 9
    for block in blocks:
        block.mutable_gpu_data()            # zeros, by the computing stream
    stream.synchronize()
    assert (bytes_of(target.address) == 2).all()
    assert not any(np.frombuffer(block.cpu_data(), np.uint8).any() for block in blocks)
    del target, hosts, host, blocks, block
""", place, settings)


@pytest.mark.parametrize("settings", ORDERS)
def test_push_into_a_used_block(place, settings):
    """The block comes from the cache, and the computing stream still works on it for its last owner."""
    run(PUSHES + """
last, result = Blob((N,)), Blob((N,))
last.data[...] = 4
last.scale_data(1), result.scale_data(0), result.gpu_data
cuda.elementwise("T x", "T y", "y = x", "same")(last, result)
address = last.gpu_data.address
del last
mem = Blob((N,))
mem.data[...] = 1
mem.async_gpu_push(stream)
assert mem.data_memory.gpu_data().address == address, "this test says nothing"
stream.synchronize()
assert (result.cpu_data == 4).all() and (mem.cpu_data == 1).all()
""", place, settings)


@pytest.mark.parametrize("settings", ORDERS)
def test_foreign_host_memory(place, settings):
    """Page-locked by other code, no allocator of ours knows it; memory of a Buffer in the end goes back when it was sent."""
    run(PUSHES + f"""
import ctypes, weakref
from cuda.bindings import driver
class Owner(np.ndarray): pass

address = int(driver.cuMemHostAlloc(N, 0)[1])     # page-locked, so that the copy reads it late
array = np.frombuffer((ctypes.c_ubyte * N).from_address(address), np.uint8).view(Owner)
array[:] = 5
gone = weakref.ref(array)
mem = SyncedMemory(N)
mem.set_cpu_data(array)
mem.async_gpu_push(stream)
target = mem.gpu_data()
del array, mem
gc.collect()
assert gone() is not None, "its memory is free, and the copy still to come"
stream.synchronize()
assert (bytes_of(target.address) == 5).all()
other = SyncedMemory(N)
other.set_cpu_data(np.zeros(N, np.uint8))
other.async_gpu_push(stream)
stream.synchronize()
gc.collect()
assert gone() is None, "it was sent, but is kept"
assert driver.cuMemFreeHost(address)[0] == 0

block = Buffer(registry.allocator(PinnedPlace()), N)
address, view = block.address, np.frombuffer(block, np.uint8)[:]
view[:] = 6
mem = SyncedMemory(N)
mem.set_cpu_data(view)
mem.async_gpu_push(stream)
target = mem.gpu_data()
del block, view, mem
again = Buffer(registry.allocator(PinnedPlace()), N)
assert again.address != address or not {place == "sim" and "deferred" in settings}     # it waits for the stream
stream.synchronize()
del again
assert address in [b.address for b in [Buffer(registry.allocator(PinnedPlace()), N) for _ in range(2)]]
assert (bytes_of(target.address) == 6).all()
""", place, settings)


def test_streams_that_went(place):
    """An allocator may hold a stream's number longer than any object the stream: the handle stays, and serves the next one."""
    run(PUSHES + """
number = stream.address
mem = pushed(1, stream)
refused(errors.ConfigError, lambda: stream.__init__(device), "made once")
del stream
gc.collect()
del mem                                     # asks the driver for an event on that stream
again = [cuda.Stream(device) for _ in range(2)]
assert number in {s.address for s in again} and again[0].address != again[1].address
streams = {cuda.Stream(device).address for _ in range(50)}
assert len(streams) == 1, "handles leak"
""", place, "deferred=1")


def test_waiting_blocks_in_a_recording(place):
    run(PUSHES + """
f = cuda.elementwise("T x", "T y", "y = x + 1", "plus_one")
x, y = Blob((N,)), Blob((N,))
x.data[...] = 1
f(x, y), y.gpu_data
mem = pushed(1, stream)
del mem
graph = cuda.Graph(device)
with graph:
    f(x, y)
    block = Buffer(registry.allocator(CUDAPlace(0)), N)  # looks for blocks that wait no more
graph.replay(0, 0)
assert (y.cpu_data == 2).all()
""", place, "deferred=1")


def test_foreign_memory_goes_later():
    run(PUSHES + """
class Array(np.ndarray):
    "One that can say that it went."

import weakref
source, target = Blob((10,)), Blob((10,))
source.mutable_gpu_data, target.mutable_gpu_data
for graph in None, cuda.Graph(device):
    array = np.zeros(N, np.uint8).view(Array)
    known, mem = weakref.ref(array), SyncedMemory(N)
    mem.set_cpu_data(array)
    mem.async_gpu_push(stream)
    stream.synchronize()
    del array, mem
    assert known() is not None
    if graph is None:
        target.copy_from(source)
    else:
        with graph:
            target.copy_from(source)
        assert graph.nodes == 1
    assert known() is None
""", "sim")


def test_pushed_memory_at_the_end():
    """It may live until the process ends, or go in a forked one: no block is taken again, so the driver is not called."""
    assert run(PUSHES + """
foreign = SyncedMemory(N)
foreign.set_cpu_data(np.zeros(N, np.uint8))
foreign.async_gpu_push(stream)
kept, other = pushed(1, stream), pushed(2, stream)
child = os.fork()
if child == 0:
    del other
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""", "sim") == ""


def test_pinned_memory_of_all_gpus():
    run(PUSHES + """
Buffer(registry.allocator(PinnedPlace()), N)        # the cache is made while GPU 0 is the current one
minicaffe.set_device(1)
stream = cuda.Stream(cuda.current())
mem = pushed(3, stream)
used, target = mem.cpu_data().address, mem.gpu_data()
del mem
other = Buffer(registry.allocator(PinnedPlace()), N)
assert other.address != used
stream.synchronize()
memory.copy(other, target)
assert (np.frombuffer(other, np.uint8) == 3).all()
""", "sim", "devices=2,deferred=1")
