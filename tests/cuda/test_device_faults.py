"""Calls that fail in the middle of a training: a typed error that names call and remedy, and everything works afterwards.

What loses the context ends in a process of its own. Of blocks that our allocators cut from one piece of memory the simulated device knows the bounds.
"""

import gc

import numpy as np
import pytest
from helpers import one_of
from processes import run, run_gpu
from sim_checks import checks_on
from training import losses, make_solver

from minicaffe import cuda, memory
from minicaffe.blob import Blob
from minicaffe.cuda.device import store_failure_of
from minicaffe.errors import ConfigError, DeviceError, OutOfMemoryError
from minicaffe.memory.registry import registry


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
    """Also where the driver fails to end it at the first call: what runs afterwards runs at once, and is not recorded. A failed graph keeps no memory."""
    sim("fail=cuStreamEndCapture:1")
    with pytest.raises(ZeroDivisionError), cuda.Graph(cuda.current()) as graph:
        raise ZeroDivisionError
    blob.scale_data(2)
    assert (blob.cpu_data == 6).all() and graph.nodes == 0
    before = memory.stats(memory.CUDAPlace(0)).live
    sim("fail=cuGraphInstantiateWithFlags:1")
    with pytest.raises(DeviceError, match="cuGraphInstantiate"), cuda.Graph(cuda.current()) as graph:
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
    """Which may free any memory, of allocators too."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with cuda.Graph(cuda.current()) as graph:
            allocator = memory.allocator_of(memory.CUDAPlace(0), "caching")
            allocator.free(allocator.alloc(5000))
            ring = [allocator]
            ring.append(ring)
            del allocator, ring
            rings = []
            for _ in range(100):    # objects whose making would start the collector
                rings.append([])
            blob.scale_data(2)
    finally:
        gc.set_threshold(*before)
    graph.replay(0, 0)
    assert (blob.cpu_data == 6).all()


def test_collector_pauses_for_any_graph():
    """Of graphs of two devices at once, and where one ends by an error; it is on again after the last one, unless the program chose otherwise."""
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
            try:
                with graphs[0]:
                    other.start()
                    entered.wait()
                    assert not gc.isenabled()
                    if not first_ends_first:
                        leave.set()
                        other.join()
                        assert not gc.isenabled()
                    1 / first_ends_first
            except ZeroDivisionError:
                pass
            if first_ends_first:
                assert not gc.isenabled()
                leave.set()
                other.join()
            assert gc.isenabled() == was_on, (first_ends_first, was_on)
    """, "sim", "devices=2")


@pytest.mark.parametrize("wait", [lambda blob: blob.cpu_data, lambda blob: cuda.current().synchronize(), lambda blob: blob.asum_data()])
def test_stored_failure_raised_once(sim, wait, blob):
    """As of a library, whose calls raise nothing themselves; the later ones follow from it. The stream works afterwards."""
    blob.mutable_gpu_data  # noqa: B018
    for name in "first", "next":
        for error in DeviceError(f"the {name} of all"), DeviceError("a second one"), OutOfMemoryError("a third one"):
            store_failure_of(cuda.current().index, error)
        with pytest.raises(DeviceError, match=f"the {name} of all"):
            wait(blob)
        cuda.current().synchronize()
    assert (blob.cpu_data == 3).all() and blob.asum_data() == 300


def test_a_graph_is_recorded_once(sim, blob):
    graph = cuda.Graph(cuda.current())
    with pytest.raises(DeviceError, match="nothing was recorded in this graph"):
        graph.replay(0, 0)
    with graph:
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


def test_failed_copies_and_frees(sim, plain):
    """A copy that fails leaves the head; what fails in a free cannot be caught, so it is only reported."""
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
    sim("fail=cuMemFree:1")
    del blob
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
    for call, *words in (("cuModuleLoadData:1", "CUDA_ERROR_UNKNOWN"), ("cuModuleGetFunction:1", "CUDA_ERROR_UNKNOWN"),
                         ("cuModuleLoadData:1:CUDA_ERROR_NO_BINARY_FOR_GPU", "minicaffe cache clear"),
                         ("cuModuleLoadData:1:CUDA_ERROR_INVALID_IMAGE", "minicaffe cache clear"), ("cuModuleLoadData:2",), ("cuModuleLoadData:3",)):
        assert configure(f"fail={call}".encode()) == 0
        refused(errors.DeviceError, lambda: solver.step(1), call.partition(":")[0], *words)
    assert np.isfinite(losses(solver, 4)).all()
    """, "sim")


@pytest.mark.slow(1)
def test_continue_after_out_of_memory():
    """64 MiB hold the small net, but not a blob of 40 MiB twice; what was freed serves again."""
    run_gpu("""
    from training import NET, make_solver, losses
    solver = make_solver()
    losses(solver, 2)
    keep = Blob((10 << 20,), name="the great one")
    keep.gpu_data
    big = make_solver(NET.replace("dim: 8", "dim: 8000"), random_seed=-1)
    for _ in range(2):
        assert isinstance(refused(errors.OutOfMemoryError, lambda: big.step(1), "bytes"), MemoryError)
    assert np.isfinite(losses(solver, 3)).all()     # others work
    del keep
    gc.collect()
    memory.empty_cache()
    assert np.isfinite(losses(make_solver(NET.replace("dim: 8", "dim: 800"), random_seed=-1), 2)).all()
    assert np.isfinite(losses(solver, 3)).all()
    """, "sim", "memory=64MiB")


@pytest.mark.parametrize("graphs", [True, False])
def test_memory_goes_with_the_solver(graphs):
    """Not with a collection later: after an error the next solver, of a smaller batch, needs the memory at once."""
    def used():
        return [memory.used(place) for place in (memory.CUDAPlace(0), memory.PinnedPlace())]

    gc.collect()
    before = used()
    gc.disable()
    try:
        solver = make_solver()
        solver.use_graphs = graphs
        losses(solver, 4)
        assert used()[0] > before[0]
        del solver
        assert used() == before
    finally:
        gc.enable()


@pytest.mark.slow(1)
def test_faulting_kernel_keeps_snapshots(place, tmp_path):
    text = run("""
from training import make_solver, losses
minicaffe.set_mode_gpu()
solver = make_solver(snapshot_prefix=os.path.join(os.getcwd(), "small"))
losses(solver, 4)
files = solver.snapshot()
saved = [open(file, "rb").read() for file in files]
stray = cuda.kernel('extern "C" __global__ void stray(float* p, long long far) { p[far + threadIdx.x] = 1; }', "stray")
blob = Blob((16,))
blob.data[...] = 5
def use():
    stray((1,), (32,), (blob, 1 << 34))
    cuda.current().synchronize()
print(refused(errors.DeviceError, use, "CUDA_ERROR_ILLEGAL_ADDRESS", "lost", "snapshot"))
for attempt in lambda: solver.step(1), lambda: blob.cpu_data, lambda: Blob((4,)).gpu_data, lambda: solver.step(1):
    refused(errors.DeviceError, attempt, "CUDA_ERROR_ILLEGAL_ADDRESS", "lost")
assert [open(file, "rb").read() for file in files] == saved and sorted(os.listdir()) == sorted(map(os.path.basename, files)), os.listdir()
minicaffe.set_mode_cpu()                # what is not on the device can be used
other = make_solver()
other.restore(files[1])
assert other.iter == 4 and np.isfinite(losses(other, 3)).all()
""", place, cwd=tmp_path)
    assert place != "sim" or "stray" in text  # the simulated device knows who it was


@pytest.fixture(params=["caching", "buddy", "caching+limit:1GiB", "plain"])
def allocator(request, only_sim):
    """An allocator of the simulated device, fresh."""
    if request.param != "plain" and "deferred=1" in checks_on():
        pytest.skip("with deferred=1 the simulated device closes no blocks of a pool")
    memory.use(memory.CUDAPlace(0), request.param)
    return registry.allocator(memory.CUDAPlace(0))


def fill(address, nbytes):
    host = np.ones(nbytes, np.uint8)
    registry.device_side(memory.CUDAPlace(0)).copy_to_device(address, host.ctypes.data, nbytes)


@pytest.mark.parametrize("nbytes", [1, 512, 4096, 100_000, 3 << 20])
def test_copies_end_where_their_block_ends(allocator, nbytes):
    blocks = [memory.Buffer(allocator, nbytes) for _ in range(3)]
    for block in blocks:
        fill(block.address, nbytes)
        with pytest.raises(DeviceError, match=f"0 bytes past the end of .*{nbytes} bytes at {block.address:#x}"):
            fill(block.address, nbytes + 1)
        with pytest.raises(DeviceError, match="out of bounds|not the start|past the end|before"):
            fill(block.address - 1, 1)


@pytest.mark.parametrize(("name", "far"), one_of(3, [
    ("buddy", 250), ("caching", 250), ("caching", 1030), ("caching", "freed - first"), ("buddy", "freed - first")]))
def test_a_kernel_that_leaves_its_block(only_sim, place, name, far):
    """It writes to the bytes next to a block, far beyond it, and to a block that was freed."""
    text = run_gpu(f"""
    memory.use(memory.CUDAPlace(0), {name!r})
    stray = cuda.kernel('extern "C" __global__ void stray(float* p, long long far) {{ p[far] = 1; }}', "stray")
    blob, other = Blob((250,)), Blob((250,))
    first, freed = blob.gpu_data.address // 4, other.gpu_data.address // 4
    del other
    def use():
        stray((1,), (1,), (blob, {far}))
        cuda.current().synchronize()
    print(refused(errors.DeviceError, use, "CUDA_ERROR_ILLEGAL_ADDRESS", "kernel stray"))
    """, place, "deferred=0")   # with it no blocks are closed
    assert f"{': 0 ' if far == 250 else ''}bytes past the end of a block of 1000 bytes at 0x" in text, text
