"""SyncedMemory and Blob with a real driver below: page-locked memory, streams, events, recorded launches, arrays of other libraries."""

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
from minicaffe.memory import CUDAPlace, PinnedPlace, SyncedMemory


def test_page_locked_host_memory():
    pinned = memory.used(PinnedPlace())
    mem = SyncedMemory(4096)
    assert mem.cpu_data().place == PinnedPlace()
    assert memory.used(PinnedPlace()) == pinned + 4096
    minicaffe.set_mode_cpu()
    other = SyncedMemory(4096)
    assert other.cpu_data().place != PinnedPlace()
    assert mem.cpu_data().place == PinnedPlace()  # blocks stay where they are
    minicaffe.set_mode_gpu()
    del mem
    assert memory.used(PinnedPlace()) == pinned


def test_push_with_an_event():
    """As Caffe's data layers do: push the next batch on a stream of its own, and let the computing wait for an event."""
    device = cuda.current()
    stream, ready, blob = cuda.Stream(device), cuda.Event(device), Blob((1 << 16,))
    start, end = cuda.Event(device, timing=True), cuda.Event(device, timing=True)
    start.record(stream)
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
    end.record(stream)
    stream.synchronize()
    assert start.done() and end.done() and end.elapsed(start) >= 0
    with pytest.raises(DeviceError, match="cuEventElapsedTime"):
        ready.elapsed(start)
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
    blob, net = Blob((1000,), name="x"), helpers.make_net(helpers.layer_text("Input", "y", more="input_param { shape { dim: [2, 300] } }")
        + helpers.layer_text("ReLU", "relu", "y", "y", "relu_param { negative_slope: 0.5 }") + helpers.layer_text("TanH", "z", "y"))
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
