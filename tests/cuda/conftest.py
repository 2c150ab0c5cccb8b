"""These tests need a device, in the default run too."""

import os
import subprocess
from pathlib import Path

import pytest
from cplusplus import compiler
from device_fixtures import blob, cache, gpu_mode, place, sim  # noqa: F401
from training import NET

import minicaffe


@pytest.fixture(scope="session")
def fake(only_sim, tmp_path_factory):
    """The path of a library that records the calls of cuDNN and cuBLAS (fake_cudnn.cpp); on a GPU the engines are compared."""
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


@pytest.fixture(scope="session")
def only_sim(place):  # noqa: F811
    """For what only the simulated device has or shows: several GPUs, bounds of blocks, settings."""
    if place != "sim":
        pytest.skip("for the simulated device")


@pytest.fixture(scope="module")
def on_a_device(device):
    """Nets with an emulated cuDNN take long: the run on the simulated device has them."""
    if device == "cpu":
        pytest.skip("nets on a device with cuDNN or an emulation: pytest --device sim, as .ci/run does")


@pytest.fixture
def folder(tmp_path):
    """A folder with a net and its solver, for commands."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 3 display: 1 solver_mode: GPU '
                                              "snapshot_after_train: false\n")
    return tmp_path
