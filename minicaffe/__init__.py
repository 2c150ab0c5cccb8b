"""minicaffe: Caffe, small and alive. ``import minicaffe as caffe``.

The names here are pycaffe's, from the folder of that name; what is minicaffe's own comes last.
"""

import os as _os
import sys as _sys

try:
    from minicaffe.common import TEST, TRAIN  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "minicaffe.common":
        raise
    raise ImportError(f"{__path__[0]} is the source of minicaffe, which is not compiled; Python was started in the folder above: "
                      "use python -P or another folder for an installed minicaffe, or run pip install . there") from None
from minicaffe import cuda, errors, layers, memory, public_modules, pycaffe  # noqa: F401 - layers: it finds the types
from minicaffe.device.threads import get_num_threads, set_num_threads
from minicaffe.engines.engine import get_exact, get_precision, set_exact, set_precision
from minicaffe.layer import register_layer
from minicaffe.net import net as _net
from minicaffe.pycaffe import *  # noqa: F403

pycaffe.__all__ += pycaffe.SOLVERS      # after the `import *`, which would import them now; they are imported at first use
__all__ = [
    *pycaffe.__all__, "Classifier", "Detector", "Layer", "UpdateRule", "allow_python_layers", "cuda",  # noqa: F405
    "errors", "get_exact", "get_num_threads", "get_precision", "gradcheck", "install_as_caffe", "io", "memory",  # noqa: F405
    "register_layer", "register_solver", "set_exact", "set_num_threads", "set_precision",  # noqa: F405
]
_net.views.update(summary="minicaffe.inspection.summary:Summary", schedule="minicaffe.inspection.schedule_table:Listing")
if _os.environ.keys() & {"GLOG_minloglevel", "MINICAFFE_ISA"}:
    pycaffe.settings.follow_environment()


def __getattr__(name):      # Python calls it for names that the module lacks (PEP 562)
    if name == "__version__":   # imported on first access: `import minicaffe` stays fast
        from importlib.metadata import version
        return version("minicaffe")
    found = public_modules.attribute(name)
    if found is None:
        raise AttributeError(f"module 'minicaffe' has no attribute '{name}'", name=name, obj=_sys.modules[__name__])
    return found


def __dir__():
    return sorted({*globals(), *__all__, *public_modules.names()})   # so that completion finds the names of `__getattr__`, too
