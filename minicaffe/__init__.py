"""minicaffe: Caffe, small and alive. ``import minicaffe as caffe``.

The names here are pycaffe's; what is minicaffe's own stands last.
"""

try:
    from minicaffe.common import TEST, TRAIN
except ModuleNotFoundError as _error:
    if _error.name != "minicaffe.common":
        raise
    raise ImportError("this is minicaffe's source, not an installed minicaffe: install it with `pip install .`, "
                      "then start Python in another folder") from None
from minicaffe import cuda, errors, io, memory
from minicaffe.cpu.threads import get_num_threads, set_num_threads
from minicaffe.layer import register_layer
from minicaffe.layers.python import Layer, allow_python_layers
from minicaffe.pycaffe import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    Net,
    RMSPropSolver,
    SGDSolver,
    Timer,
    get_solver,
    has_nccl,
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
from minicaffe.workspace import Workspace

__version__ = "0.1.0"
__all__ = [
    "AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "NesterovSolver", "Net", "RMSPropSolver", "SGDSolver", "Layer", "TEST",
    "TRAIN", "Timer", "get_solver", "has_nccl", "init_log", "io", "layer_type_list", "log", "set_device", "set_mode_cpu",
    "set_mode_gpu", "set_multiprocess", "set_random_seed", "set_solver_count", "set_solver_rank", "solver_count",
    "solver_rank", "Workspace", "allow_python_layers", "cuda", "errors", "get_num_threads", "memory", "register_layer", "set_num_threads",
]
