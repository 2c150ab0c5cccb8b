"""minicaffe: Caffe, small and alive. ``import minicaffe as caffe``.

The names here are pycaffe's; what is minicaffe's own comes last.
"""

import sys as _sys

try:
    from minicaffe.common import TEST, TRAIN
except ModuleNotFoundError as _error:  # Python was started in a checkout's top folder
    if _error.name != "minicaffe.common":
        raise
    from minicaffe.checkout import use_installed
    use_installed(_sys.modules[__name__])
    from minicaffe.common import TEST, TRAIN
from minicaffe import cuda, errors, io, memory
from minicaffe.alias import install_as_caffe
from minicaffe.classifier import Classifier
from minicaffe.detector import Detector
from minicaffe.device.threads import get_num_threads, set_num_threads
from minicaffe.layer import register_layer
from minicaffe.layers.python import Layer, allow_python_layers
from minicaffe.net_spec import NetSpec, layers, params, to_proto
from minicaffe.pycaffe import Net
from minicaffe.settings import (
    Timer,
    init_log,
    layer_type_list,
    log,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from minicaffe.slot import Slot
from minicaffe.solvers import (
    NCCL,
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    get_solver,
    get_solver_from_file,
    has_nccl,
)
from minicaffe.tensor import Tensor
from minicaffe.workspace import Workspace

__all__ = [
    "AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "Classifier", "Detector", "Layer", "NCCL", "NesterovSolver", "Net", "NetSpec",
    "RMSPropSolver", "SGDSolver", "TEST", "TRAIN", "Timer", "get_solver", "get_solver_from_file", "has_nccl", "init_log", "io",
    "layer_type_list", "layers", "log", "params", "set_device", "set_mode_cpu", "set_mode_gpu", "set_multiprocess",
    "set_random_seed", "set_solver_count", "set_solver_rank", "solver_count", "solver_rank", "to_proto", "Slot", "Tensor",
    "Workspace", "allow_python_layers", "cuda", "errors", "get_num_threads", "install_as_caffe", "memory", "register_layer",
    "set_num_threads",
]


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version
        return version("minicaffe")
    raise AttributeError(f"module 'minicaffe' has no attribute '{name}'", name=name, obj=_sys.modules[__name__])
