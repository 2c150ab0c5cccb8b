"""Solver types of a program: updates against NumPy, snapshots, what may be wrong, and docs/adding_a_solver.md as it is typed in."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bowl import make_solver, weights
from fake_mpi import Job

import minicaffe as caffe
from minicaffe import solver as solvers
from minicaffe.blob import Dtype
from minicaffe.device.threads import dry_run, is_dry_run
from minicaffe.errors import ConfigError, Error, ShapeError, WrongTypeError
from minicaffe.inspection.memory_estimate import dry_run_training
from minicaffe.inspection.replace_sources import replace_sources
from minicaffe.proto import caffe_pb2

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding_a_solver.md"


class PlainSgd(caffe.UpdateRule):
    """SGD without memory; weight decay as in Caffe."""

    histories = 0

    def step(self, weight, gradient, history, rate, decay):
        return rate * (gradient + self.penalty(weight, decay))


class MomentumSgd(caffe.UpdateRule):
    """SGD as Caffe has it."""

    def step(self, weight, gradient, history, rate, decay):
        history[0][...] = self.param.momentum * history[0] + rate * (gradient + self.penalty(weight, decay))
        return history[0]


class OwnAdam(caffe.UpdateRule):
    """Adam as Caffe has it."""

    histories = 2

    def step(self, weight, gradient, history, rate, decay):
        p, t = self.param, self.iteration + 1
        gradient = gradient + self.penalty(weight, decay)
        for array, factor, value in (history[0], p.momentum, gradient), (history[1], p.momentum2, gradient**2):
            array[...] = factor * array + (1 - factor) * value
        return rate * np.sqrt(1 - p.momentum2**t) / (1 - p.momentum**t) * history[0] / (np.sqrt(history[1]) + p.delta)


class Failing(PlainSgd):
    answer = None

    def step(self, weight, gradient, history, rate, decay):
        if isinstance(self.answer, str):
            weight[...] = 0
        return self.answer


@pytest.fixture(autouse=True)
def types(monkeypatch):
    """Restore the solver types after each test."""
    monkeypatch.setattr(solvers, "_types", dict(solvers._types))
    for rule in (OwnAdam, PlainSgd, MomentumSgd, Failing):
        caffe.register_solver(rule.__name__, rule)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("extra", ["weight_decay: 0.05", "weight_decay: 0.05 regularization_type: 'L1' iter_size: 2",
                                   "clip_gradients: 1.5 iter_size: 2", "lr_policy: 'step' gamma: 0.5 stepsize: 2"])
@pytest.mark.parametrize("own, kind", [("MomentumSgd", "SGD"), ("OwnAdam", "Adam")])
def test_rules_like_caffes(own, kind, extra, dtype, device, caplog):
    after = []
    for name in (own, kind):        # one after the other, as both take their random numbers from one generator
        solver = make_solver(f"type: '{name}' momentum: 0.9 delta: 1e-4 {extra}", dtype=dtype)
        assert type(solver).__name__ == f"{name}Solver" and {blob.dtype for blob in solver.history} == {dtype}
        solver.step(6)
        after.append([*weights(solver), *(blob.cpu_diff for blob in solver.net.learnable_params), *(blob.cpu_data for blob in solver.history)])
    for a, b in zip(*after, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * max(1, np.abs(b).max()))
    assert (f"{own} computes its updates on the CPU" in caplog.text) == (device != "cpu")


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
@pytest.mark.parametrize("kind", ["OwnAdam", "PlainSgd"])
def test_resumed_training_same_bits(tmp_path, kind, form):
    fields = f"type: '{kind}' momentum: 0.9 weight_decay: 0.01 snapshot_prefix: '{tmp_path}/s' snapshot_format: {form}"
    through = make_solver(fields)
    through.step(4)
    _, state = through.snapshot()
    through.step(3)
    resumed = make_solver(fields + " random_seed: 99")
    resumed.restore(state)
    assert resumed.iter == 4
    resumed.step(3)
    found, wanted = ([*weights(solver), *(blob.cpu_data for blob in solver.history)] for solver in (resumed, through))
    assert all(np.array_equal(a, b) and a.any() for a, b in zip(found, wanted, strict=True))
    if kind == "OwnAdam":
        with pytest.raises(ShapeError, match="the file has 4 blobs, MomentumSgdSolver with this net needs 2"):
            make_solver(fields.replace("OwnAdam", "MomentumSgd")).restore(state)


def test_ranks_update_with_mean_gradient(monkeypatch):
    """Of two ranks with the same batches both compute what one process computes."""
    fields, job = "type: 'OwnAdam' momentum: 0.9 weight_decay: 0.05", Job(2, mirror=True)
    alone = make_solver(fields)
    alone.step(4)
    job.use(monkeypatch)
    solver = make_solver(fields)
    solver.distribute(job.comm(0))
    solver.step(4)
    assert solver.group.size == 2
    for a, b in zip(weights(solver), weights(alone), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


def test_training_memory_counts_history():
    net = """layer { name: "d" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 2 dim: 512 } shape { dim: 2 dim: 256 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 256 } }
    layer { name: "l" type: "EuclideanLoss" bottom: "ip" bottom: "y" top: "l" }"""
    plain, momentum, adam = (dry_run_training(make_solver(f"type: '{kind}'", net).param, replace_sources, plan=None)[1][0].peak
                              for kind in ("PlainSgd", "MomentumSgd", "OwnAdam"))
    one = 4 * 256 * 513
    assert 0.8 * one < momentum - plain < 1.2 * one and 0.8 * one < adam - momentum < 1.2 * one
    with dry_run():
        assert is_dry_run()
    assert not is_dry_run()


# ---- what may be wrong

def test_unknown_type_lists_registered(tmp_path):
    listed = r"solver type 'OwnAdm'; did you mean 'OwnAdam' or 'Adam'\?; known are SGD, .*OwnAdam, PlainSgd, MomentumSgd, Failing; .*register_solver"
    with pytest.raises(ConfigError, match=listed):
        make_solver("type: 'OwnAdm'")
    (tmp_path / "s.prototxt").write_text('net: "x"\ntype: "OwnAdm"\nbase_lr: 1 lr_policy: "fixed"')
    with pytest.raises(ConfigError, match=r"s.prototxt:2: type: unknown solver type 'OwnAdm'"):
        caffe.get_solver(str(tmp_path / "s.prototxt"))


@pytest.mark.parametrize("name, rule, error, words", [
    ("Adam", PlainSgd, ConfigError, "'Adam' is registered already"), ("OwnAdam", PlainSgd, ConfigError, "'OwnAdam' is registered already"),
    ("My rule", PlainSgd, ConfigError, "is letters, digits and _"), (5, PlainSgd, WrongTypeError, "name of a solver type"),
    ("New", 5, WrongTypeError, "subclass of UpdateRule, got 5"), ("New", dict, WrongTypeError, "subclass of UpdateRule"),
    ("New", type("NoStep", (caffe.UpdateRule,), {}), ConfigError, "NoStep does not define step"),
    ("New", type("Histories", (PlainSgd,), {"histories": "2"}), ConfigError, "from 0 to 8, got '2'"),
], ids=str)
def test_what_is_no_rule_is_refused(name, rule, error, words):
    before = dict(solvers.solver_types())
    with pytest.raises(error, match=words):
        caffe.register_solver(name, rule)
    assert solvers.solver_types() == before
    caffe.register_solver("OwnAdam", OwnAdam)       # the same again
    assert solvers.solver_types() == before


@pytest.mark.parametrize("answer, error, words", [
    (None, ShapeError, r"Failing.step returned None for the parameter .* of shape \[5, 3\]"), (1.5, ShapeError, "returned 1.5"),
    (np.zeros(3), ShapeError, r"returned an array of shape \[3\]"), ("write", ValueError, "read-only")])
def test_failed_rule_stops_solver(monkeypatch, tmp_path, answer, error, words):
    monkeypatch.setattr(Failing, "answer", answer)
    solver = make_solver(f"type: 'Failing' snapshot_prefix: '{tmp_path}/s'")
    _, state = solver.snapshot()
    before = weights(solver)
    with pytest.raises(error, match=words):
        solver.step(1)
    with pytest.raises(Error, match="ended in the middle of its update"):
        solver.step(1)
    solver.restore(state)
    assert all(np.array_equal(a, b) for a, b in zip(weights(solver), before, strict=True))
    monkeypatch.setattr(Failing, "step", PlainSgd.step)
    solver.step(1)
    assert solver.iter == 1 and not np.array_equal(weights(solver)[0], before[0])


# ---- the page

@pytest.fixture
def page(tmp_path, monkeypatch):
    """A folder with the files of the page and what they use."""
    for folder in "mlp", "data":
        shutil.copytree(ROOT / "models" / folder, tmp_path / "models" / folder)
    files = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.M | re.S))
    assert set(files) == {"lion.py", "solver.prototxt", "train_lion.py", "check_rule.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("lion", None)


def test_the_page(page, on_cpu):
    importlib.import_module("lion")
    exec(compile((page / "check_rule.py").read_text(), "check_rule.py", "exec"), {"__name__": "page"})
    script = next(block for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S) if "solver.solve()" in block)
    names = {"__name__": "page"}
    exec(compile(script, "page", "exec"), names)
    assert names["again"].iter == 20
    for a, b in zip(names["again"].history, names["solver"].history, strict=True):
        assert np.array_equal(a.data, b.data) and np.abs(a.data).max() > 0
    (page / "solver.prototxt").write_text((page / "solver.prototxt").read_text().replace("momentum2: 0.99", "momentum2: 1"))
    with pytest.raises(ConfigError, match=r"solver.prototxt:3: momentum2: must be at least 0 and less than 1 for Lion, got 1"):
        caffe.get_solver("solver.prototxt")


def test_the_command_line_of_the_page(page):
    done = subprocess.run([sys.executable, "train_lion.py", "train", "--solver", "solver.prototxt", "--max-iter", "3"], cwd=page,
                          env={**os.environ, "PYTHONSAFEPATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0 and (page / "lion_iter_3.solverstate").exists(), done.stderr
    assert 'type: "Lion"' in done.stderr
    state = caffe_pb2.SolverState.FromString((page / "lion_iter_3.solverstate").read_bytes())
    assert len(state.history) == 6     # of three layers with weights and bias
    plain = subprocess.run([sys.executable, "-m", "minicaffe", "train", "--solver", "solver.prototxt"], cwd=page, capture_output=True, text=True)
    assert plain.returncode == 2 and "unknown solver type 'Lion'" in plain.stderr and "register_solver('Lion', Rule)" in plain.stderr
