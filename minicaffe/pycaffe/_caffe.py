"""The names of pycaffe's compiled part, ``caffe._caffe``: nets, solvers, blobs, layers, and the vectors that hold them."""

from minicaffe.blob import Blob
from minicaffe.layers.python import Layer
from minicaffe.proto.caffe_pb2 import LayerParameter, SolverParameter
from minicaffe.pycaffe.nccl import NCCL, has_nccl
from minicaffe.pycaffe.net import Net
from minicaffe.pycaffe.net2014 import set_phase_test, set_phase_train
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
)
from minicaffe.solver import Solver
from minicaffe.vectors import BlobVec, BoolVec, DtypeVec, IntVec, LayerVec, NetVec, RawBlobVec, StringVec

__all__ = [
    "AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "Blob", "BlobVec", "BoolVec", "DtypeVec", "IntVec", "Layer", "LayerParameter",
    "LayerVec", "NCCL", "Net", "NetVec", "NesterovSolver", "RMSPropSolver", "RawBlobVec", "SGDSolver", "Solver", "SolverParameter",
    "StringVec", "Timer", "get_solver", "has_nccl", "init_log", "layer_type_list", "log", "set_device", "set_mode_cpu",
    "set_mode_gpu", "set_multiprocess", "set_phase_test", "set_phase_train", "set_random_seed",
    "set_solver_count", "set_solver_rank", "solver_count", "solver_rank",
]
