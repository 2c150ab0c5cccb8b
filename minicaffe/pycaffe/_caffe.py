"""The names of pycaffe's compiled part, ``caffe._caffe``, beside all of pycaffe's: blobs, solvers, and the vectors of them."""

from minicaffe import pycaffe
from minicaffe.blob import Blob
from minicaffe.proto.caffe_pb2 import LayerParameter, SolverParameter
from minicaffe.pycaffe import *  # noqa: F403
from minicaffe.solver import Solver
from minicaffe.vectors import BlobVec, BoolVec, DtypeVec, IntVec, LayerVec, NetVec, RawBlobVec, StringVec

__all__ = [
    *pycaffe.__all__, "Blob", "BlobVec", "BoolVec", "DtypeVec", "IntVec", "LayerParameter", "LayerVec", "NetVec",  # noqa: F405
    "RawBlobVec", "Solver", "SolverParameter", "StringVec",
]
