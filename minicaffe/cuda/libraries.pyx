"""NVIDIA's libraries, opened at run time: if they are missing, our own kernels compute (cuda/libraries.hpp, cuda/cudnn.hpp).

cuBLAS is opened with the device, cuDNN with the first operation that engine CUDNN computes. Both compute in the
precision that is set, also when it changes later. Functions are called through pointers, so nothing is linked. cuda-pathfinder
finds the libraries of the wheels nvidia-cublas and nvidia-cudnn-cu13 or of an installed toolkit, unless ``MINICAFFE_CUBLAS`` or
``MINICAFFE_CUDNN`` names another. On the simulated device only libraries named by these variables are opened.

Environment, read when cuDNN is opened: ``MINICAFFE_CUDNN_WORKSPACE`` is the memory limit of a convolution (``256MiB``),
``MINICAFFE_DETERMINISTIC=1`` uses only plans with reproducible results, ``MINICAFFE_CUDNN_TUNE=0`` turns measuring off.
Not here: pooling, BatchNorm, Softmax and activations, for which our own kernels take less time; layouts other than Caffe's.
"""

import ctypes
import logging
import os
import threading

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc
from libcpp.vector cimport vector

from minicaffe.device.context cimport CudaLibraries, CudaStream

from minicaffe import sim
from minicaffe.errors import ConfigError, DependencyError, DeviceError, switched_on
from minicaffe.memory.sizes import parse_size
from minicaffe.memory.synced import device_lock
from minicaffe.engines.engine import get_precision, precision_listeners
from minicaffe.engines.table import CUDNN

cdef extern from "minicaffe/cuda/cudnn.hpp" nogil:
    cppclass Cudnn "mc::cuda::Cudnn":
        Cudnn() except +
        void* handle
        int call        # CudnnCalls; only its address is used
        int tf32, deterministic, tunes
        long long workspace_limit
        const char* place
        void (*fail)(CudaStream*, const char*, int) noexcept
        const char* (*status_name)(int) noexcept
    const char** kCudnnNames "mc::cuda::kCudnnNames"
    const int kCudnnCalls "mc::cuda::kCudnnCalls"

cdef extern from "minicaffe/cuda/cublaslt.hpp" nogil:
    cppclass CublasLt "mc::cuda::CublasLt":
        CublasLt() except +
        int call        # CublasLtCalls; only its address is used
        int tf32, deterministic
    const char** kCublasLtNames "mc::cuda::kCublasLtNames"
    const int kCublasLtCalls "mc::cuda::kCublasLtCalls"

cdef extern from "minicaffe/cuda/libraries.hpp" nogil:
    ctypedef void (*sgemm_function "mc::cuda::CublasGemm<float>")()
    ctypedef void (*dgemm_function "mc::cuda::CublasGemm<double>")()
    struct Libraries "mc::cuda::Libraries":
        void* cublas
        sgemm_function sgemm
        dgemm_function dgemm
        CublasLt* cublaslt
        void (*fail)(CudaStream*, const char* call, int status) noexcept
        Cudnn* cudnn
        const char* no_cudnn
        void (*open_cudnn)(CudaStream*) noexcept
        void (*watch)(CudaStream*, const char* call) noexcept

DEFAULT_MATH, TF32_MATH = 0, 3      # cublasMath_t
MIN_CUDNN = 90000
CUDNN_WORKSPACE = "256MiB"
log = logging.getLogger(__name__)
_cublas = None      # the library as a ctypes object; None: not opened yet, False: there is none
_cudnn = None       # likewise; None: not opened yet, or missing
_cudnn_lock = threading.Lock()
_store_failure = None   # a function of cuda/device.pyx: marks a device's stream as failed with an error
_time_call = None       # another: reports a call
cdef bytes _no_cudnn = None     # why there is no cuDNN: Libraries.no_cudnn points to this text
cdef vector[Libraries*] _attached       # of all devices used
_names = {}         # index of a GPU -> its name
_places = []        # keeps the bytes alive to which Cudnn.place points


def attach(size_t stream, str device, store_failure, time_call):
    """Open the libraries for the computing stream at address `stream`, of a new Device, which is current in the calling thread.

    `device` is the GPU's name. Later errors, in code that cannot raise, are passed to ``store_failure(device, error)``. While
    launches are recorded, ``time_call(device, None)`` is called before a library call that computes, and
    ``time_call(device, name)`` after it.
    """
    global _store_failure, _time_call
    _store_failure, _time_call = store_failure, time_call
    _names[(<CudaStream*> stream).device] = device
    cdef Libraries* libraries = <Libraries*> calloc(1, sizeof(Libraries))   # lives as long as the process, as the device does
    if libraries == NULL:
        raise MemoryError()
    libraries.open_cudnn, libraries.fail, libraries.watch = open_cudnn, fail_cublas, watch
    if sim.selected() and not os.environ.get("MINICAFFE_CUDNN"):
        CUDNN.absent = True     # then it is tried only if a layer or MINICAFFE_ENGINE names it
    _attached.push_back(libraries)      # before the math mode is set, so that no change of precision is missed
    try:
        attach_cublas(<CudaStream*> stream, libraries)
    except BaseException:
        _attached.pop_back()
        raise
    (<CudaStream*> stream).libraries = <CudaLibraries*> libraries


cdef int set_math(Libraries* libraries) except -1:
    """Set the math mode of the open libraries for float32 to the current precision."""
    cdef bint tf32 = get_precision() != "float32"   # in bf16, too, operations on float32 arrays use tf32
    if libraries.cublas != NULL:
        _checked(_cublas, _cublas_error, "cublasSetMathMode", ctypes.c_void_p(<uintptr_t> libraries.cublas),
                 TF32_MATH if tf32 else DEFAULT_MATH)
    if libraries.cublaslt != NULL:
        libraries.cublaslt.tf32 = tf32
    if libraries.cudnn != NULL:
        libraries.cudnn.tf32 = tf32


cdef void watch(CudaStream* stream, const char* call) noexcept with gil:
    """Begin to time a library call (`call`: NULL), or end it and report its name (Libraries::watch, if launches are recorded)."""
    try:
        _time_call(stream.device, None if call == NULL else (<bytes> call).decode())
    except BaseException as error:
        _store_failure(stream.device, error)


def set_math_of_all_devices():
    """Apply a changed precision to the open libraries of all devices; engines/engine.pyx calls it after each change."""
    cdef Libraries* libraries
    with device_lock:
        for libraries in _attached:
            set_math(libraries)


precision_listeners.append(set_math_of_all_devices)


def versions(size_t stream):
    """Return the versions (int) of cuBLAS and cuDNN by name, None for one that is not open for the stream at address `stream`."""
    cdef Libraries* libraries = <Libraries*> (<CudaStream*> stream).libraries
    cublas = None
    if libraries.cublas != NULL:
        number = ctypes.c_int()
        _checked(_cublas, _cublas_error, "cublasGetVersion_v2", ctypes.c_void_p(<uintptr_t> libraries.cublas), ctypes.byref(number))
        cublas = number.value
    return {"cuBLAS": cublas, "cuDNN": _cudnn.cudnnGetVersion() if libraries.cudnn != NULL else None}


def _address(function):
    """Return the address (int) of a function of a ctypes library."""
    return ctypes.cast(function, ctypes.c_void_p).value


def _checked(library, error_of, call, *arguments):
    """Call a function of a library; raise ``error_of(call, status)`` if its status is not 0."""
    status = getattr(library, call)(*arguments)
    if status:
        raise error_of(call, status)


def _status_name(function, status):
    """Return the library's own name of a status, from its `function` for that."""
    function.restype = ctypes.c_char_p
    return function(status).decode()


# ---- cuBLAS

def open_cublas():
    """Return cuBLAS as a ctypes object, None if it is missing; on the simulated device only that of MINICAFFE_CUBLAS."""
    global _cublas
    path = os.environ.get("MINICAFFE_CUBLAS")
    if _cublas is None and sim.selected() and not path:
        return None
    if _cublas is None:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
        try:
            _cublas = ctypes.CDLL(path or load_nvidia_dynamic_lib("cublas").abs_path)
        except (DynamicLibNotFoundError, OSError) as error:
            log.info("no cuBLAS (%s): our own kernel multiplies matrices; pip install nvidia-cublas", str(error).split("\n")[0])
            _cublas = False
    return _cublas or None


cdef int attach_cublas(CudaStream* stream, Libraries* libraries) except -1:
    """Use cuBLAS for matrix products on the stream, if it is installed; otherwise `libraries` keeps its nulls: our kernel runs."""
    library = open_cublas()
    if library is None:
        return 0
    handle = ctypes.c_void_p()
    _checked(library, _cublas_error, "cublasCreate_v2", ctypes.byref(handle))
    _checked(library, _cublas_error, "cublasSetStream_v2", handle, ctypes.c_void_p(<uintptr_t> stream.handle))
    libraries.cublas = <void*> <uintptr_t> handle.value
    libraries.cublaslt = new_cublaslt(library)
    set_math(libraries)
    # A workspace of ours: otherwise cuBLAS would allocate one during graph capture, which is not allowed.
    _checked(library, _cublas_error, "cublasSetWorkspace_v2", handle, ctypes.c_void_p(<uintptr_t> stream.workspace),
             ctypes.c_size_t(stream.workspace_bytes))
    libraries.sgemm = <sgemm_function> <uintptr_t> _address(library.cublasSgemmStridedBatched)
    libraries.dgemm = <dgemm_function> <uintptr_t> _address(library.cublasDgemmStridedBatched)


cdef CublasLt* new_cublaslt(library) except? NULL:
    """Return a new CublasLt, whose functions libcublas finds in the libcublasLt that it depends on; NULL if there are none."""
    try:
        addresses = [_address(getattr(library, (<bytes> kCublasLtNames[i]).decode())) for i in range(kCublasLtCalls)]
    except AttributeError as error:
        log.info("no cuBLASLt (%s): biases are added by our own kernel", error)
        return NULL
    cdef CublasLt* cublaslt = new CublasLt()    # lives as long as the process, as the device does
    fill_calls(<void**> &cublaslt.call, addresses)
    cublaslt.deterministic = switched_on("MINICAFFE_DETERMINISTIC")
    return cublaslt


cdef void fill_calls(void** calls, list addresses) noexcept:
    """Store addresses of functions, in the order of their names, in a struct of pointers (CudnnCalls, CublasLtCalls)."""
    for i, address in enumerate(addresses):
        calls[i] = <void*> <uintptr_t> address


def _cublas_error(call, status, remedy=""):
    return DeviceError(f"{call}: {_status_name(_cublas.cublasGetStatusString, status)}{remedy}", code=str(status))


cdef void fail_cublas(CudaStream* stream, const char* call, int status) noexcept with gil:
    """Store the error of a call of cuBLAS or cuBLASLt in C++ code, for the stream's next check (Libraries::fail)."""
    remedy = "; if it happens again, uninstall nvidia-cublas: our own kernel then multiplies"
    _store_failure(stream.device, _cublas_error((<bytes> call).decode(), status, remedy))


# ---- cuDNN

cdef void open_cudnn(CudaStream* stream) noexcept with gil:
    """Open cuDNN for the stream's device, or store why there is none, at the first use by an operation (Libraries::open_cudnn)."""
    global _no_cudnn
    cdef Libraries* libraries = <Libraries*> stream.libraries
    try:
        with _cudnn_lock:
            if libraries.cudnn == NULL:
                libraries.cudnn = new_cudnn(stream)
                set_math(libraries)
    except DependencyError as error:
        if _no_cudnn is None:
            _no_cudnn = error.message.encode()
            log.info("%s: engine CAFFE computes", error.message)
        libraries.no_cudnn = _no_cudnn
    except BaseException as error:
        _store_failure(stream.device, error)


cdef Cudnn* new_cudnn(CudaStream* stream) except NULL:
    """Return a new Cudnn for a computing stream.

    Raises ConfigError for a wrong MINICAFFE_CUDNN_WORKSPACE, MINICAFFE_CUDNN_TUNE or MINICAFFE_DETERMINISTIC, DependencyError if
    there is no cuDNN, or one too old, DeviceError if it does not start.
    """
    global _cudnn
    deterministic = switched_on("MINICAFFE_DETERMINISTIC")
    tunes = switched_on("MINICAFFE_CUDNN_TUNE", default=True) and not deterministic
    try:
        limit = parse_size(os.environ.get("MINICAFFE_CUDNN_WORKSPACE") or CUDNN_WORKSPACE)
    except ConfigError as error:
        raise error.at(field="MINICAFFE_CUDNN_WORKSPACE")
    try:
        _cudnn = _cudnn or _find_cudnn()
        addresses = [_address(getattr(_cudnn, (<bytes> kCudnnNames[i]).decode())) for i in range(kCudnnCalls)]
        _cudnn.cudnnGetVersion.restype = ctypes.c_size_t
        version = _cudnn.cudnnGetVersion()
    except (OSError, AttributeError) as error:
        raise DependencyError(f"no cuDNN ({str(error).splitlines()[0]})") from None
    if version < MIN_CUDNN:
        raise DependencyError(f"cuDNN is of version {version}, older than {MIN_CUDNN}")
    cdef Cudnn* cudnn = new Cudnn()     # lives as long as the process, as the device does
    fill_calls(<void**> &cudnn.call, addresses)
    handle = ctypes.c_void_p()
    if stream.activate(stream):     # the handle is for the device that is current in this thread
        stream.raise_error(stream)
    _checked(_cudnn, _cudnn_error, "cudnnCreate", ctypes.byref(handle))
    _checked(_cudnn, _cudnn_error, "cudnnSetStream", handle, ctypes.c_void_p(<uintptr_t> stream.handle))
    cudnn.handle = <void*> <uintptr_t> handle.value
    cudnn.deterministic = deterministic
    cudnn.tunes = tunes
    cudnn.workspace_limit = limit
    place = f"cuDNN {version} on {_names[stream.device]}, at most {limit} bytes".encode()
    _places.append(place)
    cudnn.place = place
    cudnn.fail = fail_cudnn
    cudnn.status_name = <const char* (*)(int) noexcept nogil> <uintptr_t> _address(_cudnn.cudnnGetErrorString)
    log.info("cuDNN %s", version)
    return cudnn


def _find_cudnn():
    """Return cuDNN as a ctypes object, from MINICAFFE_CUDNN, a wheel or a toolkit. Raise OSError if there is none."""
    if path := os.environ.get("MINICAFFE_CUDNN"):
        return ctypes.CDLL(path)
    if sim.selected():
        raise OSError("the simulated device has none")
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cudnn").abs_path)
    except DynamicLibNotFoundError:
        raise OSError("pip install nvidia-cudnn-cu13") from None


def _cudnn_error(call, status):
    """Return the error of a call with cuDNN's own reason, and how to compute without cuDNN."""
    text = ctypes.create_string_buffer(512)
    _cudnn.cudnnGetLastErrorString.restype = None
    _cudnn.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
    reason = text.value.decode("utf-8", "replace").strip()
    name = _status_name(_cudnn.cudnnGetErrorString, status)
    return DeviceError(f"{call}: {name}{': ' + reason if reason else ''}; engine: CAFFE or MINICAFFE_ENGINE=caffe computes without "
                       "cuDNN", code=name)


cdef void fail_cudnn(CudaStream* stream, const char* call, int status) noexcept with gil:
    """Store the error of a call of cuDNN in C++ code, for the stream's next check (Cudnn::fail)."""
    _store_failure(stream.device, _cudnn_error((<bytes> call).decode(), status))
