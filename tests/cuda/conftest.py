"""These tests need a device, in the default run too."""

import os
import subprocess
from pathlib import Path

import pytest
from cplusplus import compiler
from device_fixtures import blob, cache, gpu_mode, place, sim  # noqa: F401

import minicaffe


@pytest.fixture(scope="session")
def fake(place, tmp_path_factory):  # noqa: F811
    """The path of a library that records the calls of cuDNN and cuBLAS (fake_cudnn.cpp), for the simulated device."""
    if place != "sim":
        pytest.skip("the recorded calls compute nothing; on a GPU the engines are compared")
    path = tmp_path_factory.mktemp("fake") / "libfake.so"
    source = Path(__file__).resolve().parent / "fake_cudnn.cpp"
    headers = Path(minicaffe.__file__).resolve().parent.parent
    subprocess.run([*compiler(), "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture(autouse=True)
def no_earlier_choices(request, tmp_path, monkeypatch):
    """No plan of cuDNN that another test measured, and none in the user's folder."""
    if "fake" in request.fixturenames:
        monkeypatch.setenv("MINICAFFE_CACHE", os.fspath(tmp_path / "cache"))
