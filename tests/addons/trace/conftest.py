"""Traces of small nets on the CPU and on the simulated device, in the default run, too."""

import gc

import pytest
from small_net import NET

from minicaffe.errors import DependencyError
from minicaffe.proto import caffe_pb2, text
from minicaffe.solver import create_solver


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
