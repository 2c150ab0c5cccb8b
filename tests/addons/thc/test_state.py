"""The state of devices, and cuda.sleep."""

import threading
import time

import numpy as np
import pytest
from processes import run, run_gpu

import minicaffe
from minicaffe import cuda, memory
from minicaffe.blob import Blob
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, WrongTypeError
from minicaffe.memory import CUDAPlace


@pytest.mark.parametrize("settings, mib", [("memory=8GiB", 32), ("memory=8191MiB", 4), ("memory=8GiB,capability=8.9", 4)])
def test_the_workspace_that_cublas_recommends(settings, mib):
    run(f"assert cuda.get_device(0).workspace_bytes == {mib} << 20", "sim", settings)


def test_one_device():
    device = cuda.current()
    blob = Blob((1000,), name="shown")
    blob.data[...] = 1
    assert blob.asum_data() == 1000
    blob.scale_data(2)
    blob.data_memory.mutable_gpu_data()
    state = cuda.state()
    one = state.devices[device.index]
    assert (one.index, one.name, one.architecture, one.launches) == (device.index, device.name, device.architecture, device.launches)
    assert one.streams["computing"] == device.compute_stream and one.streams["copies"] == device.copies.address
    assert one.stats == memory.stats(CUDAPlace(device.index)) and one.stats.live >= 4000
    assert one.allocator.startswith("CachingAllocator") and one.allocator.endswith("DriverAllocator")
    assert one.scratch_bytes == 2 << 20 and one.workspace_bytes == device.workspace_bytes
    assert set(one.handles) == {"cuBLAS", "cuDNN"}
    assert state.current == device.index and state.peers[0][0] == 1 and len(state.peers) == cuda.count()
    text = str(state)
    for words in (f"device {device.index}: {device.name}, {device.architecture}", f"computing {device.compute_stream:#x}",
                  f"{one.stats.live:,} bytes live", f"workspace {one.workspace_bytes:,} bytes", "GPU mode computes here", "page-locked host memory: "
                  "CachingHostAllocator on PinnedAllocator", "1 yes, 0 no, -1 never requested"):
        assert words in text, text


def test_streams_libraries_and_seeds():
    device = cuda.current()

    def others():
        return cuda.state().devices[device.index].streams["others"]

    before = others()
    streams = [cuda.Stream(device) for _ in range(3)]
    cuda.computing(device)  # no stream of its own
    assert others() == before + 3
    del streams[1:]
    assert others() == before + 1
    streams.clear()
    assert others() == before
    run_gpu("""
    assert cuda.state().devices[0].handles == {"cuBLAS": None, "cuDNN": None} and "cuBLAS not open, cuDNN not open" in str(cuda.state())
    assert ", 0 others" in str(cuda.state())
    mine = cuda.Stream(cuda.current())
    assert ", 1 others" in str(cuda.state())
    """, "sim")
    minicaffe.set_random_seed(5)
    caffe.generator.reserve_counters(12)
    found = []
    thread = threading.Thread(target=lambda: found.append((cuda.state().generator, caffe.generator.offset, cuda.state().generator)))
    thread.start()
    thread.join()
    assert cuda.state().generator == (5, 12) and "seed 5, 12 counters used" in str(cuda.state())
    assert found[0][0] is None and found[0][2][1] == 0  # looking makes none; asking for numbers does


@pytest.mark.slow(1)
def test_processes_without_a_device():
    device, x = cuda.current(), Blob((10,))
    x.data[...] = np.arange(10)
    before = device.launches, memory.stats(CUDAPlace(device.index)), x.data_memory.head, cuda.state()
    assert str(before[-1]) == str(cuda.state())
    assert before == (device.launches, memory.stats(CUDAPlace(device.index)), x.data_memory.head, cuda.state())
    text = run("""
    modules = set(sys.modules)
    state = cuda.state()
    assert state.devices == {} and state.current is None and state.peers == [] and state.pinned == "" and state.generator is None
    assert ("minicaffe.cuda.driver" in sys.modules) == ("minicaffe.cuda.driver" in modules)
    minicaffe.set_random_seed(3)
    assert cuda.state().generator == (3, 0)
    print(cuda.state())
    """, "sim")
    assert "no device was used yet" in text and "seed 3, 0 counters used" in text


@pytest.mark.slow(1)
def test_three_devices_and_their_peers():
    text = run_gpu("""
    assert sorted(cuda.state().devices) == [0] and cuda.state().peers == [[1, -1, -1], [-1, 1, -1], [-1, -1, 1]]
    cuda.enable_peer_access(0, 2)
    refused(errors.DeviceError, lambda: cuda.enable_peer_access(0, 1))
    state = cuda.state()
    assert sorted(state.devices) == [0, 1, 2] and state.current == 0
    assert state.peers == [[1, 0, 1], [-1, 1, -1], [-1, -1, 1]]
    assert state.devices[2].allocator == "" and "no allocator yet" in str(state)
    cuda.disable_peer_access(0, 2)
    assert cuda.state().peers[0] == [1, 0, 0]
    minicaffe.set_mode_cpu()
    assert cuda.state().current is None and "computes here" not in str(cuda.state())
    print(state)
    """, "sim", "devices=3,peers=0-2")
    assert "       0   1   2\n   0   1   0   1\n   1  -1   1  -1\n   2  -1  -1   1\n" in text


pytestmark = pytest.mark.usefixtures("needs_compiler")


def test_sleep_on_streams():
    device = cuda.current()
    cuda.sleep(0)
    cuda.sleep(np.int64(1))
    device.synchronize()
    start, end = cuda.Event(device, timing=True), cuda.Event(device, timing=True)
    begin = time.perf_counter()
    start.record(cuda.computing(device))
    cuda.sleep(device.clock_rate // 20)
    end.record(cuda.computing(device))
    device.synchronize()
    assert time.perf_counter() - begin >= 0.05 and end.elapsed(start) >= 49
    device = cuda.current()
    launches = device.launches
    cuda.sleep(device.clock_rate // 1000, cuda.Stream(device))
    cuda.sleep(1000, stream=device.copies)
    device.synchronize()
    assert device.launches == launches + 2
    minicaffe.set_mode_cpu()
    with pytest.raises(ConfigError, match="GPU mode"):
        cuda.sleep(1)
    minicaffe.set_mode_gpu()


@pytest.mark.parametrize("cycles", [-1, 2**62 + 1, 0.5, "1", None, True])
def test_what_is_no_number_of_cycles(cycles):
    with pytest.raises(ConfigError, match=r"cuda.sleep.cycles: must be an integer from 0 to 2\^62, got .*clock_rate"):
        cuda.sleep(cycles)
    with pytest.raises(WrongTypeError, match="kernel mc_sleep: the stream must be a cuda.Stream, got 5"):
        cuda.sleep(1, 5)


def test_host_does_not_wait(place):
    """With deferred=1 the simulated device, too, is not done until a thread waits."""
    text = run_gpu("""
    device = cuda.current()
    busy, mark = cuda.Stream(device), cuda.Event(device)
    cuda.sleep(device.clock_rate // 20, busy)
    mark.record(busy)
    assert not mark.done()
    mark.synchronize()
    assert mark.done()
    print("done")
    """, place, "deferred=1")
    assert "done" in text
