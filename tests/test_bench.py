"""The benchmark of nets counts only what computes the same, and its report says where it was measured; that of GPUs can be rehearsed."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minicaffe.cuda import compile
from minicaffe.device import threads
from minicaffe.net.net import Net

TOOLS = Path(__file__).resolve().parents[1] / "tools"
sys.path.insert(0, str(TOOLS / "bench"))
import gpu_nets  # noqa: E402
import gpu_table  # noqa: E402
import nets  # noqa: E402
import report  # noqa: E402
import turns  # noqa: E402

LENET = nets.Case("lenet", "forward", 2)


@pytest.fixture
def lenet():
    before = threads.get_num_threads()
    made, net = nets.forwards(LENET, lambda who, make: {})
    made["minicaffe"]()
    yield made, net
    threads.set_num_threads(before)


def test_wrong_results(lenet):
    made, net = lenet
    values = net.nodes[-1].tops[0].data.copy()
    made |= {"same": lambda: values * (1 + 1e-6), "other": lambda: values[::-1], "nothing": lambda: values * np.nan}
    assert nets.check(LENET, made, net).keys() == {"other", "nothing"}
    net.input_blobs[0].data[...] = np.nan
    with pytest.raises(ArithmeticError, match="lenet forward.* not finite"):
        nets.check(LENET, made, net)


def test_report():
    row = {"commit": "abc1234", "processor": "A"}
    assert report.measured([row, row]) == "Measured: commit abc1234 on A.\n"
    assert report.measured([row, {**row, "commit": None}]).startswith("Measured in several places")
    text = report.measured([{**row, "again": 2}, {**row, "again": 3, "shared": 1}])
    assert text.replace("\n", " ") == (
        "Measured: commit abc1234 on A. 5 turns were taken again, as the processors gave less than before; 1 count although they did. ")
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("looks, patience, taken, count", [
    ("ww", 60, "1", (0, 0)), ("w-ww", 60, "2", (1, 0)), ("--ww", 60, "1", (0, 0)), ("w-", 0, "1", (0, 1)), ("-", 0, "1", (0, 1))])
def test_turns_and_processors(monkeypatch, looks, patience, taken, count):
    processors = nets.Processors(2, patience)
    looks, turns = iter(looks), iter("123")
    monkeypatch.setattr(processors, "whole", lambda: next(looks) == "w")
    assert processors.turn(lambda: next(turns)) == taken
    assert (processors.count["again"], processors.count["shared"]) == count and next(looks, None) is None


def test_looks_at_processors(monkeypatch):
    times = iter([1.9] * 6 + [1.9] * 6 + [1.0] * 6 + [1.2] * 6 + [1.3] * 6 + [0.9] * 6)      # the first by one thread
    monkeypatch.setattr(nets, "seconds_of", lambda run, calls: next(times))
    monkeypatch.setattr(nets.Processors, "fastest", {})
    before = threads.get_num_threads()
    processors = nets.Processors(2, 60)
    assert [processors.whole() for _ in range(5)] == [False, True, True, False, True] and next(times, None) is None
    assert nets.Processors(1, 60).whole()
    threads.set_num_threads(before)


# ---- on a GPU


@pytest.fixture
def rehearsal(on_cpu, monkeypatch):
    """A function that gives the Measurement of a net in a rehearsal."""
    monkeypatch.setattr(gpu_nets, "sync_all", lambda modules: lambda: None)
    return lambda name: gpu_nets.Measurement(name, "float32", SimpleNamespace(device="sim", table=True), None)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow(2)] * (name == "resnet50")) for name in gpu_nets.BATCHES if name not in ("caffenet", "vgg16")])     # which have 20 million weights
def test_a_net_can_be_small(rehearsal, name):
    measurement = rehearsal(name)
    for net in Net(measurement.small(nets.training_net(name, 2))), nets.random_net(name, 2, measurement.small):
        assert net.input_blobs[0].shape[0] == 2 and net.input_blobs[0].shape[2] <= 32


@pytest.mark.parametrize("name", ["mobilenet", "lstm_text"])
def test_types_in_pytorch(rehearsal, name):
    """To another type, as to a GPU: a tensor that stayed behind would be of the wrong type there, too."""
    torch = pytest.importorskip("torch")
    from to_torch import TorchNet
    net = nets.random_net(name, 2, rehearsal(name).small)
    inputs = [torch.from_numpy(array).double() for array in nets.random_inputs(net)]
    assert TorchNet(net).double()(*inputs).dtype is torch.float64


@pytest.fixture(scope="module")
def gpu_check():
    """tools/gpu_check as a module."""
    loader = SourceFileLoader("gpu_check", str(TOOLS / "gpu_check"))
    made = module_from_spec(spec_from_loader("gpu_check", loader))
    loader.exec_module(made)
    return made


def check(tmp_path, *arguments, **environment):
    """Run tools/gpu_check on the simulated device; return its JSON and what it printed."""
    done = subprocess.run([sys.executable, TOOLS / "gpu_check", "--device", "sim", "--no-build", "--out", tmp_path, *arguments],
                          capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    return json.loads((tmp_path / "gpu_check.json").read_text()), done.stdout + done.stderr


def test_numbers_of_gpu_check(gpu_check, tmp_path):
    case = tmp_path / "given/cases/public/one/case.json"
    case.parent.mkdir(parents=True)
    case.write_text(json.dumps({"rtol": 1e-4, "atol": 0.5, "tol": {"loss": [1e-5, 1e-6]}, "steps": []}))
    wide = gpu_check.widened(tmp_path / "given", tmp_path / "wide", 1e-2)
    assert json.loads((wide / "cases/public/one/case.json").read_text()) == {
        "rtol": 1e-2, "atol": 0.5, "tol": {"loss": [1e-2, 1e-2]}, "steps": []}
    assert gpu_check.few_differ("g|diff|x: 1 of 96 values differ; at [2] got 1, expected 2")
    assert gpu_check.few_differ("g|pdiff|c|1: 1 of 3 values differ") and not gpu_check.few_differ("g|diff|loss: 1 of 1 values differ")
    assert not gpu_check.few_differ("g|diff|x: 3 of 96 values differ") and not gpu_check.few_differ("g|data|y: 1 of 96 values differ")
    assert gpu_check.shares([("a", 10), ("b", 30)], 40) == {"a": 10, "b": 40}
    assert gpu_check.shares([("a", 10), ("b", 30)], 80) == {"a": 20, "b": 80}
    assert gpu_check.shares([("a", 10), ("b", 30)], 15) == {"a": 10, "b": 15}


TESTS = """
import os, time

def test_good():
    pass

def test_bad():
    assert 1 == 2

def test_that_hangs():
    time.sleep(3)   # the process that counts takes the others' results in this time
    if END:
        os.kill(PID, END)
    time.sleep(60)
"""


@pytest.fixture
def slow(request):
    """For tests that run tools/gpu_check, which take their time whatever the machine."""
    if not request.config.getoption("--rehearse"):
        pytest.skip("rehearses tools/gpu_check for minutes: run it with --rehearse, as .ci/run does")


@pytest.mark.parametrize("end", [None, signal.SIGTERM])
def test_failed_tests_of_gpu_check(slow, tmp_path, end):
    tests = tmp_path / "test_three.py"
    tests.write_text(TESTS.replace("END", str(int(end or 0))).replace("PID", f"int(open({str(tmp_path / 'pid')!r}).read())"))
    done = subprocess.Popen([sys.executable, TOOLS / "gpu_check", "--device", "sim", "--no-build", "--out", tmp_path, "--only", "tests",
                             "--tests", "tests/addons/thc/test_state.py::test_what_is_no_number_of_cycles", tests, "--minutes", "1" if end is None else "5"],
                            stdout=subprocess.PIPE, text=True, env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")})
    (tmp_path / "pid").write_text(str(done.pid))
    text, _ = done.communicate(timeout=240)
    result = json.loads((tmp_path / "gpu_check.json").read_text())
    found = result["steps"]["tests"]
    assert done.returncode == 1 and found["ok"] is False and found["cut_off"] is True, text
    (name, why), = found["failures"].items()
    assert name.endswith("test_bad") and "1 == 2" in why and found["passed"] >= 1
    assert [name.rpartition("::")[2] for name in found["not_ended"]] == ["test_that_hangs"]
    assert "tests" in result["cut"] and result["finished"] is (end is None)


def test_steps_of_gpu_check(slow, tmp_path):
    steps = [word for step in ("machine", "build", "smoke", "table", "kernels") for word in ("--only", step)]
    result, text = check(tmp_path, *steps, "--table", "^lenet (tf32|bf16)$", "--kernels", "^(strided|layers tf32)$")
    found = result["steps"]
    assert list(found) == ["machine", "build", "smoke", "table", "kernels"] and result["ok"] and not result["cut"], text
    assert found["smoke"]["ok"] is None and found["smoke"]["why"]
    assert found["table"]["ok"] is found["kernels"]["ok"] is True and "| LeNet, 2 | " in text
    kinds = {(row["precision"], row["kind"]) for row in found["table"]["rows"] if "kind" in row}
    assert kinds >= {("tf32", kind) for kind in ("step", "memory", "tuning", "forward")}
    assert any(row["what"].startswith("BatchNorm + ReLU 7x7x2048") for row in found["kernels"]["rows"])
    result, text = check(tmp_path, "--only", "query", "--only", "kernels", "--only", "nccl", "--kernels", "^strided$", "--minutes", "0.12")
    assert result["cut"].keys() >= {"kernels", "nccl"} and "cut: nccl: not begun" in text and result["ok"] is False


@pytest.mark.slow(1)
def test_strided_part(tmp_path):
    """It compares its result with NumPy's before it is timed; its kernel was once one that no longer existed."""
    done = subprocess.run([sys.executable, TOOLS / "bench" / "gpu.py", "--device", "sim", "--only", "strided"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "strided pointwise, 64 x 64, one operand transposed" in done.stdout, done.stderr


# ---- the table of nets

class Clock:
    """In place of the module time: a clock that only `sleep` moves."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_table_of_nets(tmp_path):
    turns.write_json(tmp_path / "rows.json", {"rows": [], "failed": {}})
    measurement = gpu_nets.Measurement.__new__(gpu_nets.Measurement)
    measurement.rows = turns.Rows(tmp_path / "rows.json", "resnet50 tf32", rehearsal=False)
    measurement.name, measurement.precision, measurement.batch, measurement.missing = "resnet50", "tf32", 64, {}
    measurement.add("step", "step", 20.0, "ms", {"PyTorch": 25.0}, {"ratio_eager": 0.8, "ratio_graph": 0.91}, nchw_ms=30.0)
    measurement.add("memory", "memory", 6000.0, "MiB", {"PyTorch": 8000.0}, {"ratio": 0.75})
    measurement.add("one picture", "one picture", 1.0, "ms", {"PyTorch": 4.0}, {"ratio_eager": 0.25, "ratio_graph": None})
    measurement.add("tuning", "tuning", 0.5, "s", {}, {}, measured=9, kept=2)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["met"], row["aim"]) for row in rows] == [
        (False, "0.88x eager, 0.9x graph"), (True, "0.75x PyTorch"), (None, "0.25x eager, 1x graph"), (None, None)]
    lines = gpu_table.table(rows)
    assert "| ResNet-50, 64 | 20 | 0.80 (0.88) | 0.91 (0.9) | 30 |  |  |  |  |  |  | 6,000 | 0.75 (0.75) |" in lines
    assert "| ResNet-50 | 1 | 0.25 (0.25) |  |  |  |  |" in lines and "  resnet50 tf32: 0.50 s, 9 products" in lines
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert list(gpu_table.NAMES) == list(gpu_nets.BATCHES)


def test_ratios(rehearsal, tmp_path, monkeypatch):
    turns.write_json(tmp_path / "rows.json", {"rows": [], "failed": {}})
    measurement = rehearsal("resnet50")
    measurement.rows, measurement.missing = turns.Rows(tmp_path / "rows.json", "resnet50 tf32", rehearsal=True), {"CuPy": "none"}
    seconds = {"minicaffe": 0.02, "minicaffe NCHW": 0.03, "PyTorch NCHW": 0.06, "PyTorch channels-last": 0.04,
               "PyTorch NCHW, CUDA graph": 0.05, "PyTorch channels-last, CUDA graph": 0.01}
    clock = Clock()     # a busy machine changes no time of it
    monkeypatch.setattr(turns, "time", clock)
    made = {who: functools.partial(clock.sleep, taken) for who, taken in seconds.items()}
    assert measurement.row("step", "step", made) == "PyTorch channels-last, CUDA graph"
    row, = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["ratio_eager"] == pytest.approx(0.5, rel=0.2) and row["ratio_graph"] == row["ratio"] == pytest.approx(2, rel=0.2)
    assert row["nchw_ms"] == pytest.approx(30, rel=0.2) and row["peers"].keys() == {*seconds, "CuPy"} - {"minicaffe", "minicaffe NCHW"}


def test_time_of_tuning(tmp_path, monkeypatch):
    monkeypatch.setenv("MINICAFFE_CACHE", str(tmp_path))
    with gpu_nets.tuning() as first:
        assert compile.read_cached_plan("a product") is None
        time.sleep(0.02)
        compile.write_cached_plan("a product", "0:engine")
    with gpu_nets.tuning() as second:
        assert compile.read_cached_plan("a product") == "0:engine"
    assert first["measured"] == second["kept"] == 1 and 0.02 <= first["seconds"] < 1
    assert second == {"seconds": 0, "measured": 0, "kept": 1}


def test_net_on_a_gpu(slow, tmp_path):
    done = subprocess.run([sys.executable, TOOLS / "bench/gpu.py", "--device", "sim", "--only", "^lenet tf32$", "--rounds", "1", "--json", tmp_path / "rows.json"],
                          capture_output=True, text=True, timeout=300)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert done.returncode == 0 and found["failed"] == {}, done.stdout + done.stderr
    rows = {row["what"].partition(": ")[2]: row for row in found["rows"]}
    assert rows["training step, data resident"]["graph"] is True
    steps = rows["steps, forward and backward"]
    assert {(step["direction"], *step["layers"]) for step in steps["times"]["steps"]} >= {("forward", "conv1"), ("backward", "conv1")}
    assert steps["minicaffe"] == pytest.approx(sum(step["ms"] for step in steps["times"]["steps"]))
