"""Calls that fail in the middle of a training: a typed error that names call and remedy, and everything works afterwards.

What loses the context ends in a process of its own.
"""

import gc

import numpy as np
import pytest
from processes import run, run_gpu
from training import losses, make_solver

from minicaffe import cuda, memory
from minicaffe.blob import Blob
from minicaffe.cuda.device import store_failure_of
from minicaffe.errors import ConfigError, DeviceError, OutOfMemoryError


@pytest.fixture
def plain(gpu_mode):
    """Every block from the driver, so that its calls can be counted."""
    for place in memory.CUDAPlace(0), memory.PinnedPlace():
        memory.use(place, "plain")


def test_allocators_in_a_reference_cycle():
    """The collector clears its objects in any order; cached blocks go back to the driver all the same."""
    run_gpu("""
    from minicaffe.memory.registry import registry
    for place in memory.CUDAPlace(0), memory.PinnedPlace():
        for name in "plain", "caching", "buddy", "caching+limit:1GiB":
            memory.use(place, name)
            allocator = registry.allocator(place)
            kept = memory.Buffer(allocator, 7000)
            if place == memory.CUDAPlace(0):
                kept.record_stream(cuda.Stream(cuda.current()))     # so that an event is recorded when it is freed
            allocator.free(allocator.alloc(5000))
            ring = [allocator, kept]
            ring.append(ring)
            memory.use(place, "plain")
            del allocator, ring, kept
            gc.collect()
    """, "sim")


def test_error_ends_the_recording(sim, blob):
    """Also where the driver fails to end it at the first call: what runs afterwards runs at once, and is not recorded."""
    sim("fail=cuStreamEndCapture:1")
    with pytest.raises(ZeroDivisionError), cuda.Graph(cuda.current()) as graph:
        raise ZeroDivisionError
    blob.scale_data(2)
    assert (blob.cpu_data == 6).all() and graph.nodes == 0


def test_failed_graph_keeps_nothing(sim):
    """What is dropped while a graph is recorded lives as long as that, which here is not at all."""
    graph = cuda.Graph(cuda.current())
    before = memory.stats(memory.CUDAPlace(0)).live
    sim("fail=cuGraphInstantiateWithFlags:1")
    with pytest.raises(DeviceError, match="cuGraphInstantiate"), graph:
        Blob((100,)).gpu_data  # noqa: B018
    assert memory.stats(memory.CUDAPlace(0)).live == before


def test_kernel_loaded_in_a_recording(plain, blob):
    """The driver refuses to load a module during a capture, unless the thread's mode is relaxed."""
    twice = cuda.kernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
    with cuda.Graph(cuda.current()) as graph:
        twice((1,), (100,), (blob,))
    graph.replay(0, 0)
    assert (blob.cpu_data == 6).all()


def test_collector_in_a_recording(plain, blob):
    """Which may free any memory, of allocators too; an error ends the pause as the end of a recording does."""
    def leave_garbage():
        allocator = memory.allocator_of(memory.CUDAPlace(0), "caching")
        allocator.free(allocator.alloc(5000))
        ring = [allocator]
        ring.append(ring)

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with cuda.Graph(cuda.current()) as graph:
            leave_garbage()
            rings = []
            for _ in range(100):    # objects whose making would start the collector
                rings.append([])
            blob.scale_data(2)
        assert gc.isenabled()
        with pytest.raises(ZeroDivisionError), cuda.Graph(cuda.current()):
            assert not gc.isenabled()
            raise ZeroDivisionError
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()
    gc.disable()        # a program's own choice stays
    try:
        with cuda.Graph(cuda.current()):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    graph.replay(0, 0)
    assert (blob.cpu_data == 6).all()


def test_collector_pauses_for_any_graph():
    """Of graphs of two devices at once; it is on again after the last one, whichever that is."""
    run_gpu("""
    import threading
    devices = [cuda.get_device(i) for i in range(2)]
    for first_ends_first in (True, False):
        for was_on in (True, False):
            (gc.enable if was_on else gc.disable)()
            graphs, entered, leave = [cuda.Graph(device) for device in devices], threading.Event(), threading.Event()

            def record():
                with graphs[1]:
                    entered.set()
                    leave.wait()

            other = threading.Thread(target=record)
            with graphs[0]:
                other.start()
                entered.wait()
                assert not gc.isenabled()
                if not first_ends_first:
                    leave.set()
                    other.join()
                    assert not gc.isenabled()
            if first_ends_first:
                assert not gc.isenabled()
                leave.set()
                other.join()
            assert gc.isenabled() == was_on, (first_ends_first, was_on)
    """, "sim", "devices=2")


def test_stored_failure_raised_by_copy(sim, blob):
    """As of a library, whose calls raise nothing themselves; the stream works afterwards."""
    blob.mutable_gpu_data  # noqa: B018
    store_failure_of(cuda.current().index, DeviceError("a product failed"))
    with pytest.raises(DeviceError, match="a product failed"):
        blob.cpu_data  # noqa: B018
    assert (blob.cpu_data == 3).all()


@pytest.mark.parametrize("wait", [lambda blob: blob.cpu_data, lambda blob: cuda.current().synchronize(), lambda blob: blob.asum_data()])
def test_first_failure_raised_once(sim, wait, blob):
    """The later ones follow from it."""
    blob.mutable_gpu_data  # noqa: B018
    for name in "first", "next":
        for error in DeviceError(f"the {name} of all"), DeviceError("a second one"), OutOfMemoryError("a third one"):
            store_failure_of(cuda.current().index, error)
        with pytest.raises(DeviceError, match=f"the {name} of all"):
            wait(blob)
        cuda.current().synchronize()
    assert (blob.cpu_data == 3).all() and blob.asum_data() == 300


def test_a_graph_is_recorded_once(sim, blob):
    with cuda.Graph(cuda.current()) as graph:
        blob.scale_data(2)
    with pytest.raises(ConfigError, match="recorded already"), graph:
        blob.scale_data(5)
    graph.replay(0, 0)
    assert (blob.cpu_data == 6).all() and graph.nodes == 1


@pytest.mark.parametrize("call", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphGetNodes"])
def test_graph_that_cannot_be_recorded(sim, call):
    expected, solver = losses(make_solver(), 8), make_solver()
    losses(solver, 2)
    sim(f"fail={call}:1")
    np.testing.assert_allclose(losses(solver, 6), expected[2:], rtol=1e-5)


def test_failed_copy_keeps_the_head(sim):
    blob = Blob((100,))
    blob.data[...] = 3
    sim("fail=cuMemcpyHtoDAsync:1")
    with pytest.raises(DeviceError, match=r"cuMemcpyHtoDAsync\(0x[0-9a-f]+, 0x[0-9a-f]+, 400\): CUDA_ERROR_UNKNOWN"):
        blob.gpu_data  # noqa: B018
    assert (blob.cpu_data == 3).all()
    blob.scale_data(2)
    sim("fail=cuMemcpyDtoHAsync:1")
    with pytest.raises(DeviceError, match="cuMemcpyDtoHAsync"):
        blob.cpu_data  # noqa: B018
    assert (blob.cpu_data == 6).all()


def test_failed_free_does_not_raise(sim, plain, capfd):
    blob = Blob((100,))
    blob.gpu_data  # noqa: B018
    sim("fail=cuMemFree:1")
    del blob  # no caller can catch what goes wrong here
    assert losses(make_solver(), 1)


def test_kernels_that_cannot_be_loaded():
    """Loading each kernel of the first iteration fails once: a typed error every time, then the training continues."""
    run("""
    import ctypes
    from training import make_solver, losses
    from minicaffe import sim
    configure = ctypes.CDLL(sim.library(), ctypes.RTLD_GLOBAL).mcsim_configure
    minicaffe.set_mode_gpu()
    solver = make_solver()
    solver.use_graphs = False  # a recording that fails is replaced by launches
    for call in "cuModuleLoadData", "cuModuleGetFunction":
        assert configure(f"fail={call}:1".encode()) == 0
        refused(errors.DeviceError, lambda: solver.step(1), call, "CUDA_ERROR_UNKNOWN")
    for call in "cuModuleLoadData:1:CUDA_ERROR_NO_BINARY_FOR_GPU", "cuModuleLoadData:1:CUDA_ERROR_INVALID_IMAGE":
        assert configure(f"fail={call}".encode()) == 0
        refused(errors.DeviceError, lambda: solver.step(1), "cuModuleLoadData", "minicaffe cache clear")
    for n in (2, 3):
        assert configure(f"fail=cuModuleLoadData:{n}".encode()) == 0
        refused(errors.DeviceError, lambda: solver.step(1), "cuModuleLoadData")
    assert np.isfinite(losses(solver, 4)).all()
    """, "sim")


def test_continue_after_out_of_memory():
    """64 MiB hold the small net, but not a blob of 40 MiB twice; what was freed serves again."""
    text = run_gpu("""
    from training import NET, make_solver, losses
    solver = make_solver()
    losses(solver, 2)
    keep = Blob((10 << 20,), name="the great one")
    keep.gpu_data
    big = make_solver(NET.replace("dim: 8", "dim: 8000"), random_seed=-1)
    error = refused(errors.OutOfMemoryError, lambda: big.step(1))
    print(error)
    assert isinstance(error, MemoryError)
    again = refused(errors.OutOfMemoryError, lambda: big.step(1))
    assert np.isfinite(losses(solver, 3)).all()     # others work
    del keep, error, again
    gc.collect()
    memory.empty_cache()
    big = make_solver(NET.replace("dim: 8", "dim: 800"), random_seed=-1)
    assert np.isfinite(losses(big, 2)).all()
    assert np.isfinite(losses(solver, 3)).all()
    """, "sim", "memory=64MiB")
    assert "bytes" in text.lower() or "MiB" in text, text


@pytest.mark.parametrize("graphs", [True, False])
def test_memory_goes_with_the_solver(graphs):
    """Not with a collection later: after an error the next solver, of a smaller batch, needs the memory at once."""
    places = memory.CUDAPlace(0), memory.PinnedPlace()
    gc.collect()
    before = [memory.used(p) for p in places]
    gc.disable()
    try:
        solver = make_solver()
        solver.use_graphs = graphs
        losses(solver, 4)
        assert memory.used(places[0]) > before[0]
        del solver
        assert [memory.used(p) for p in places] == before
    finally:
        gc.enable()


LOST = """
import ctypes, warnings
from training import make_solver, losses
minicaffe.set_mode_gpu()
solver = make_solver(snapshot_prefix=os.path.join(os.getcwd(), "small"))
losses(solver, 4)
model, state = solver.snapshot()
saved = open(model, "rb").read(), open(state, "rb").read()
stray = cuda.kernel('extern "C" __global__ void stray(float* p, long long far) { p[far + threadIdx.x] = 1; }', "stray")
blob = Blob((16,))
blob.data[...] = 5
def use():
    stray((1,), (32,), (blob, 1 << 34))
    cuda.current().synchronize()
error = refused(errors.DeviceError, use, "CUDA_ERROR_ILLEGAL_ADDRESS", "lost", "snapshot")
print(error)
for attempt in lambda: solver.step(1), lambda: blob.cpu_data, lambda: Blob((4,)).gpu_data, lambda: solver.step(1):
    refused(errors.DeviceError, attempt, "CUDA_ERROR_ILLEGAL_ADDRESS", "lost")
assert (open(model, "rb").read(), open(state, "rb").read()) == saved
assert sorted(os.listdir()) == sorted([os.path.basename(model), os.path.basename(state)]), os.listdir()
minicaffe.set_mode_cpu()                # what is not on the device can be used
other = make_solver()
other.restore(state)
assert other.iter == 4 and np.isfinite(losses(other, 3)).all()
"""


def test_faulting_kernel_keeps_snapshots(place, tmp_path):
    text = run(LOST, place, cwd=tmp_path)
    if place == "sim":
        assert "stray" in text  # the simulated device knows who it was
