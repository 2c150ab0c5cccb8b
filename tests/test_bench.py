"""The benchmark of nets counts only what computes the same, and its report says where it was measured; that of GPUs can be rehearsed."""

import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minicaffe.device import threads
from minicaffe.net.net import Net

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "bench"))
import distributed  # noqa: E402
import gpu_nets  # noqa: E402
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


def test_a_peer_that_computes_something_else_is_found(lenet):
    made, net = lenet
    values = net.nodes[-1].tops[0].data.copy()
    made |= {"same": lambda: values * (1 + 1e-6), "other": lambda: values[::-1], "nothing": lambda: values * np.nan}
    assert nets.check(LENET, made, net).keys() == {"other", "nothing"}


def test_results_that_are_not_finite_raise(lenet):
    made, net = lenet
    net.input_blobs[0].data[...] = np.nan
    with pytest.raises(ArithmeticError, match="lenet forward.* not finite"):
        nets.check(LENET, made, net)


def test_a_report_says_where_its_rows_come_from():
    row = {"commit": "abc1234", "processor": "A"}
    assert report.measured([row, row]) == "Measured: commit abc1234 on A.\n"
    assert report.measured([row, {**row, "commit": None}]).startswith("Measured in several places")
    assert report.measured([{**row, "again": 2}, {**row, "again": 3, "shared": 1}]) == (
        "Measured: commit abc1234 on A. 5 turns were taken again, as the processors gave less than before; 1 count although they did.\n")


@pytest.mark.parametrize("looks, patience, taken, count", [
    ("ww", 60, "1", (0, 0)), ("w-ww", 60, "2", (1, 0)), ("--ww", 60, "1", (0, 0)), ("w-", 0, "1", (0, 1)), ("-", 0, "1", (0, 1))])
def test_a_turn_counts_if_all_processors_are_there_before_and_after_it(monkeypatch, looks, patience, taken, count):
    processors = nets.Processors(2, patience)
    looks, turns = iter(looks), iter("123")
    monkeypatch.setattr(processors, "whole", lambda: next(looks) == "w")
    assert processors.turn(lambda: next(turns)) == taken
    assert (processors.count["again"], processors.count["shared"]) == count and next(looks, None) is None


def test_a_look_at_processors_is_compared_with_the_fastest(monkeypatch):
    times = iter([1.9] * 6 + [1.9] * 6 + [1.0] * 6 + [1.2] * 6 + [1.3] * 6 + [0.9] * 6)      # the first by one thread
    monkeypatch.setattr(nets, "seconds_of", lambda run, calls: next(times))
    monkeypatch.setattr(nets.Processors, "fastest", {})
    before = threads.get_num_threads()
    processors = nets.Processors(2, 60)
    assert [processors.whole() for _ in range(5)] == [False, True, True, False, True] and next(times, None) is None
    assert nets.Processors(1, 60).whole()
    threads.set_num_threads(before)


def test_the_table_of_ranks_has_the_better_of_the_peers_kinds():
    ours = {distributed.ONE: [9, 10, 11], distributed.OURS: [7, 8, 9]}
    row = {"net": "lenet", "batch": 64, "ms": {**ours, "PyTorch DDP NCHW": [1, 20, 30], "PyTorch DDP channels-last": [1, 16, 17]}}
    without = {**row, "net": "googlenet", "ms": ours}
    assert distributed.table([row, without]).splitlines()[2:] == [
        "| LeNet, 64 | 10.00 (9.00 to 11.00) | 8.00 (7.00 to 9.00) | 1.25x | 16.00 | 0.50x |",
        "| GoogLeNet, 64 | 10.00 (9.00 to 11.00) | 8.00 (7.00 to 9.00) | 1.25x |  |  |"]


# ---- on a GPU


@pytest.fixture
def rehearsal(on_cpu, monkeypatch):
    """A function that gives the Measurement of a net in a rehearsal."""
    monkeypatch.setattr(gpu_nets, "sync_all", lambda modules: lambda: None)
    return lambda name: gpu_nets.Measurement(name, "float32", SimpleNamespace(device="sim"), None)


@pytest.mark.parametrize("name", [name for name in gpu_nets.BATCHES if name not in ("caffenet", "vgg16")])     # which have 20 million weights
def test_a_net_can_be_small(rehearsal, name):
    measurement = rehearsal(name)
    for net in Net(measurement.small(nets.training_net(name, 2))), nets.random_net(name, 2, measurement.small):
        assert net.input_blobs[0].shape[0] == 2 and net.input_blobs[0].shape[2] <= 32


@pytest.mark.parametrize("name", ["mobilenet", "lstm_text"])
def test_all_of_a_net_in_pytorch_moves_with_it(rehearsal, name):
    """To another type, as to a GPU: a tensor that stayed behind would be of the wrong type there, too."""
    torch = pytest.importorskip("torch")
    from to_torch import TorchNet
    net = nets.random_net(name, 2, rehearsal(name).small)
    inputs = [torch.from_numpy(array).double() for array in nets.random_inputs(net)]
    assert TorchNet(net).double()(*inputs).dtype is torch.float64


def test_each_row_is_written_at_once(tmp_path, capsys):
    turns.write_json(tmp_path / "rows.json", {"rows": [], "failed": {}})
    rows = turns.Rows(tmp_path / "rows.json", "lenet tf32", rehearsal=False)
    rows.add("step", 2.0, "ms", {"PyTorch": 4.0, "CuPy": "missing"}, "1.0x", True, ratio=0.5)
    rows.add("memory", "not run: no device", "")
    row, other = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (row["part"], row["minicaffe"], row["peers"]["PyTorch"], row["met"], row["ratio"]) == ("lenet tf32", 2, 4, True, 0.5)
    assert other["minicaffe"] == "not run: no device" and other["met"] is None
    assert capsys.readouterr().out.splitlines()[0] == "step: 2 ms (PyTorch 4, CuPy: missing) [1.0x; met]"


def test_gpu_check_widens_the_tolerance_of_conformance(tmp_path):
    path = Path(__file__).resolve().parents[1] / "tools/gpu_check"
    loader = SourceFileLoader("gpu_check", str(path))
    gpu_check = module_from_spec(spec_from_loader("gpu_check", loader))
    loader.exec_module(gpu_check)
    case = tmp_path / "given/cases/public/one/case.json"
    case.parent.mkdir(parents=True)
    case.write_text(json.dumps({"rtol": 1e-4, "atol": 0.5, "tol": {"loss": [1e-5, 1e-6]}, "steps": []}))
    wide = gpu_check.widened(tmp_path / "given", tmp_path / "wide", 1e-2)
    assert json.loads((wide / "cases/public/one/case.json").read_text()) == {
        "rtol": 1e-2, "atol": 0.5, "tol": {"loss": [1e-2, 1e-2]}, "steps": []}


def test_a_net_on_a_gpu_is_rehearsed(tmp_path):
    """From the first row to the last, with the times of its steps."""
    tool = Path(__file__).resolve().parents[1] / "tools/bench/gpu.py"
    done = subprocess.run([sys.executable, tool, "--device", "sim", "--only", "^lenet tf32$", "--rounds", "1", "--json", tmp_path / "rows.json"],
                          capture_output=True, text=True, timeout=300)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert done.returncode == 0 and found["failed"] == {}, done.stdout + done.stderr
    rows = {row["what"].partition(": ")[2]: row for row in found["rows"]}
    assert rows["training step, data resident"]["graph"] is True
    steps = rows["steps, forward and backward"]
    assert steps["whole_pass"]["CUDA graph"] > 0
    assert {(step["direction"], *step["layers"]) for step in steps["times"]["steps"]} >= {("forward", "conv1"), ("backward", "conv1")}
    assert steps["minicaffe"] == pytest.approx(sum(step["ms"] for step in steps["times"]["steps"]))
