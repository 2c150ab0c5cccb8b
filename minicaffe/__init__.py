"""minicaffe: Caffe, small and alive. ``import minicaffe as caffe``.

The names here are pycaffe's, from the folder of that name; what is minicaffe's own comes last.
"""

import sys as _sys

try:
    from minicaffe.common import TEST, TRAIN  # noqa: F401
except ModuleNotFoundError as _error:  # Python was started in a checkout's top folder
    if _error.name != "minicaffe.common":
        raise
    from minicaffe.checkout import use_installed
    use_installed(_sys.modules[__name__])
from minicaffe import cuda, errors, memory, pycaffe
from minicaffe.alias import install_as_caffe, name_modules
from minicaffe.device.threads import get_num_threads, set_num_threads
from minicaffe.layer import register_layer
from minicaffe.layers.python import allow_python_layers
from minicaffe.engines.engine import get_exact, get_precision, set_exact, set_precision
from minicaffe.pycaffe import *  # noqa: F403
from minicaffe.slot import Slot
from minicaffe.solver import UpdateRule, register_solver
from minicaffe.tensor import Tensor
from minicaffe.workspace import Workspace

__all__ = [
    *pycaffe.__all__, "Slot", "Tensor", "UpdateRule", "Workspace", "allow_python_layers", "cuda",  # noqa: F405
    "errors", "get_exact", "get_num_threads", "get_precision", "gradcheck", "install_as_caffe", "memory",  # noqa: F405
    "register_layer", "register_solver",  # noqa: F405
    "set_exact", "set_num_threads", "set_precision",
]
name_modules("minicaffe")
pycaffe.settings.follow_environment()


def __getattr__(name):
    if name == "gradcheck":     # imported on first access: `import minicaffe` stays fast
        from minicaffe.gradient_check import gradcheck
        return gradcheck
    if name == "__version__":
        from importlib.metadata import version
        return version("minicaffe")
    raise AttributeError(f"module 'minicaffe' has no attribute '{name}'", name=name, obj=_sys.modules[__name__])


def __dir__():
    return sorted({*globals(), *__all__})   # so that completion finds the names of `__getattr__`, too
