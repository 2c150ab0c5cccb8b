"""Traces of small nets on the CPU and on the simulated device, in the default run, too."""

import gc

import pytest

from minicaffe.errors import DependencyError
from minicaffe.proto import caffe_pb2, text
from minicaffe.solver import create_solver

NET = """
name: "small"
layer { name: "in" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 1 dim: 6 dim: 6 } shape { dim: 4 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 3 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture(params=["cpu", "sim"])
def where(request, device, monkeypatch):
    """Compute on the CPU, then on a device: that of ``--device gpu``, else the simulated one."""
    import minicaffe
    kind = "gpu" if request.param == "sim" and device == "gpu" else request.param
    monkeypatch.setenv("MINICAFFE_DEVICE", kind)
    try:
        minicaffe.set_mode_cpu() if kind == "cpu" else minicaffe.set_mode_gpu()
    except DependencyError as error:    # a build without CUDA
        pytest.skip(str(error))
    yield kind
    gc.collect()
    minicaffe.set_mode_cpu() if device == "cpu" else minicaffe.set_mode_gpu()


@pytest.fixture
def make_solver():
    """Return a function that makes a solver for the text of a net; options are those of Solver, or fields of its file."""
    def make(net=NET, plan=None, **fields):
        param = caffe_pb2.SolverParameter(**{"type": "SGD", "base_lr": 0.05, "lr_policy": "fixed", "momentum": 0.9, "random_seed": 1,
                                             "snapshot_after_train": False, **fields})
        param.net_param.CopyFrom(text.parse_text(net, caffe_pb2.NetParameter)[0])
        return create_solver(param, plan=plan)
    return make
