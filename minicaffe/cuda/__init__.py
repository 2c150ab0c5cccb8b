"""CUDA: devices, streams, kernels compiled at run time, and the simulated device. Nothing is loaded before it is used.

``use_gpu(0)`` and ``use_cpu()`` choose where nets compute; pycaffe's ``set_mode_gpu`` calls them. `kernel` and
`elementwise` run kernels of your own on blobs and arrays.
"""

import importlib

from minicaffe.device.strided import DeviceArray
from minicaffe.engines.engine import prefer
from minicaffe.errors import DependencyError, DeviceError

_HOME = {name: module for module, names in {
    "device": "Device Event Stream computing get_device",
    "mode": "current select use_cpu use_gpu",
    "peers": "disable_peer_access enable_peer_access",
    "graph": "Graph",
    "driver": "count version",
    "compile": "add_kernels",
    "custom": "Kernel kernel sleep",
    "pointwise": "elementwise",
    "thc_state": "state",
}.items() for name in names.split()}
__all__ = sorted([*_HOME, DeviceArray.__name__, "use_cudnn"])


def use_cudnn(use=True):
    """Choose the engine of layers with engine DEFAULT: as by MINICAFFE_ENGINE=cudnn, or, if `use` is false, MINICAFFE_ENGINE=caffe.

    Without a choice they use cuDNN on a GPU where it is installed. After ``use_cudnn()`` a warning lists what cuDNN does not
    support; engine CAFFE computes that. On the CPU engine CAFFE computes in both cases. Layers with ``engine: CUDNN`` or
    ``engine: CAFFE`` keep theirs.
    """
    prefer("CUDNN" if use else "CAFFE")


def missing():
    """Return the error that says why this machine has no GPU: no package, driver or device. None if it has one."""
    try:
        __getattr__("count")()
    except (DependencyError, DeviceError) as error:
        if getattr(error, "code", "CUDA_ERROR_NO_DEVICE") != "CUDA_ERROR_NO_DEVICE":
            raise
        return error


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'minicaffe.cuda' has no attribute '{name}'")
    module = f"minicaffe.cuda.{_HOME[name]}"
    try:
        home = importlib.import_module(module)
        if _HOME[name] in ("custom", "device", "graph", "mode", "peers", "pointwise"):  # those that use a device
            importlib.import_module("minicaffe.cuda.memory")  # registers their allocators and copiers
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("cuda"):
            raise DependencyError("the GPU needs the package cuda-bindings: pip install cuda-bindings") from None
        if error.name == module:
            raise DependencyError("this minicaffe was built without CUDA; install cuda-bindings and nvidia-cuda-runtime and "
                                  "build it again") from None
        raise
    return getattr(home, name)
