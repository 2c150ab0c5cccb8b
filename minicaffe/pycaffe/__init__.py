"""pycaffe's names, under which BVLC Caffe's ``python/caffe/`` is known: ``minicaffe`` has them all, and its own beside them."""

import importlib

from minicaffe.common import TEST, TRAIN
from minicaffe.pycaffe import settings
from minicaffe.pycaffe.net import Net, set_phase_test, set_phase_train
from minicaffe.pycaffe.net_spec import NetSpec, layers, params, to_proto
from minicaffe.pycaffe.settings import *  # noqa: F403

# The names of solvers.py, which is imported at the first use of one: `import minicaffe` stays fast.
SOLVERS = ["AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "NesterovSolver", "RMSPropSolver", "SGDSolver", "get_solver",
           "get_solver_from_file"]

__all__ = [
    "Net", "NetSpec", "TEST", "TRAIN", "layers", "params", "set_phase_test", "set_phase_train", "to_proto",
]
__all__ += settings.__all__


def __getattr__(name):
    """Return a name of solvers.py (PEP 562)."""
    if name != "solvers" and name not in SOLVERS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    solvers = importlib.import_module("minicaffe.pycaffe.solvers")
    return solvers if name == "solvers" else getattr(solvers, name)


def __dir__():
    return sorted({*globals(), *SOLVERS})
