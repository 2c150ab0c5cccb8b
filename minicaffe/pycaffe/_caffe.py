"""The names of pycaffe's compiled part, ``caffe._caffe``: nets, solvers, blobs, layers, and the vectors that hold them."""

from minicaffe.blob import Blob
from minicaffe.proto.caffe_pb2 import LayerParameter, SolverParameter
from minicaffe.pycaffe import (
    NCCL,
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    Layer,
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
    set_phase_test,
    set_phase_train,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
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
