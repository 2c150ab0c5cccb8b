"""CUDA: devices, streams, kernels compiled at run time, and the simulated device. Nothing is loaded before it is used.

``use_gpu(0)`` and ``use_cpu()`` choose where nets compute; pycaffe's ``set_mode_gpu`` calls them. Add-ons may have more names,
such as ``cuda.kernel`` for kernels of your own.
"""

import importlib
import importlib.util

from minicaffe import entry_points
from minicaffe.device.strided import DeviceArray
from minicaffe.engines.engine import prefer
from minicaffe.errors import DependencyError, DeviceError

_HOME = {name: module for module, names in {    # public name -> module of this folder, imported when the name is used first
    "device": "Device Event Stream computing get_device",
    "mode": "current select use_cpu use_gpu",
    "peers": "disable_peer_access enable_peer_access",
    "graph": "Graph",
    "driver": "count version",
    "compile": "add_kernels",
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
        if getattr(error, "code", "CUDA_ERROR_NO_DEVICE") != "CUDA_ERROR_NO_DEVICE":    # a DependencyError has no code
            raise
        return error


def __getattr__(name):
    """Return a public name at its first use (Python calls this): from a module of `_HOME`, or an add-on's name ``cuda.<name>``."""
    if name in _HOME:
        target = f"minicaffe.cuda.{_HOME[name]}:{name}"
    else:
        is_own = name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is not None
        found = None if is_own else entry_points.find("modules", f"cuda.{name}")
        if found is None:
            raise AttributeError(f"module 'minicaffe.cuda' has no attribute '{name}'")
        target = found.value
    try:
        if _HOME.get(name) in ("device", "graph", "mode", "peers"):  # the modules that use a device
            importlib.import_module("minicaffe.cuda.memory")  # registers their allocators and copiers
        return entry_points.import_target(target)
    except ModuleNotFoundError as error:
        module = error.name or ""
        if module.startswith("cuda"):
            raise DependencyError("the GPU needs the package cuda-bindings: pip install cuda-bindings") from None
        if module.startswith("minicaffe.cuda."):
            raise DependencyError("this minicaffe was built without CUDA; install cuda-bindings and nvidia-cuda-runtime and "
                                  "build it again") from None
        raise
