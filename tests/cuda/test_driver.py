"""Starting the driver: none there, none wanted, wrong numbers, a driver that fails, threads, fork, and the end of a process."""

import ctypes.util
import os

import pytest
from processes import run, run_gpu

pytestmark = pytest.mark.slow(12)    # all together

DRIVERLESS = pytest.mark.skipif(ctypes.util.find_library("cuda") is not None or os.path.exists("/dev/nvidiactl"),
                                reason="this machine has a CUDA driver")


@DRIVERLESS
def test_cpu_works_without_a_driver():
    run("""
    for _ in range(2):
        for call in minicaffe.set_mode_gpu, cuda.count, cuda.version, lambda: minicaffe.set_device(0), lambda: cuda.get_device(0):
            refused(errors.DependencyError, call, "no CUDA driver (libcuda.so.1)", "install the NVIDIA driver", "--device sim")
    refused(errors.DependencyError, lambda: Blob((3,)).gpu_data, "no CUDA driver")
    assert cuda.current() is None
    blob = Blob((3,))
    blob.data[...] = 2
    blob.scale_data(2)
    assert blob.asum_data() == 12
    os.environ["MINICAFFE_DEVICE"] = "sim"  # a driver that was not found may be asked for again, and another one used
    """)


@DRIVERLESS
def test_own_kernels_without_driver():
    run('refused(errors.ConfigError, lambda: cuda.elementwise("T x", "T y", "y = x")(Blob((3,)), Blob((3,))), "GPU mode")')


@pytest.mark.parametrize("name", ["tpu", "0", "SIM"])
def test_a_wrong_device_in_the_environment(name):
    words = "MINICAFFE_DEVICE", "must be cpu, gpu or sim", name
    run(f"for _ in range(2): refused(errors.ConfigError, minicaffe.set_mode_gpu, *{words!r})", name)


@pytest.mark.parametrize(("settings", "code", "words"), [
    ("devices=0", "CUDA_ERROR_NO_DEVICE", ["cuInit(0)", "nvidia-smi", "--device sim", "no GPU is visible", "; with MINICAFFE_DEVICE=cpu set_mode_gpu()"]),
    ("colour=1", "CUDA_ERROR_INVALID_VALUE", ["cuInit(0)", "colour=1"]),
    ("fail=cuInit:1:CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", ["restart the computer"]),
    ("fail=cuDevicePrimaryCtxRetain:1:CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_DEVICE_UNAVAILABLE",
     ["cuDevicePrimaryCtxRetain(0)", "another program holds the GPU", "--gpu"]),
])  # fmt: skip
def test_a_driver_that_does_not_start(settings, code, words):
    run(f"""
    error = refused(errors.DeviceError, minicaffe.set_mode_gpu, {code!r}, *{words!r})
    assert error.code == {code!r}, error.code
    assert cuda.current() is None and Blob((3,)).asum_data() == 0
    if error.code == "CUDA_ERROR_NO_DEVICE":
        assert cuda.missing().code == error.code
    """, "sim", settings)
    if "cuInit" in settings:
        run(f"refused(errors.DeviceError, cuda.missing, {words[0]!r})", "sim", settings)


def test_start_after_a_failure():
    """Each call that makes a device fails in turn; none leaves half a device behind."""
    run("""
    import ctypes
    from minicaffe import sim
    configure = ctypes.CDLL(sim.library(), ctypes.RTLD_GLOBAL).mcsim_configure
    for plan in ("cuInit:1", "cuDeviceGetCount:1", "cuDeviceGet:1", "cuDeviceGetName:1", "cuDeviceGetAttribute:2",
                 "cuDevicePrimaryCtxRetain:1", "cuCtxSetCurrent:1", "cuStreamCreate:1", "cuMemAlloc:1", "cuMemAlloc:2",
                 "cuStreamCreate:2"):
        assert configure(f"fail={plan}".encode()) == 0
        call = plan.partition(":")[0]
        error = refused((errors.DeviceError, errors.OutOfMemoryError), minicaffe.set_mode_gpu, call, "made to fail")
        assert isinstance(error, errors.OutOfMemoryError) == (call == "cuMemAlloc")
        assert cuda.current() is None
    minicaffe.set_mode_gpu()
    assert cuda.missing() is None
    blob = Blob((5,))
    blob.data[...] = 1
    blob.scale_data(3)
    assert blob.asum_data() == 15
    """, "sim")


def test_fork(place):
    """Before GPU mode it is free; afterwards the child computes on the CPU alone."""
    run("""
    early = os.fork()
    minicaffe.set_mode_gpu()
    blob = Blob((100,))
    blob.data[...] = 1
    blob.scale_data(2)
    assert blob.sumsq_data() == 400
    if not early:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(early, 0)[1]) == 3
    sys.stdout.flush()
    child = os.fork()
    if not child:
        for _ in range(2):
            for call in minicaffe.set_mode_gpu, cuda.count:
                refused(errors.DeviceError, call, "forked", "spawn")
        for call in lambda: blob.cpu_data, lambda: blob.scale_data(2), lambda: Blob((3,)).gpu_data:
            refused(errors.DeviceError, call)
        del blob  # which must not reach the parent's device
        gc.collect()
        minicaffe.set_mode_cpu()
        other = Blob((3,))
        other.data[...] = 1
        assert other.asum_data() == 3
        print("the child is done")
        sys.exit(7)  # through everything that runs at exit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert blob.asum_data() == 200
    blob.scale_data(2)
    assert blob.cpu_data[5] == 4
    """, place)


@pytest.mark.parametrize(("ending", "status"), [
    ("", 0), ("sys.exit(5)", 5), ("raise SystemExit('bye')", 1), ("raise ValueError('on purpose')", 1), ("os._exit(4)", 4),
    ("minicaffe.set_mode_cpu()", 0), ("import atexit; atexit.register(lambda: blob.scale_data(2))", 0),
    ("import threading; t = threading.Thread(target=lambda: blob.scale_data(2)); t.start()", 0),
])  # fmt: skip
def test_end_of_a_process(place, ending, status):
    run_gpu(f"""
    blob = Blob((100, 100))
    blob.data[...] = 1
    blob.scale_data(2)                  # work that no thread has waited for
    stream, event = cuda.Stream(cuda.current()), cuda.Event(cuda.current())
    event.record(stream)
    array, view = blob.gpu_data, blob.cpu_data
    class Cycle: pass
    ring = Cycle(); ring.self, ring.blob, ring.stream = ring, Blob((50,)), stream
    ring.blob.gpu_data
    sys.modules["kept"] = ring          # dropped last of all
    def keep(b=Blob((7,))): b.gpu_data
    keep()
    {ending}
    """, place, status=status)


def test_a_process_returns_what_it_took():
    """What minicaffe took for itself is no leak; what the program still holds is listed."""
    text = run_gpu("""
    f = cuda.elementwise("T x", "T y", "y = x + 1")
    def work():
        blob, other = Blob((100, 100)), Blob((100, 100))
        f(blob, other)
        other.mutable_cpu_data
        other.async_gpu_push(cuda.Stream(cuda.current()))
        class Cycle: pass
        ring = Cycle(); ring.self, ring.blob = ring, other
        assert other.asum_data() == 10000
    work()
    """, "sim", settings="leak=1")
    assert "not given back" not in text, text
    text = run_gpu("""
    sys.modules["kept"] = cuda.Stream(cuda.current()), cuda.Event(cuda.current()), Blob((3,)).gpu_data
    """, "sim", settings="leak=1")
    assert "event #" in text and "allocation #" in text, text


def test_late_exit_handler_is_reported(place):
    text = run_gpu("""
    held.append(Blob((100,)))
    held[0].gpu_data
    """, place, before="""
    import atexit
    held = []
    atexit.register(lambda: refused(errors.DeviceError, lambda: held[0].scale_data(2), "process is ending"))
    atexit.register(lambda: print("handlers ran"))      # minicaffe registers its own later, which run before these
    """)
    assert "handlers ran" in text and "Traceback" not in text, text


def test_a_process_has_one_driver():
    run_gpu("""
    from minicaffe import sim
    os.environ["MINICAFFE_DEVICE"] = "gpu"
    for call in minicaffe.set_mode_gpu, cuda.count, cuda.version:
        refused(errors.ConfigError, call, "MINICAFFE_DEVICE: must be sim or cpu in this process", "start another process for 'gpu'")
    os.environ["MINICAFFE_DEVICE"] = "cpu"
    assert sim.selected()   # whatever the variable says later: kernels of this process are the host's
    twice = cuda.kernel('extern "C" __global__ void twice(float* x) { x[0] *= 2; }', "twice")
    blob = Blob((1,))
    blob.data[...] = 2
    twice((1,), (1,), (blob,))
    assert blob.cpu_data[0] == 4
    """, "sim")
