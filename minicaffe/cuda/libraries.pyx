"""NVIDIA's libraries, opened at run time: where they are missing, our own kernels compute (cuda/libraries.hpp).

Only cuBLAS so far. The functions are called through pointers, so that nothing links against it; cuda-pathfinder finds the
library of the wheel nvidia-cublas or of an installed toolkit.
"""

import ctypes
import logging

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc

from minicaffe.cuda.device cimport Device
from minicaffe.ops.context cimport CudaStream

from minicaffe.errors import DeviceError

cdef extern from "minicaffe/cuda/libraries.hpp" nogil:
    ctypedef void (*sgemm_function "mc::cuda::CublasGemm<float>")()
    ctypedef void (*dgemm_function "mc::cuda::CublasGemm<double>")()
    struct Libraries "mc::cuda::Libraries":
        void* cublas
        sgemm_function sgemm
        dgemm_function dgemm
        void (*fail)(CudaStream*, const char* call, int status) noexcept

cdef extern from *:
    """
    static inline void set_libraries(mc::cuda::Stream* stream, mc::cuda::Libraries* libraries) { stream->libraries = libraries; }
    """
    void set_libraries(CudaStream* stream, Libraries* libraries) nogil

DEFAULT_MATH, TF32_MATH = 0, 3      # cublasMath_t
log = logging.getLogger(__name__)
_library = None
tf32 = True     # matrix products of float32 round their factors to 10 bits of mantissa (allow_tf32)


def allow_tf32(allow):
    """Say whether cuBLAS may round the factors of float32 products to TF32, which is several times as fast; the default.

    For devices that are used afterwards for the first time.
    """
    global tf32
    tf32 = bool(allow)


def open_cublas():
    """Return the library as a ctypes object, or None where there is none."""
    global _library
    if _library is None:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
        try:
            _library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
        except (DynamicLibNotFoundError, OSError) as error:
            log.info("no cuBLAS (%s): our own kernel multiplies matrices; pip install nvidia-cublas", str(error).split("\n")[0])
            _library = False
    return _library or None


cdef int attach(Device device) except -1:
    """Let matrix products on the device's stream go to cuBLAS, if it is there."""
    library = open_cublas()
    if library is None:
        return 0
    handle = ctypes.c_void_p()
    device.activate()
    _checked(library, "cublasCreate_v2", ctypes.byref(handle))
    _checked(library, "cublasSetStream_v2", handle, ctypes.c_void_p(<uintptr_t> device.stream.handle))
    _checked(library, "cublasSetMathMode", handle, TF32_MATH if tf32 else DEFAULT_MATH)
    # A workspace of ours: cuBLAS would take its own when a graph is recorded, which must not allocate.
    _checked(library, "cublasSetWorkspace_v2", handle, ctypes.c_void_p(<uintptr_t> device.stream.workspace),
             ctypes.c_size_t(device.stream.workspace_bytes))
    cdef Libraries* libraries = <Libraries*> calloc(1, sizeof(Libraries))   # lives as long as the process, as the device does
    libraries.cublas = <void*> <uintptr_t> handle.value
    libraries.sgemm = <sgemm_function> <uintptr_t> _address(library.cublasSgemmStridedBatched)
    libraries.dgemm = <dgemm_function> <uintptr_t> _address(library.cublasDgemmStridedBatched)
    libraries.fail = fail
    set_libraries(&device.stream, libraries)
    return 0


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def _checked(library, call, *arguments):
    status = getattr(library, call)(*arguments)
    if status:
        raise DeviceError(f"{call}: {_status_name(library, status)}", code=str(status))


def _status_name(library, status):
    library.cublasGetStatusString.restype = ctypes.c_char_p
    return library.cublasGetStatusString(status).decode()


cdef void fail(CudaStream* stream, const char* call, int status) noexcept with gil:
    from minicaffe.cuda.device import keep_failure_of
    keep_failure_of(stream.device, DeviceError(f"{(<bytes> call).decode()}: {_status_name(_library, status)}; if it happens again, "
                                               "uninstall nvidia-cublas: our own kernel then multiplies", code=str(status)))


def attach_to(Device device not None):
    """Open the libraries for `device`."""
    attach(device)
