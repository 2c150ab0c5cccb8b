"""Calls name their device themselves: any may be the current one of the thread, or none. A call that fails raises, and changes nothing."""

import contextlib
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import helpers
import numpy as np
import pytest
from cplusplus import compiler
from processes import run, run_gpu, start
from training import recorded_launches

import minicaffe
from minicaffe import cuda, memory
from minicaffe.blob import Blob
from minicaffe.common import TRAIN
from minicaffe.cuda import driver
from minicaffe.errors import DeviceError, OutOfMemoryError, WrongTypeError
from minicaffe.memory import Buffer, CUDAPlace, PinnedPlace
from minicaffe.memory.registry import registry


def test_each_call_finds_its_device():
    """Each is the first call of a thread, which has no device, and comes after a call for another device."""
    run("""
    import threading
    from concurrent.futures import ThreadPoolExecutor
    from minicaffe.cuda import driver
    from minicaffe.memory import Buffer, CUDAPlace, PinnedPlace
    from minicaffe.memory.registry import registry
    from test_current_device import calls_of_a_device
    N = 4096
    minicaffe.set_device(1)
    minicaffe.set_mode_gpu()
    zero, one, gpu, pinned = cuda.get_device(0), cuda.get_device(1), CUDAPlace(1), PinnedPlace()
    for place in gpu, pinned:
        memory.use(place, "plain")

    def first(call):
        "Return what a call returns, once in a thread of its own, once after a call for the other device."
        with ThreadPoolExecutor(1) as thread:
            fresh = thread.submit(call).result()
        zero.memory_info()
        return [fresh, call()]

    for _, _, call in calls_of_a_device():
        first(call)     # the simulated device refuses events, streams, kernels and memory of another one

    side, values, found = registry.device_side(gpu), np.arange(N, dtype=np.uint32).astype(np.uint8), np.zeros(N, np.uint8)
    source, target, host = Buffer(registry.allocator(gpu), N), Buffer(registry.allocator(gpu), N), Buffer(registry.allocator(pinned), N)
    stream, event, late = cuda.Stream(one), cuda.Event(one), np.frombuffer(host, np.uint8)
    side.copy_to_device(source.address, values.ctypes.data, N)
    for wait in one.synchronize, stream.synchronize, event.synchronize:     # the copy is done when the call has waited
        for fresh in True, False:
            late[:] = 0
            memory.copy(host, source, stream=stream)
            event.record(stream)
            assert not late.any()
            zero.memory_info()
            with ThreadPoolExecutor(1) as thread:
                thread.submit(wait).result() if fresh else wait()
            assert (late == values).all(), (wait, fresh)

    block = memory.alloc(gpu, 1 << 20)
    free = one.memory_info()[0]
    assert first(one.memory_info) == [one.memory_info()] * 2 and free < zero.memory_info()[0]
    for place in gpu, pinned:
        blocks = first(lambda: memory.alloc(place, N))
        assert place == pinned or [driver.allocation(at)[::2] for at in blocks] == [(1, N)] * 2
        first(lambda: memory.free(place, blocks.pop()))
    for made in sum(first(lambda: [cuda.Stream(one) for _ in range(3)]), []):
        event.record(made)          # it is of the same device
    for call in (lambda: side.copy_to_device(target.address, values.ctypes.data, N),
                 lambda: side.copy_within(target.address, source.address, N), lambda: memory.copy(target, source, stream=stream)):
        side.zero(target.address, N)
        first(call)
        one.synchronize()
        first(lambda: side.copy_to_host(found.ctypes.data, target.address, N))
        assert (found == values).all(), call
    first(lambda: side.zero(target.address, N))
    side.copy_to_host(found.ctypes.data, target.address, N)
    assert not found.any()
    graphs = []

    def record():
        with cuda.Graph(one) as graph:
            touch((1,), (1,))
        graphs.append(graph)

    touch = cuda.kernel('extern "C" __global__ void touch() {}', "touch")
    first(lambda: touch((1,), (1,)))        # loads it, then launches it alone
    assert first(lambda: cuda.sleep(0)) == [None, None]
    first(record)
    assert [graph.nodes for graph in graphs] == [1, 1]
    kept = [Buffer(memory.allocator_of(gpu, "caching"), N) for _ in range(2)]
    for buffer in kept:
        buffer.record_stream(stream)
    del buffer
    first(lambda: kept.pop().nbytes)    # which frees it: an event is recorded
    blob = Blob((1000,))
    blob.data[...] = 1
    blob.scale_data(1)
    first(lambda: blob.scale_data(2))
    assert first(blob.asum_data) == [4000, 4000]
    """, "sim", "devices=2,deferred=1")


def test_last_reference_without_a_device():
    """There in a cycle that the collector ends. The check for leaks lists what was not destroyed; the thread's device stays current."""
    text = run_gpu("""
    import gc, threading
    from cuda.bindings import driver
    from minicaffe.cuda import Event, Graph
    device = cuda.current()
    touch = cuda.kernel('extern "C" __global__ void touch() {}', "touch")
    touch((1,), (1,))
    graph = Graph(device)
    with graph:
        touch((1,), (1,))
    cycle = [Event(device), Event(device, timing=True), graph]
    cycle.append(cycle)
    del cycle, graph
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    other = cuda.get_device(1)
    event = Event(other)
    device.memory_info()
    del event       # what was current stays so
    assert int(driver.cuCtxGetDevice()[1]) == 0
    """, "sim", "devices=2,leak=1")
    assert "not given back" not in text, text


def calls_of_a_device():
    """List functions of the driver, which call of them is to fail, and what makes the call."""
    device, place = cuda.current(), CUDAPlace(cuda.current().index)
    side, order = registry.device_side(place), registry.stream_order(place)
    event, start, end, stream = cuda.Event(device), cuda.Event(device, timing=True), cuda.Event(device, timing=True), cuda.Stream(device)
    for one in event, start, end:
        one.record(stream)
    stream.synchronize()
    block, host = Buffer(registry.allocator(place), 64), Buffer(registry.allocator(PinnedPlace()), 64)
    blob = Blob((10,))
    blob.scale_data(1)
    with cuda.Graph(device) as graph:
        blob.scale_data(1)
    touch = cuda.kernel('extern "C" __global__ void touch() {}', "touch")
    touch((1,), (1,))

    def calls(functions, call):
        return [(name, int(nth or 1), call) for name, _, nth in (function.partition(":") for function in functions.split())]

    return [
        *calls("cuMemGetInfo cuCtxSetCurrent", device.memory_info), *calls("cuCtxSynchronize", device.synchronize),
        *calls("cuDeviceGetPCIBusId", lambda: device.bus_id), *calls("cuDeviceGetAttribute", lambda: device.clock_rate),
        *calls("cuDeviceGetCount", cuda.count), *calls("cuEventCreate", lambda: cuda.Event(device)),
        *calls("cuEventRecord", lambda: event.record(stream)), *calls("cuEventQuery cuThreadExchangeStreamCaptureMode", event.done),
        *calls("cuEventSynchronize", event.synchronize), *calls("cuEventElapsedTime", lambda: end.elapsed(start)),
        *calls("cuStreamWaitEvent", lambda: stream.wait(event)), *calls("cuStreamSynchronize", stream.synchronize),
        *calls("cuStreamGetCtx cuEventRecord", lambda: order.record(stream.address)),
        *calls("cuEventRecord cuStreamWaitEvent", lambda: device.wait_for(stream.address)),
        *calls("cuEventRecord cuStreamWaitEvent", lambda: device.make_stream_wait(stream.address)),
        *calls(" ".join(f"cuPointerGetAttribute:{nth}" for nth in range(2, 6)), lambda: driver.allocation(block.address)),
        *calls("cuMemcpyHtoDAsync cuStreamSynchronize", lambda: side.copy_to_device(block.address, host.address, 64)),
        *calls("cuMemcpyDtoHAsync cuStreamSynchronize", lambda: side.copy_to_host(host.address, block.address, 64)),
        *calls("cuMemcpyDtoDAsync", lambda: side.copy_within(block.address, block.address + 32, 32)),
        *calls("cuMemsetD8Async", lambda: side.zero(block.address, 64)),
        *calls("cuMemcpyHtoDAsync", lambda: memory.copy(block, host, stream=stream)),
        *calls("cuMemcpyDtoHAsync", lambda: memory.copy(host, block, stream=stream)),
        *calls("cuMemcpyPeerAsync", lambda: memory.copy(block, Buffer(registry.allocator(place), 64), stream=stream)),
        *calls("cuMemcpyHtoDAsync cuGraphLaunch", lambda: graph.replay(0, 0)), *calls("cuLaunchKernel", lambda: touch((1,), (1,))),
        *calls("cuModuleLoadData cuModuleGetFunction", lambda: cuda.kernel(touch.source, "touch")((1,), (1,))),
        *calls("cuMemHostAlloc", lambda: memory.allocator_of(PinnedPlace(), "plain").alloc(64)),
        *calls("cuMemAlloc", lambda: memory.allocator_of(place, "plain").alloc(64)),
    ]


def test_each_call_that_fails_raises(sim):
    """With the name of the driver's function; the next time it works, and the counters of launches count what was launched."""
    gc.collect()
    device = cuda.current()
    for function, nth, call in calls_of_a_device():
        launches = device.launches
        sim(f"fail={function}:{nth}:CUDA_ERROR_UNKNOWN")
        with pytest.raises(DeviceError, match=f"{function}.*CUDA_ERROR_UNKNOWN"):
            call()
        assert device.launches == launches, (function, nth)
        call()
        assert device.launches == launches + (function in ("cuLaunchKernel", "cuModuleLoadData", "cuModuleGetFunction")), function


@pytest.mark.parametrize("call", [lambda blob: blob.scale_data(2), lambda blob: blob.asum_data(), lambda blob: blob.cpu_data])
def test_thread_without_the_device(sim, call, blob):
    """The error is that of the thread's call; afterwards it works there, and in other threads."""
    blob.scale_data(1)
    sim("fail=cuCtxSetCurrent:1")
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(DeviceError, match=r"^cuCtxSetCurrent\(0\): CUDA_ERROR_UNKNOWN"):
            thread.submit(call, blob).result()
        thread.submit(call, blob).result()
    cuda.current().synchronize()
    before = blob.asum_data()
    blob.scale_data(2)
    assert blob.asum_data() == 2 * before and before in (300, 600)


@pytest.mark.parametrize("before", [lambda device: cuda.Event(device).done(), lambda device: Buffer(memory.allocator_of(CUDAPlace(0), "plain"), 64)])
def test_recording_refuses_synchronization(sim, before, blob):
    """A query of an event and an allocation are allowed there; the thread then has its mode of capture again."""
    device, other = cuda.current(), cuda.Event(cuda.current())
    blob.scale_data(1)
    device.synchronize()
    for within in False, True:
        if not within:
            before(device)
        with pytest.raises(DeviceError, match="cuEventSynchronize"), cuda.Graph(device) as graph:
            if within:
                before(device)
            other.synchronize()
        assert graph.nodes == 0
    with cuda.Graph(device) as graph:
        before(device)
        blob.scale_data(2)
    assert graph.nodes == 1
    graph.replay(0, 0)
    assert (blob.cpu_data == 6).all()


CODES = {*driver.REMEDIES, *driver.LOST, "CUDA_ERROR_UNKNOWN", "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_OUT_OF_MEMORY"}


@pytest.mark.parametrize("code", sorted(CODES - {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"}))  # which the simulated driver never returns
def test_the_message_of_an_error(sim, code):
    """The call with its arguments, the driver's name and text, and a remedy where there is one."""
    device = cuda.current()
    for call, shown in (device.memory_info, "cuMemGetInfo()"), (lambda: device.bus_id, "cuDeviceGetPCIBusId(0)"):
        sim(f"fail={shown.partition('(')[0]}:1:{code}")
        with pytest.raises(DeviceError if code != "CUDA_ERROR_OUT_OF_MEMORY" else OutOfMemoryError) as caught:
            call()
        start, said = str(caught.value)[:len(shown) + len(code) + 4], str(caught.value)[len(shown) + len(code) + 4:]
        assert start == f"{shown}: {code}: " and not said.startswith("no text")
        remedy = driver.REMEDIES.get(code, "the device's memory is lost to this process; start the program again, from the last snapshot if "
                                           "there is one (what is saved is whole)" if code in driver.LOST else "")
        assert said.endswith(f"; {remedy}") and len(said) > len(remedy) + 5 if remedy else said and ";" not in said
        assert code == "CUDA_ERROR_OUT_OF_MEMORY" or caught.value.code == code
        call()


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_numbers_that_no_device_has(mode):
    """Also those that no C int holds, and what is no number; what was chosen stays chosen."""
    if mode == "cpu":
        minicaffe.set_mode_cpu()
    try:
        before = cuda.current()
        chosen = cuda.use_gpu, minicaffe.set_device, cuda.get_device
        for choose in (*chosen, lambda number: cuda.enable_peer_access(number, 0), lambda number: cuda.enable_peer_access(0, number),
                       lambda number: cuda.disable_peer_access(0, number)):
            for number in (99, -1, 2**31 - 1, 2**31, 2**32, -2**31, -2**31 - 1, 10**30, -10**30):
                with pytest.raises(DeviceError, match=rf"there is no device {number}; this machine has {cuda.count()}, .*device_query") as caught:
                    choose(number)
                assert caught.value.code == "CUDA_ERROR_INVALID_DEVICE"
            for wrong in "0", 0.0, 1.5, [0], b"0":
                with pytest.raises(WrongTypeError, match="device_id"):
                    choose(wrong)
            assert cuda.current() is before and cuda.state().current == (None if before is None else before.index)
        with pytest.raises(DeviceError, match="there is no device 4294967296"):
            memory.alloc(CUDAPlace(2**32), 4)
        for choose in chosen:
            choose(np.int64(0))
    finally:
        minicaffe.set_mode_gpu()


@pytest.mark.parametrize(("call", "ran"), [("cuEventRecord:1", False), ("cuEventRecord:2", True), ("cuEventSynchronize:1", True),
                                           ("cuEventElapsedTime:1", True), ("cuLaunchKernel:1", False)])
def test_launch_without_time(sim, call, ran, blob):
    """The error is raised once, by the next call that waits, and the launch is no event; the next launch is one, and has its time."""
    device = cuda.current()
    blob.scale_data(1)
    sim(f"fail={call}")
    with recorded_launches() as events, pytest.raises(DeviceError, match=call.partition(":")[0]):
        blob.scale_data(2)
        device.synchronize()
    assert not [event for event in events if event.kind == "launch"]
    device.synchronize()
    with recorded_launches() as events:
        blob.scale_data(5)
    assert [event.took >= 0 for event in events if event.kind == "launch"] == [True]
    assert (blob.cpu_data == (30 if ran else 15)).all()


@pytest.mark.parametrize("fails", [False, True])
def test_work_after_a_recording(fails):
    """Random numbers are drawn from the generator's place again, memory comes from the allocator, launches have their time."""
    net = helpers.make_net(helpers.layer_text("Input", "x", more="input_param { shape { dim: 4000 } }") + helpers.layer_text("Dropout", "y", "x"), TRAIN)
    net.blobs["x"].data[...] = 1

    def drawn():
        minicaffe.set_random_seed(3)
        net.forward_from_to(0, 1)
        return net.blobs["y"].cpu_data.copy()

    device, blob, expected = cuda.current(), Blob((100,)), drawn()
    blob.data[...] = 1
    assert 1000 < np.count_nonzero(expected) < 3000
    blob.scale_data(1)
    graph = cuda.Graph(device)
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext(), graph:
        blob.scale_data(2)
        made = Blob((100,))
        made.scale_data(1)
        1 / (not fails)
    if not fails:
        graph.replay(0.5, 77)
    np.testing.assert_array_equal(drawn(), expected)
    with recorded_launches() as events:
        blob.scale_data(2)
    assert [event.took > 0 for event in events if event.kind == "launch"] == [True]
    gc.collect()
    place = CUDAPlace(device.index)
    before = memory.stats(place).live
    later = Blob((100,))
    assert later.gpu_data and memory.stats(place).live == before + 400
    del later       # no recording keeps it
    assert memory.stats(place).live == before


@pytest.mark.slow(30)
@pytest.mark.parametrize(("check", "allocators"), [
    ("race=1", "plain"), ("deferred=1", "caching,buddy,plain"), ("uninitialized=1", "caching,buddy,plain")])
def test_random_programs_of_two_gpus(check, allocators):
    """Of blobs, kernels, streams and graphs: random_device_programs.py."""
    compiler()
    script = Path(__file__).with_name("random_device_programs.py")
    assert "done" in start([sys.executable, str(script), allocators, "0", "400"], "sim", f"devices=2,peers=0-1,{check}", 0, None)
