"""SyncedMemory and Blob with a real driver below: every cell of the state table, copies counted, page-locked memory, streams.

tests/memory/test_synced.py walks the same table on a double; here the bytes are copied by the driver.
"""

import gc
import re
import threading
import time

import helpers
import numpy as np
import pytest
from sim_checks import checks_on
from training import recorded_launches

import minicaffe
from minicaffe import cuda, memory
from minicaffe.addons.trace.model import launch_of
from minicaffe.blob import Blob
from minicaffe.cuda.device import time_call
from minicaffe.errors import ConfigError, DeviceError
from minicaffe.memory import Buffer, CUDAPlace, PinnedPlace, SyncedHead, SyncedMemory
from minicaffe.memory.registry import registry
from minicaffe.memory.states import TABLE, Action, Call

N = 4096


def content(end):
    """The bytes of a buffer, of the host or a device."""
    found = np.empty(N, np.uint8)
    memory.copy(found, end)
    return found


# How to reach each state, and what both sides hold then where they are valid.
ROUTES = {
    SyncedHead.UNINITIALIZED: (lambda mem: None, 0),
    SyncedHead.HEAD_AT_CPU: (lambda mem: memory.copy(mem.mutable_cpu_data(), bytes([1] * N)), 1),
    SyncedHead.HEAD_AT_GPU: (lambda mem: memory.copy(mem.mutable_gpu_data(), bytes([2] * N)), 2),
    SyncedHead.SYNCED: (lambda mem: (memory.copy(mem.mutable_cpu_data(), bytes([3] * N)), mem.gpu_data()), 3),
}


def act(mem, call, keep):
    """Make the call; return the bytes of the side that it gives, or None."""
    given = np.full(N, 7, np.uint8)
    if call == Call.SET_CPU_DATA:
        mem.set_cpu_data(given)
    elif call == Call.SET_GPU_DATA:
        keep.append(Buffer(registry.allocator(CUDAPlace(0)), N))
        memory.copy(keep[-1], given)
        mem.set_gpu_data(keep[-1].address, keep[-1])
    elif call == Call.SET_CPU_COPY:
        mem.set_cpu_copy(content(mem.gpu_data()) if mem.own_gpu_data else given)
    elif call == Call.ASYNC_GPU_PUSH:
        stream = cuda.Stream(cuda.current())
        mem.async_gpu_push(stream)
        stream.synchronize()
    elif call == Call.COPY_ON_DEVICE:
        keep.append(SyncedMemory(N, "source"))
        memory.copy(keep[-1].mutable_gpu_data(), given)
        mem.copy_on_device(keep[-1], N)
    else:
        return content(getattr(mem, call.name.lower())())
    return None


COPIES = Action.TO_HOST, Action.TO_DEVICE, Action.PUSH, Action.FILL_DEVICE
PLAIN = [call for call in TABLE if "PRIVATE" not in call.name]


@pytest.mark.parametrize("state", list(ROUTES), ids=lambda s: s.name)
@pytest.mark.parametrize("call", PLAIN, ids=lambda c: c.name)
def test_the_table(call, state):
    """The plain sides of the table, which tests/memory/test_synced.py compares with Caffe's rules."""
    action, head = TABLE[call][state]
    mem, keep = SyncedMemory(N, "blob"), []
    route, byte = ROUTES[state]
    route(mem)
    assert mem.head == state
    copies, nbytes = mem.copies, mem.bytes_copied
    if action == Action.REFUSE:
        with pytest.raises(ConfigError, match="blob: SyncedMemory"):
            act(mem, call, keep)
        assert (mem.head, mem.copies) == (state, copies)
        return
    seen, copied = act(mem, call, keep), action in COPIES
    assert (mem.head, mem.copies - copies, mem.bytes_copied - nbytes) == (head, copied, N * copied)
    expected = 7 if call in (Call.SET_CPU_DATA, Call.SET_GPU_DATA, Call.COPY_ON_DEVICE) else byte
    if seen is not None:
        assert (seen == expected).all()
    assert (content(mem.cpu_data()) == expected).all() and (content(mem.gpu_data()) == expected).all()


def test_page_locked_host_memory():
    pinned = memory.used(PinnedPlace())
    mem = SyncedMemory(N)
    assert mem.cpu_data().place == PinnedPlace()
    assert memory.used(PinnedPlace()) == pinned + N
    minicaffe.set_mode_cpu()
    other = SyncedMemory(N)
    assert other.cpu_data().place != PinnedPlace()
    assert mem.cpu_data().place == PinnedPlace()  # blocks stay where they are
    minicaffe.set_mode_gpu()
    del mem
    assert memory.used(PinnedPlace()) == pinned


def test_mode_changes():
    blob = Blob((50,))
    blob.data[...] = 1
    for factor, mode in (2, "cpu"), (3, "gpu"), (4, "cpu"), (5, "gpu"):
        getattr(minicaffe, f"set_mode_{mode}")()
        blob.scale_data(factor)
    minicaffe.set_mode_cpu()
    assert (blob.cpu_data == 120).all() and blob.asum_data() == 6000
    minicaffe.set_mode_gpu()


def test_push_with_an_event():
    """As Caffe's data layers do: push the next batch on a stream of its own, and let the computing wait for an event."""
    device = cuda.current()
    stream, ready = cuda.Stream(device), cuda.Event(device)
    blob = Blob((1 << 16,))
    for value in range(1, 4):
        blob.data[...] = value
        blob.async_gpu_push(stream)
        ready.record(stream)
        cuda.computing(device).wait(ready)
        assert blob.asum_data() == value << 16
        ready.synchronize()
        assert ready.done()
    with pytest.raises(ConfigError, match="async_gpu_push"):
        blob.async_gpu_push(stream)  # the device has it already


def test_events_measure_and_order():
    device = cuda.current()
    stream = cuda.Stream(device)
    start, end = cuda.Event(device, timing=True), cuda.Event(device, timing=True)
    start.record(stream)
    blob = Blob((1 << 18,))
    blob.data[...] = 1
    blob.async_gpu_push(stream)
    end.record(stream)
    stream.synchronize()
    assert start.done() and end.done() and end.elapsed(start) >= 0
    untimed = cuda.Event(device)
    untimed.record(cuda.computing(device))
    untimed.synchronize()
    with pytest.raises(DeviceError, match="cuEventElapsedTime"):
        untimed.elapsed(start)
    assert stream.address and stream.address != device.compute_stream == cuda.computing(device).address


def test_launches_are_recorded_on_request():
    gc.collect()    # a word of a kernel's parameters that is no pointer may look like one into a block that is garbage
    device = cuda.current()
    blob = Blob((1000,))
    blob.data[...] = 1
    before = device.launches
    with memory.record() as quiet:
        blob.scale_data(2)
    with recorded_launches() as events:
        blob.scale_data(2)
        blob.asum_data()
    assert not [e for e in quiet if e.kind == "launch"]
    launches = [e for e in events if e.kind == "launch"]
    assert launches[0].name == "Vector<Scaled<float>, float, 1>" and launches[0].place == CUDAPlace(0)
    assert re.fullmatch(r"\dx1x1 blocks of 256 threads; .*\(4000 bytes\)", launches[0].detail)
    assert launches[0].took > 0 and launches[0].nbytes == 4000
    assert device.launches - before == 1 + len(launches) and len(launches) >= 2


def test_a_launch_names_each_block_once(no_cudnn):
    """In the order of the parameters, however often they point into it: bytes of kernels in place would count twice."""
    gc.collect()
    blob, net = Blob((1000,), name="x"), helpers.make_net("""
        layer { name: "in" type: "Input" top: "y" input_param { shape { dim: 2 dim: 300 } } }
        layer { name: "relu" type: "ReLU" bottom: "y" top: "y" relu_param { negative_slope: 0.5 } }
        layer { name: "out" type: "TanH" bottom: "y" top: "z" }
    """)
    blob.data[...] = 3
    blob.diff[...] = 1
    net.blobs["y"].data[...] = -1
    for run in blob.update, lambda: net.forward_from_to(0, 2):    # with all on the device
        run()
    with recorded_launches() as events:
        blob.update()
        net.forward_from_to(0, 2)
    launches = [e for e in events if e.kind == "launch"]
    assert [launch_of(e).arrays for e in launches] == [
        [("x data", 4000), ("x diff", 4000)], [("y data", 2400)], [("y data", 2400), ("z data", 2400)]]
    assert [e.nbytes for e in launches] == [8000, 2400, 4800]
    assert (blob.cpu_data == 1).all() and np.allclose(net.blobs["z"].cpu_data, np.tanh(-0.25))


@pytest.mark.skipif("deferred=1" in checks_on(), reason="with deferred=1 both events of a call come when the host waits for them")
def test_calls_timed_by_thread():
    """A call that begins and ends within another of another thread takes no time from it."""
    times = {}

    def timed(name, body):
        time_call(0, None)
        body()
        with memory.record() as events:
            time_call(0, name)
        times[name] = events[0].took / 1e6

    def outer():
        time.sleep(0.02)
        inner = threading.Thread(target=timed, args=("inner", lambda: None))
        inner.start()
        inner.join()

    timed("outer", outer)
    assert times["outer"] >= 20 and 0 <= times["inner"] < times["outer"]


def test_cuda_array_interface():
    for dtype, numpy_type in ((0, "<f4"), (1, "<f8"), (2, "<i4")):
        blob = Blob((3, 4), dtype)
        blob.data[...] = 2
        for array, readonly in (blob, False), (blob.mutable_gpu_data, False), (blob.mutable_gpu_diff, False), (blob.gpu_data, True):
            interface = array.__cuda_array_interface__
            assert interface["shape"] == (3, 4) and interface["typestr"] == numpy_type and interface["version"] == 3
            assert interface["data"][0] % 64 == 0 and interface["data"][1] is readonly
        host = np.empty((3, 4), numpy_type)
        memory.copy(host, blob.gpu_data)
        assert (host == 2).all()


def test_array_outlives_the_blob():
    blob = Blob((1024,), name="short-lived")
    blob.data[...] = 4
    array = blob.gpu_data
    del blob
    host = np.zeros(1024, np.float32)
    memory.copy(host, array)
    assert (host == 4).all()
    used = memory.used(CUDAPlace(0))
    del array
    assert memory.used(CUDAPlace(0)) == used - 4096
