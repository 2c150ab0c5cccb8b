"""cuDNN, opened when a layer first asks for it: engine CUDNN (cuda/cudnn.hpp).

A layer asks with ``engine: CUDNN``, or with engine DEFAULT after `use_cudnn` or under ``MINICAFFE_ENGINE=cudnn``
(ops/engine.pyx). Environment, read when cuDNN is opened:
``MINICAFFE_CUDNN`` names a library to open instead of the one that cuda-pathfinder finds, ``MINICAFFE_CUDNN_WORKSPACE`` is how
much memory a convolution may ask for (``256MiB``), ``MINICAFFE_DETERMINISTIC=1`` takes only what repeats its results.
Not here: MAX pooling, BatchNorm in place, cuDNN's graph interface, layouts other than Caffe's.
"""

import ctypes
import logging
import os
import threading

from libc.stdint cimport uintptr_t

from minicaffe.device.context cimport CudaStream

from minicaffe import sim
from minicaffe.errors import ConfigError, DependencyError, DeviceError
from minicaffe.memory.sizes import parse_size

cdef extern from "minicaffe/cuda/cudnn.hpp" nogil:
    cppclass Cudnn "mc::cuda::Cudnn":
        Cudnn() except +
        void* handle
        int call        # CudnnCalls; only its address is used
        int tf32, deterministic
        size_t workspace_limit
        void (*fail)(CudaStream*, const char*, int) noexcept
        const char* (*status_name)(int) noexcept
    const char** kCudnnNames "mc::cuda::kCudnnNames"
    const int kCudnnCalls "mc::cuda::kCudnnCalls"

LEAST_VERSION = 90000
WORKSPACE = "256MiB"
log = logging.getLogger(__name__)
_lock = threading.Lock()
_library = None
_opened = {}    # device index -> address of its Cudnn
_keep_failure = None    # as of cuda/libraries.pyx


def open_for(size_t stream, tf32, keep_failure):
    """Return the address of the Cudnn for the computing stream at address `stream`.

    Raises ConfigError, DependencyError or DeviceError for a wrong MINICAFFE_CUDNN_WORKSPACE; if there is no cuDNN, or one too old;
    if it is there but does not start.
    """
    global _keep_failure
    _keep_failure = keep_failure
    index = (<CudaStream*> stream).device
    with _lock:
        if index not in _opened:
            _opened[index] = _open(<CudaStream*> stream, tf32)
        return _opened[index]


cdef _open(CudaStream* stream, tf32):
    global _library
    try:
        limit = parse_size(os.environ.get("MINICAFFE_CUDNN_WORKSPACE") or WORKSPACE)
    except ConfigError as error:
        raise error.at(field="MINICAFFE_CUDNN_WORKSPACE")
    try:
        _library = _library or _find()
        addresses = [_address(getattr(_library, name)) for name in call_names()]
        _library.cudnnGetVersion.restype = ctypes.c_size_t
        version = _library.cudnnGetVersion()
    except (OSError, AttributeError) as error:
        raise DependencyError(f"no cuDNN ({str(error).splitlines()[0]})") from None
    if version < LEAST_VERSION:
        raise DependencyError(f"cuDNN is of version {version}, older than {LEAST_VERSION}")
    cdef Cudnn* cudnn = new Cudnn()     # lives as long as the process, as the device does
    cdef void** calls = <void**> &cudnn.call
    for i, address in enumerate(addresses):
        calls[i] = <void*> <uintptr_t> address
    handle = ctypes.c_void_p()
    if stream.activate(stream):
        stream.raise_error(stream)
    _checked("cudnnCreate", ctypes.byref(handle))
    _checked("cudnnSetStream", handle, ctypes.c_void_p(<uintptr_t> stream.handle))
    cudnn.handle = <void*> <uintptr_t> handle.value
    cudnn.tf32, cudnn.deterministic = tf32, os.environ.get("MINICAFFE_DETERMINISTIC", "0") not in ("", "0")
    cudnn.workspace_limit = limit
    cudnn.fail = fail
    cudnn.status_name = <const char* (*)(int) noexcept nogil> <uintptr_t> _address(_library.cudnnGetErrorString)
    log.info("cuDNN %s", version)
    return <uintptr_t> cudnn


def version_for(int device):
    """Return the version (int) of the cuDNN that is open for device number `device`, None if none is."""
    return _library.cudnnGetVersion() if _opened.get(device) else None


def call_names():
    """Return the names of the functions that are called."""
    return [(<bytes> kCudnnNames[i]).decode() for i in range(kCudnnCalls)]


def _find():
    named = os.environ.get("MINICAFFE_CUDNN")
    if named:
        return ctypes.CDLL(named)
    if sim.selected():
        raise OSError("the simulated device has none")
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cudnn").abs_path)
    except DynamicLibNotFoundError:
        raise OSError("pip install nvidia-cudnn-cu13") from None


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def _checked(call, *arguments):
    status = getattr(_library, call)(*arguments)
    if status:
        raise _error(call, status)


def _error(call, status):
    text = ctypes.create_string_buffer(512)
    _library.cudnnGetLastErrorString.restype = None
    _library.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
    said = text.value.decode("utf-8", "replace").strip()
    return DeviceError(f"{call}: {_status_name(status)}{': ' + said if said else ''}; engine: CAFFE does without cuDNN",
                       code=_status_name(status))


def _status_name(status):
    _library.cudnnGetErrorString.restype = ctypes.c_char_p
    return _library.cudnnGetErrorString(status).decode()


cdef void fail(CudaStream* stream, const char* call, int status) noexcept with gil:
    _keep_failure(stream.device, _error((<bytes> call).decode(), status))
