"""A folder with the tiny net and its solver."""

import os
import signal

import pytest
from tiny import NET, SOLVER, Process

from minicaffe.common import caffe


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(caffe, "allow_python_layers", None)  # commands set it for their process
    return tmp_path


@pytest.fixture(autouse=True)
def no_process_outlives_its_test():
    yield
    while Process.running:
        os.kill(Process.running.pop().pid, signal.SIGKILL)
