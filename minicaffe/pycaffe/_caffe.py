"""The names of pycaffe's compiled part, ``caffe._caffe``, beside all of pycaffe's: blobs, solvers, their messages."""

from minicaffe import pycaffe
from minicaffe.blob import Blob
from minicaffe.layers.python import Layer
from minicaffe.proto.caffe_pb2 import LayerParameter, SolverParameter
from minicaffe.pycaffe import *  # noqa: F403
from minicaffe.solver import Solver

__all__ = [*pycaffe.__all__, "Blob", "Layer", "LayerParameter", "Solver", "SolverParameter"]
