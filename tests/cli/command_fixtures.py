"""Fixtures of tests of commands: a folder with the tiny net and its solver; commands run in this process."""

import re

import pytest
from tiny import NET, SOLVER, Process

from minicaffe.cli import app
from minicaffe.common import caffe


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(caffe, "allow_python_layers", None)  # commands set it for their process
    return tmp_path


@pytest.fixture
def minicaffe(tmp_path, monkeypatch, capsys):
    """Run a command in this process and in `tmp_path`; returns its standard output, or for another `status` its standard error.

    ``log`` holds the lines of the log that the last one wrote on standard error, and ``messages`` all others.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(caffe, "allow_python_layers", None)

    def run(*arguments, status=0):
        capsys.readouterr()
        got = app.run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert got == status, err
        assert status == 0 or err.strip().splitlines()[-1].startswith("minicaffe: "), err
        lines = err.splitlines(keepends=True)
        run.messages, run.log = ("".join(line for line in lines if bool(re.match(r"[IWEF]\d{4} ", line)) == of_log) for of_log in (False, True))
        return out if status == 0 else err

    return run


@pytest.fixture(autouse=True)
def no_process_outlives_its_test():
    yield
    while Process.running:
        Process.running.pop().process.kill()
