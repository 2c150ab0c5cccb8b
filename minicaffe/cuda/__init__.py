"""CUDA: devices, streams, kernels compiled at run time, and the simulated device. Nothing is loaded before it is used.

``use_gpu(0)`` and ``use_cpu()`` choose where nets compute; pycaffe's ``set_mode_gpu`` calls them. `kernel` and
`elementwise` run kernels of your own on blobs and arrays.
"""

import importlib

from minicaffe.device.strided import DeviceArray
from minicaffe.errors import DependencyError
from minicaffe.ops.engine import use_cudnn

_HOME = {
    "Device": "device",
    "Event": "device",
    "Graph": "graph",
    "Stream": "device",
    "allow_tf32": "libraries",
    "computing": "device",
    "current": "device",
    "disable_peer_access": "device",
    "enable_peer_access": "device",
    "get_device": "device",
    "select": "device",
    "use_cpu": "device",
    "use_gpu": "device",
    "count": "driver",
    "version": "driver",
    "Kernel": "custom",
    "kernel": "custom",
    "sleep": "custom",
    "elementwise": "pointwise",
    "state": "thc_state",
}
__all__ = sorted([*_HOME, DeviceArray.__name__, use_cudnn.__name__])


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'minicaffe.cuda' has no attribute '{name}'")
    module = f"minicaffe.cuda.{_HOME[name]}"
    try:
        home = importlib.import_module(module)
        if _HOME[name] in ("custom", "device", "graph", "libraries", "pointwise"):  # those that lead to devices
            importlib.import_module("minicaffe.cuda.memory")  # registers their allocators and copiers
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("cuda"):
            raise DependencyError("the GPU needs the package cuda-bindings: pip install cuda-bindings") from None
        if error.name == module:
            raise DependencyError("this minicaffe was built without CUDA; install cuda-bindings and nvidia-cuda-runtime and "
                                  "build it again") from None
        raise
    return getattr(home, name)
