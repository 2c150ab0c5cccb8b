"""The benchmark of nets counts only what computes the same, and its report says where it was measured; that of GPUs can be rehearsed."""

import json
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minicaffe.net.net import Net

TOOLS = Path(__file__).resolve().parents[1] / "tools"
sys.path.insert(0, str(TOOLS / "bench"))
import gpu_nets  # noqa: E402
import nets  # noqa: E402
import report  # noqa: E402

LENET = nets.Case("lenet", "forward", 2)


@pytest.fixture
def lenet():
    made, net = nets.forwards(LENET, lambda who, make: {})
    made["minicaffe"]()
    return made, net


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


@pytest.fixture
def slow(request):
    """For tests that run tools/gpu_check, which take their time whatever the machine."""
    if not request.config.getoption("--rehearse"):
        pytest.skip("rehearses tools/gpu_check for minutes: run it with --rehearse, as .ci/run does")


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


def test_strided_part(tmp_path):
    """It compares its result with NumPy's before it is timed; its kernel was once one that no longer existed."""
    done = subprocess.run([sys.executable, TOOLS / "bench" / "gpu.py", "--device", "sim", "--only", "strided"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "strided pointwise, 64 x 64, one operand transposed" in done.stdout, done.stderr


# ---- the table of nets
