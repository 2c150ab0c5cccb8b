"""pycaffe's names, under which BVLC Caffe's ``python/caffe/`` is known: ``minicaffe`` has them all, and its own beside them."""

from minicaffe.common import TEST, TRAIN
from minicaffe.layers.python import Layer
from minicaffe.pycaffe import io
from minicaffe.pycaffe.classifier import Classifier
from minicaffe.pycaffe.detector import Detector
from minicaffe.pycaffe.nccl import NCCL, has_nccl
from minicaffe.pycaffe.net import Net
from minicaffe.pycaffe.net2014 import set_phase_test, set_phase_train
from minicaffe.pycaffe.net_spec import NetSpec, layers, params, to_proto
from minicaffe.pycaffe.settings import (
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
from minicaffe.pycaffe.solvers import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    get_solver,
    get_solver_from_file,
)

__all__ = [
    "AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "Classifier", "Detector", "Layer", "NCCL", "NesterovSolver", "Net", "NetSpec",
    "RMSPropSolver", "SGDSolver", "TEST", "TRAIN", "Timer", "get_solver", "get_solver_from_file", "has_nccl", "init_log", "io",
    "layer_type_list", "layers", "log", "params", "set_device", "set_mode_cpu", "set_mode_gpu", "set_multiprocess",
    "set_phase_test", "set_phase_train", "set_random_seed", "set_solver_count", "set_solver_rank", "solver_count",
    "solver_rank", "to_proto",
]
