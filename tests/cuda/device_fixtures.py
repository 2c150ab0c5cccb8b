"""Fixtures of tests that need a device: the one of ``pytest --device gpu``, else the simulated one, in the default run too."""

import ctypes
import gc
import os

import pytest

import minicaffe
from minicaffe.blob import Blob
from minicaffe.errors import DependencyError
from minicaffe.memory.registry import registry


@pytest.fixture(scope="session")
def place(device):
    """What MINICAFFE_DEVICE is for these tests and the processes that they start: sim or gpu."""
    return "gpu" if device == "gpu" else "sim"


@pytest.fixture(autouse=True)
def gpu_mode(place, device, monkeypatch):
    """GPU mode during each test; after it the present mode, and the allocators of before."""
    monkeypatch.setenv("MINICAFFE_DEVICE", place)
    try:
        minicaffe.set_mode_gpu()
    except DependencyError as error:  # a build without CUDA, or --device gpu where there is none
        pytest.skip(str(error))
    before = dict(registry._allocators)
    yield
    registry._allocators.clear()
    registry._allocators.update(before)
    gc.collect()
    if device == "cpu":
        minicaffe.set_mode_cpu()
    else:
        minicaffe.set_device(0)
        minicaffe.set_mode_gpu()


@pytest.fixture
def sim(place):
    """Change the settings of the simulated device: ``sim("fail=cuMemAlloc:2")``; planned failures end with the test."""
    if place != "sim":
        pytest.skip("faults can be planned on the simulated device only")
    from minicaffe import sim as simulated
    library = ctypes.CDLL(simulated.library())
    planned = []

    def configure(text):
        if text.startswith("fail="):
            planned.append(text.partition(":")[0])
        assert library.mcsim_configure(text.encode()) == 0, text

    yield configure
    for call in set(planned):
        configure(f"{call}:999999999")  # planned again, so late that it never comes


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder for compiled kernels."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MINICAFFE_CACHE", os.fspath(folder))
    return folder


@pytest.fixture
def blob(gpu_mode):
    """A blob of 100 threes, which host and device have."""
    made = Blob((100,))
    made.data[...] = 3
    made.gpu_data  # noqa: B018
    return made
