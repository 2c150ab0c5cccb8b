"""Add-ons of minicaffe; their commands run as those of the core do in tests/cli."""

import gc

import pytest
from command_fixtures import folder, minicaffe, no_process_outlives_its_test  # noqa: F401

import minicaffe as caffe
from minicaffe.errors import DependencyError


@pytest.fixture(params=["cpu", "sim"])
def where(request, device, monkeypatch):
    """Compute on the CPU, then on a device: that of ``--device gpu``, else the simulated one."""
    kind = "gpu" if request.param == "sim" and device == "gpu" else request.param
    monkeypatch.setenv("MINICAFFE_DEVICE", kind)
    try:
        caffe.set_mode_cpu() if kind == "cpu" else caffe.set_mode_gpu()
    except DependencyError as error:    # a build without CUDA
        pytest.skip(str(error))
    yield kind
    gc.collect()
    caffe.set_mode_cpu() if device == "cpu" else caffe.set_mode_gpu()
