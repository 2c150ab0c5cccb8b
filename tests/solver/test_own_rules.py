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
from bowl import gradients_of_steps, make_solver, weights
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


class AdamW(caffe.UpdateRule):
    """Adam with decoupled weight decay (arXiv 1711.05101)."""

    histories = 2

    def step(self, weight, gradient, history, rate, decay):
        p, t = self.param, self.iteration + 1
        m, v = history
        m[...] = p.momentum * m + (1 - p.momentum) * gradient
        v[...] = p.momentum2 * v + (1 - p.momentum2) * gradient**2
        m_hat, v_hat = m / (1 - p.momentum**t), v / (1 - p.momentum2**t)
        return rate * (m_hat / (np.sqrt(v_hat) + p.delta) + decay * weight)


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


@pytest.fixture(autouse=True)
def types(monkeypatch):
    """Restore the solver types after each test."""
    monkeypatch.setattr(solvers, "_types", dict(solvers._types))
    for rule in (AdamW, PlainSgd, MomentumSgd):
        caffe.register_solver(rule.__name__, rule)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("extra", ["", "iter_size: 3", "clip_gradients: 1.5 iter_size: 2", "lr_policy: 'step' gamma: 0.5 stepsize: 2"])
def test_adamw_step_by_step(extra, dtype):
    solver = make_solver(f"type: 'AdamW' momentum: 0.9 momentum2: 0.99 delta: 1e-4 weight_decay: 0.05 {extra}", dtype=dtype)
    assert type(solver).__name__ == "AdamWSolver" and len(solver.history) == 4 and {blob.dtype for blob in solver.history} == {dtype}
    w = [blob.astype(np.float64) for blob in weights(solver)]
    m, v = ([np.zeros(a.shape) for a in w] for _ in range(2))
    steps, tolerance = gradients_of_steps(solver), 2e-5 if dtype == Dtype.FLOAT else 1e-6
    for t in range(1, 9):
        rate = solver.learning_rate()
        for i, g in enumerate(next(steps)):
            m[i] = 0.9 * m[i] + np.float64(1 - solver.param.momentum) * g
            v[i] = 0.99 * v[i] + np.float64(1 - solver.param.momentum2) * g**2
            step = m[i] / (1 - 0.9**t) / (np.sqrt(v[i] / (1 - 0.99**t)) + 1e-4)
            decay = 0.05 * solver.net.params_weight_decay[i]
            step = rate * solver.net.params_lr[i] * (step + decay * w[i])
            w[i] -= step
            blob = solver.net.learnable_params[i]
            np.testing.assert_allclose(blob.cpu_data, w[i], rtol=0, atol=tolerance * max(1, np.abs(w[i]).max()))
            np.testing.assert_allclose(blob.cpu_diff, step, rtol=0, atol=tolerance)


@pytest.mark.parametrize("extra", ["weight_decay: 0.05", "weight_decay: 0.05 regularization_type: 'L1' iter_size: 2"])
def test_rule_like_sgd(extra, device, caplog):
    after = {}
    for kind in ("MomentumSgd", "SGD"):     # one after the other, as both take their random numbers from one generator
        solver = make_solver(f"type: '{kind}' momentum: 0.9 {extra}")
        solver.step(6)
        after[kind] = weights(solver)
    for a, b in zip(*after.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
    assert ("MomentumSgd computes its updates on the CPU" in caplog.text) == (device != "cpu")


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
@pytest.mark.parametrize("kind", ["AdamW", "PlainSgd"])
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
    for a, b in zip([*weights(resumed), *(blob.cpu_data for blob in resumed.history)],
                    [*weights(through), *(blob.cpu_data for blob in through.history)], strict=True):
        assert np.array_equal(a, b)
    if kind == "AdamW":
        assert all(np.abs(blob.cpu_data).max() > 0 for blob in resumed.history)
        with pytest.raises(ShapeError, match="the file has 4 blobs, MomentumSgdSolver with this net needs 2"):
            make_solver(fields.replace("AdamW", "MomentumSgd")).restore(state)


def test_ranks_update_with_mean_gradient(monkeypatch):
    """Of two ranks with the same batches both compute what one process computes."""
    fields = "type: 'AdamW' momentum: 0.9 momentum2: 0.99 weight_decay: 0.05"
    alone = make_solver(fields)
    alone.step(4)
    job = Job(2, mirror=True)
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
    plain, momentum, adamw = (dry_run_training(make_solver(f"type: '{kind}'", net).param, replace_sources, plan=None)[1][0].peak
                              for kind in ("PlainSgd", "MomentumSgd", "AdamW"))
    one = 4 * 256 * 513
    assert 0.8 * one < momentum - plain < 1.2 * one and 0.8 * one < adamw - momentum < 1.2 * one
    with dry_run():
        assert is_dry_run()
    assert not is_dry_run()


# ---- what may be wrong

def test_unknown_type_lists_registered(tmp_path):
    listed = r"solver type 'Adamw'; did you mean 'AdamW' or 'Adam'\?; known are SGD, .*AdamW, PlainSgd, MomentumSgd; .*register_solver"
    with pytest.raises(ConfigError, match=listed):
        make_solver("type: 'Adamw'")
    (tmp_path / "s.prototxt").write_text('net: "x"\ntype: "Adamw"\nbase_lr: 1 lr_policy: "fixed"')
    with pytest.raises(ConfigError, match=r"s.prototxt:2: type: unknown solver type 'Adamw'"):
        caffe.get_solver(str(tmp_path / "s.prototxt"))


class NoStep(caffe.UpdateRule):
    pass


class Histories(PlainSgd):
    histories = "2"


@pytest.mark.parametrize("name, rule, error, words", [
    ("Adam", PlainSgd, ConfigError, "'Adam' is registered already"), ("AdamW", PlainSgd, ConfigError, "'AdamW' is registered already"),
    ("My rule", PlainSgd, ConfigError, "is letters, digits and _"), (5, PlainSgd, WrongTypeError, "name of a solver type"),
    ("New", 5, WrongTypeError, "subclass of UpdateRule, got 5"), ("New", dict, WrongTypeError, "subclass of UpdateRule"),
    ("New", NoStep, ConfigError, "NoStep does not define step"), ("New", Histories, ConfigError, "from 0 to 8, got '2'"),
], ids=str)
def test_what_is_no_rule_is_refused(name, rule, error, words):
    before = dict(solvers.solver_types())
    with pytest.raises(error, match=words):
        caffe.register_solver(name, rule)
    assert solvers.solver_types() == before
    caffe.register_solver("AdamW", AdamW)       # the same again
    assert solvers.solver_types() == before


class Failing(PlainSgd):
    answer = None

    def step(self, weight, gradient, history, rate, decay):
        if isinstance(self.answer, str):
            weight[...] = 0
        return self.answer


@pytest.mark.parametrize("answer, error, words", [
    (None, ShapeError, r"Failing.step returned None for the parameter .* of shape \[5, 3\]"), (1.5, ShapeError, "returned 1.5"),
    (np.zeros(3), ShapeError, r"returned an array of shape \[3\]"), ("write", ValueError, "read-only")])
def test_failed_rule_stops_solver(monkeypatch, tmp_path, answer, error, words):
    monkeypatch.setattr(Failing, "answer", answer)
    caffe.register_solver("Failing", Failing)
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
    for path in model_files("mlp", "data"):
        link = tmp_path / path.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, link)
    files = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.M | re.S))
    assert set(files) == {"lion.py", "solver.prototxt", "train_lion.py", "check_rule.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("lion", None)


def model_files(*folders):
    return [path for folder in folders for path in (ROOT / "models" / folder).rglob("*.*")]


def test_the_page(page, on_cpu):
    importlib.import_module("lion")
    code = (page / "check_rule.py").read_text()
    exec(compile(code, "check_rule.py", "exec"), {"__name__": "page"})
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
