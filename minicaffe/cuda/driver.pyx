"""The CUDA driver: loading it, or the simulated one in its place, and turning its codes into errors.

Every call goes through cuda-bindings' `cydriver`, which resolves the functions of the loaded ``libcuda.so.1``. With
``MINICAFFE_DEVICE=sim`` the simulated driver (minicaffe/sim) is loaded first under that name. The code above this file is the
same for both, except that NVRTC does not compile kernels for the simulated one (cuda/compile.py).
"""

import ctypes
import os
import threading

from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from minicaffe import sim
from minicaffe.errors import ConfigError, DependencyError, DeviceError, OutOfMemoryError

cdef bint _started = False
cdef bint _forked = False
cdef bint _closed = False
_lock = threading.RLock()
_library = None     # the simulated driver, kept open; None: the GPU's

FORKED = ("the GPU cannot be used in a process that was forked after GPU mode began; fork first, or use multiprocessing's start "
          "method 'spawn'")
CLOSED = "the process is ending and has returned the GPU's memory; use the GPU before that, not in a handler of atexit"
# Remedies, where the driver's own text has none.
REMEDIES = {
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or run with --device sim",
    "CUDA_ERROR_INVALID_DEVICE": "there is no such device; minicaffe device_query lists them",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another program holds the GPU exclusively; wait for it, or take another with --gpu",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "kernel module and driver library differ; restart the computer after the update",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "the driver is too old for this CUDA; update the NVIDIA driver",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the fabric manager and look at nvidia-smi",
    "CUDA_ERROR_NOT_INITIALIZED": "the driver was not started in this process",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "a kernel was compiled for another GPU; run minicaffe cache clear",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the driver is older than the compiler; update the NVIDIA driver, or install an "
                                          "older nvidia-cuda-nvrtc",
    "CUDA_ERROR_INVALID_IMAGE": "run minicaffe cache clear",
}
# After these errors the context and the contents of the device's memory are lost.
LOST = ("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED")


cdef bint may_call() noexcept nogil:
    """Whether the driver may be called: it was started by this process, which is not exiting."""
    return _started and not _forked and not _closed


cdef cydriver.CUcontext exchange_context(cydriver.CUcontext context) noexcept:
    """Make a context current in this thread, and return the previous one, NULL if there was none; for use in ``__dealloc__``.

    A deallocation may run in a thread without a context, or between the activation of another device and its use.
    """
    cdef cydriver.CUcontext before = NULL
    cydriver.cuCtxGetCurrent(&before)
    if before != context:
        cydriver.cuCtxSetCurrent(context)
    return before


cdef error_of(cydriver.CUresult code, str call, arguments=()):
    """Return the exception for a failed call, whose name and `arguments` are part of the message; never raises."""
    if _forked or _closed:
        return DeviceError(FORKED if _forked else CLOSED)
    cdef const char* text = NULL
    cdef const char* name = NULL
    cydriver.cuGetErrorName(code, &name)
    cydriver.cuGetErrorString(code, &text)
    shown = (<bytes> name).decode() if name != NULL else f"error {<int> code}"
    reason = (<bytes> text).decode("utf-8", "replace") if text != NULL else "no text for it"
    remedy = REMEDIES.get(shown, "")
    if shown in LOST:
        remedy = ("the device's memory is lost to this process; start the program again, from the last snapshot if there is "
                  "one (what is saved is whole)")
    message = f"{call}({', '.join(map(str, arguments))}): {shown}: {reason}" + (f"; {remedy}" if remedy else "")
    return OutOfMemoryError(message) if code == cydriver.CUDA_ERROR_OUT_OF_MEMORY else DeviceError(message, code=shown)


cdef int check(cydriver.CUresult code, str call, arguments=()) except -1:
    """Raise unless `code` is success. If the process is exiting or was forked, the message says so."""
    if code == cydriver.CUDA_SUCCESS:
        return 0
    raise error_of(code, call, arguments)


def start():
    """Load the driver and call cuInit; later calls do nothing.

    Raises DependencyError if there is no driver; DeviceError if it does not start, or in a process that was forked after it
    started; ConfigError if MINICAFFE_DEVICE names the other driver than this process has.
    """
    global _started, _library
    with _lock:
        if _forked:
            raise DeviceError(FORKED)
        requested = os.environ.get("MINICAFFE_DEVICE", "")
        if _started:
            has = "gpu" if _library is None else "sim"
            if requested in ("gpu", "sim") and requested != has:
                raise ConfigError(f"must be {has} or cpu in this process, which has that driver; "
                                  f"start another process for '{requested}'",
                                  field="MINICAFFE_DEVICE")
            return
        if requested not in ("", "gpu", "cpu", "sim"):
            raise ConfigError(f"must be cpu, gpu or sim, got '{requested}'", field="MINICAFFE_DEVICE")
        if requested == "sim" and _library is None:
            _library = ctypes.CDLL(sim.library(), mode=ctypes.RTLD_GLOBAL)
        try:
            code = cydriver.cuInit(0)
        except RuntimeError as error:   # cuda-pathfinder's DynamicLibNotFoundError
            raise DependencyError(f"no CUDA driver (libcuda.so.1) on this machine ({' '.join(str(error).split())[:200]}); "
                                  "install the NVIDIA driver, or simulate a GPU by MINICAFFE_DEVICE=sim (commands: "
                                  "--device sim)") from None
        check(code, "cuInit", (0,))
        os.register_at_fork(after_in_child=_forget)
        _started = True
        sim.set_loaded_driver(_library is not None)


def version():
    """Return the CUDA version of the driver, such as ``(13, 0)``."""
    cdef int number = 0
    start()
    check(cydriver.cuDriverGetVersion(&number), "cuDriverGetVersion")
    return number // 1000, number % 1000 // 10


def count():
    """Return the number of devices."""
    cdef int number = 0
    start()
    check(cydriver.cuDeviceGetCount(&number), "cuDeviceGetCount")
    return number


def entry_point(str name):
    """Return the address of a function of the driver, 0 if it has none of that name: only the simulated one has ``mcsim_...``."""
    cdef void* address = NULL
    cdef cydriver.CUdriverProcAddressQueryResult status
    encoded = name.encode()
    cydriver.cuGetProcAddress(encoded, &address, 12000, 0, &status)
    return <uintptr_t> address


def allocation(size_t address):
    """Return (device, first address, bytes) of the allocation around `address`, None if the driver has none.

    The device is -1 for memory that all devices can access: page-locked host memory, and managed memory.
    """
    cdef int ordinal = -1
    cdef unsigned managed = 0, kind = 0
    cdef cydriver.CUdeviceptr first = 0
    cdef size_t nbytes = 0
    if cydriver.cuPointerGetAttribute(&kind, cydriver.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != cydriver.CUDA_SUCCESS:
        return None
    check(cydriver.cuPointerGetAttribute(&managed, cydriver.CU_POINTER_ATTRIBUTE_IS_MANAGED, address), "cuPointerGetAttribute")
    check(cydriver.cuPointerGetAttribute(&first, cydriver.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address), "cuPointerGetAttribute")
    check(cydriver.cuPointerGetAttribute(&nbytes, cydriver.CU_POINTER_ATTRIBUTE_RANGE_SIZE, address), "cuPointerGetAttribute")
    if kind == cydriver.CU_MEMORYTYPE_DEVICE and not managed:
        check(cydriver.cuPointerGetAttribute(&ordinal, cydriver.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
              "cuPointerGetAttribute")
    return ordinal, first, nbytes


def close():
    """Prevent further calls of the driver (`may_call`): the process is exiting, which frees the remaining memory."""
    global _closed
    _closed = True


def _forget():
    """Mark this process as a forked child: it cannot use the driver's state that it inherited."""
    global _forked
    _forked = True
