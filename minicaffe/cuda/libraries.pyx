"""NVIDIA's libraries, opened at run time: where they are missing, our own kernels compute (cuda/libraries.hpp).

cuBLAS is opened with the device, cuDNN (cuda/cudnn.pyx) when a layer first asks for it. Functions are called through pointers,
so that nothing links against them; cuda-pathfinder finds the libraries of the wheels nvidia-cublas and nvidia-cudnn-cu13 or of
an installed toolkit. On the simulated device only libraries are opened that MINICAFFE_CUBLAS or MINICAFFE_CUDNN names.
"""

import ctypes
import logging
import os

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc

from minicaffe.device.context cimport CudaStream

from minicaffe import sim
from minicaffe.cuda import cudnn
from minicaffe.errors import DependencyError, DeviceError

cdef extern from "minicaffe/cuda/libraries.hpp" nogil:
    struct Cudnn "mc::cuda::Cudnn"
    ctypedef void (*sgemm_function "mc::cuda::CublasGemm<float>")()
    ctypedef void (*dgemm_function "mc::cuda::CublasGemm<double>")()
    struct Libraries "mc::cuda::Libraries":
        void* cublas
        sgemm_function sgemm
        dgemm_function dgemm
        void (*fail)(CudaStream*, const char* call, int status) noexcept
        Cudnn* cudnn
        const char* no_cudnn
        void (*open_cudnn)(CudaStream*) noexcept

cdef extern from *:
    """
    static inline void set_libraries(mc::cuda::Stream* stream, mc::cuda::Libraries* libraries) { stream->libraries = libraries; }
    static inline mc::cuda::Libraries* libraries_of(const mc::cuda::Stream* stream) { return stream->libraries; }
    """
    void set_libraries(CudaStream* stream, Libraries* libraries) nogil
    Libraries* libraries_of(const CudaStream* stream) nogil

DEFAULT_MATH, TF32_MATH = 0, 3      # cublasMath_t
log = logging.getLogger(__name__)
_library = None
_keep_failure = None    # of cuda/device.pyx: lets a device's stream fail with an error
tf32 = True     # matrix products of float32 round their factors to 10 bits of mantissa (allow_tf32)
cdef bytes _no_cudnn = None     # the text of which devices have the address


def allow_tf32(allow):
    """Say whether cuBLAS and cuDNN may round the factors of float32 products to TF32, which is several times as fast; the default.

    For devices that are used afterwards for the first time.
    """
    global tf32
    tf32 = bool(allow)


def open_cublas():
    """Return the library as a ctypes object, or None where there is none."""
    global _library
    named = os.environ.get("MINICAFFE_CUBLAS")
    if _library is None and sim.selected() and not named:
        return None
    if _library is None:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
        try:
            _library = ctypes.CDLL(named or load_nvidia_dynamic_lib("cublas").abs_path)
        except (DynamicLibNotFoundError, OSError) as error:
            log.info("no cuBLAS (%s): our own kernel multiplies matrices; pip install nvidia-cublas", str(error).split("\n")[0])
            _library = False
    return _library or None


def attach(size_t stream, keep_failure):
    """Open the libraries for the computing stream at address `stream`; the context of its device is the calling thread's.

    What fails later, where nothing can be raised, is given to ``keep_failure(device, error)``.
    """
    global _keep_failure
    _keep_failure = keep_failure
    cdef Libraries* libraries = <Libraries*> calloc(1, sizeof(Libraries))   # lives as long as the process, as the device does
    if libraries == NULL:
        raise MemoryError()
    libraries.open_cudnn, libraries.fail = open_cudnn, fail
    attach_cublas(<CudaStream*> stream, libraries)
    set_libraries(<CudaStream*> stream, libraries)


cdef int attach_cublas(CudaStream* stream, Libraries* libraries) except -1:
    """Let matrix products on the stream go to cuBLAS, if it is there."""
    library = open_cublas()
    if library is None:
        return 0
    handle = ctypes.c_void_p()
    _checked(library, "cublasCreate_v2", ctypes.byref(handle))
    _checked(library, "cublasSetStream_v2", handle, ctypes.c_void_p(<uintptr_t> stream.handle))
    _checked(library, "cublasSetMathMode", handle, TF32_MATH if tf32 else DEFAULT_MATH)
    # A workspace of ours: cuBLAS would take its own when a graph is recorded, which must not allocate.
    _checked(library, "cublasSetWorkspace_v2", handle, ctypes.c_void_p(<uintptr_t> stream.workspace),
             ctypes.c_size_t(stream.workspace_bytes))
    libraries.cublas = <void*> <uintptr_t> handle.value
    libraries.sgemm = <sgemm_function> <uintptr_t> _address(library.cublasSgemmStridedBatched)
    libraries.dgemm = <dgemm_function> <uintptr_t> _address(library.cublasDgemmStridedBatched)


cdef void open_cudnn(CudaStream* stream) noexcept with gil:
    """Open cuDNN for the stream's device, or say why there is none."""
    global _no_cudnn
    try:
        libraries_of(stream).cudnn = <Cudnn*> <uintptr_t> cudnn.open_for(<size_t> stream, tf32, _keep_failure)
    except DependencyError as error:
        _no_cudnn = _no_cudnn or error.message.encode()
        libraries_of(stream).no_cudnn = _no_cudnn
    except BaseException as error:
        _keep_failure(stream.device, error)


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
    _keep_failure(stream.device, DeviceError(f"{(<bytes> call).decode()}: {_status_name(_library, status)}; if it happens again, "
                                             "uninstall nvidia-cublas: our own kernel then multiplies", code=str(status)))


def versions(size_t stream):
    """Return the versions (int) of cuBLAS and cuDNN by name, None for one that is not open for the stream at address `stream`."""
    cublas, handle = None, <uintptr_t> libraries_of(<CudaStream*> stream).cublas
    if handle:
        number = ctypes.c_int()
        _checked(_library, "cublasGetVersion_v2", ctypes.c_void_p(handle), ctypes.byref(number))
        cublas = number.value
    return {"cuBLAS": cublas, "cuDNN": cudnn.version_for((<CudaStream*> stream).device)}
