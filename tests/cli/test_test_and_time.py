"""``minicaffe test`` and ``minicaffe time``: Caffe's words in the log, the result on standard output."""

import io
import json
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from tiny import Process, run

from minicaffe import cli
from minicaffe.cli import bars, time
from minicaffe.inspection.timing import StepTime, Times


@pytest.fixture
def weights(folder, capsys):
    assert cli.main(["train", "solver.prototxt", "--quiet"]) == 0
    capsys.readouterr()
    return "tiny_iter_30.caffemodel"


def test_means_of_test(folder, weights):
    result = run("test", "-model", "net.prototxt", "-weights=" + weights, "-iterations", 3, cwd=folder)
    assert result.returncode == 0, result.stderr
    log = [line.partition("] ")[2] for line in result.stderr.splitlines()]
    assert {"Running for 3 iterations."} <= set(log) and any(line.startswith(("Use CPU.", "Use GPU")) for line in log)
    batches = [re.fullmatch(r"Batch (\d), (loss|total) = (\S+)", line) for line in log if line.startswith("Batch")]
    assert [(int(match[1]), match[2]) for match in batches] == [(i, name) for i in range(3) for name in ("loss", "total")]
    loss, mean, total = result.stdout.splitlines()
    assert [loss, mean, total] == log[-3:]
    expected = sum(float(match[3]) for match in batches if match[2] == "loss") / 3
    assert float(loss.removeprefix("Loss: ")) == pytest.approx(expected, rel=1e-4)
    assert re.fullmatch(r"loss = (\S+) \(\* 1 = \1 loss\)", mean) and total.startswith("total = ")
    for more, drawn in ([], True), (["--quiet"], False):
        process = Process("test", "net.prototxt", "--weights", weights, *more, cwd=folder, size=(24, 80))
        assert process.finish()[0] == 0 and ("testing" in process.text) == drawn
        assert process.text.count("Loss: ") == 1 and "Batch" not in process.text


@pytest.mark.parametrize("arguments, status, text", [
    (["net.prototxt"], 2, "--weights"), (["--weights", "w"], 2, "give one net"), (["net.prototxt", "--weights", "w"], 1, "w: no such file"),
    (["none.prototxt", "--weights", "w"], 1, "none.prototxt: no such file"), (["solver.prototxt", "--weights", "w"], 2, "solver.prototxt:1"),
    (["net.prototxt", "--weights", "w", "--iterations", "0"], 2, "--iterations")])
def test_test_faults(folder, capsys, arguments, status, text):
    assert cli.main(["test", "--quiet", *arguments]) == status
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and text in err


def test_time_in_caffes_words(folder):
    result = run("time", "--model", "net.prototxt", "--iterations", 2, "--phase", "TEST", cwd=folder)
    assert result.returncode == 0, result.stderr
    log = [line.partition("] ")[2] for line in result.stderr.splitlines()]
    log = log[log.index("Performing Forward"):]
    number = r"[\d.e+-]+"
    layers = ("in", "data_in_0_split", "scale", "scaled_scale_0_split", "loss", "sum")
    names = [name for name in layers if any(line.startswith(f"{name:>10}\t") for line in log)]
    assert {"in", "scale", "loss", "sum"} <= set(names)
    expected = ["Performing Forward", f"Initial loss: {number}", "Performing Backward", r"\*\*\* Benchmark begins \*\*\*",
                "Testing for 2 iterations.", r"Iteration: 1 forward-backward time: \d+ ms\.",
                r"Iteration: 2 forward-backward time: \d+ ms\.", "Average time per layer: ",
                *(rf"{name:>10}\t{way}: {number} ms\." for name in names for way in ("forward", "backward")),
                f"Average Forward pass: {number} ms.", f"Average Backward pass: {number} ms.",
                f"Average Forward-Backward: {number} ms.", r"Total Time: \d+ ms\.", r"\*\*\* Benchmark ends \*\*\*"]
    assert len(log) == len(expected)
    for line, pattern in zip(log, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


@pytest.fixture
def on_cpu(device):
    """For tests of the CPU's output."""
    if device != "cpu":
        pytest.skip("a device has more columns and lines: tests/cuda/test_device_command.py")


def test_tables_and_json_of_time(on_cpu, folder, capsys):
    assert cli.main(["time", "net.prototxt", "--device", "cpu", "--iterations", "1", "--quiet", "--verbose"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["layer", "type", "engine", "ms", "share", "GB/s", "GFLOP/s"]
    assert [line[:2] for line in lines[2:5]] == [["in", "DummyData"], ["scale", "Scale"], ["loss", "EuclideanLoss"]]
    assert [line[0] for line in lines] == ["layer", "forward", "in", "scale", "loss", "backward", "loss", "scale", "all"]
    assert lines[-1][-1] == "100.0%" and float(lines[-1][1]) == pytest.approx(float(lines[1][1]) + float(lines[5][1]), abs=2e-3)
    (folder / "deploy.prototxt").write_text("""
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "scale" type: "Scale" bottom: "x" top: "s" }
""")
    assert cli.main(["time", "deploy.prototxt", "--device", "cpu", "--iterations", "1", "--phase", "test", "--quiet"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["layer", "forward", "in", "scale", "backward", "scale", "all"]
    assert cli.main(["time", "net.prototxt", "--device", "cpu", "--iterations", "3", "--quiet", "--json", "times.json"]) == 0
    found = json.loads((folder / "times.json").read_text())
    assert found["device"] == "cpu"
    steps = {(step["direction"], *step["layers"]): step for step in found["steps"]}
    assert list(steps) == [("forward", "in"), ("forward", "scale"), ("forward", "loss"), ("backward", "loss"), ("backward", "scale")]
    scale = steps["forward", "scale"]
    assert scale["bytes"] == 4 * (2 * 32 + 2 * 4) and scale["gb_s"] == pytest.approx(scale["bytes"] / scale["ms"] / 1e6)
    assert scale["gflop_s"] == pytest.approx(scale["flops"] / scale["ms"] / 1e6)
    assert cli.main(["time", "net.prototxt", "--device", "cpu", "--iterations", "1", "--quiet", "--json", "times.json"]) == 1
    assert "--force" in capsys.readouterr().err and json.loads((folder / "times.json").read_text()) == found
    assert cli.main(["time", "net.prototxt", "--device", "cpu", "--iterations", "1", "--quiet", "--json", "times.json", "--force"]) == 0
    assert json.loads((folder / "times.json").read_text()) != found


@pytest.mark.parametrize("device, verbose, ms", [("cpu", False, 1.5), ("gpu", True, 1.5), ("sim", True, 0.0)])
def test_table_of_times(monkeypatch, device, verbose, ms):
    steps = [StepTime(way, 0, layers, kinds, engine, time, 9.0, 1, 1, *speeds) for way, layers, kinds, engine, time, speeds in (
        ("forward", ["a", "b"], ["First", "Second"], "CAFFE", ms, (3.25, None)),
        ("forward", ["c"], ["First"], None, ms / 3, (None, 400.0)), ("backward", ["c"], ["First"], "CAFFE", 0.0, (None, None)))]
    out = Console(width=120, file=io.StringIO(), highlight=False, markup=False)
    monkeypatch.setattr(bars, "table_console", lambda: out)
    monkeypatch.setattr(time.click, "get_current_context", lambda: SimpleNamespace(meta={"verbose": verbose}))
    times = Times(device)
    times.steps = steps
    time.print_times(SimpleNamespace(engines=lambda: [{"layer": "l0", "refused": {"ONEDNN": "too small"}}]), times)
    times = ("2.000", "1.500 75.0%", "0.500 25.0%") if ms else ("0.000", "0.000 0.0%", "0.000 0.0%")
    engine = " CAFFE" * verbose
    assert [" ".join(line.split()) for line in out.file.getvalue().splitlines()] == [
        f"layer type{' engine' * verbose} ms share GB/s GFLOP/s", f"forward {times[0]}", f"a + b First{engine} {times[1]} 3.2",
        f"c First {times[2]} 400.0", "backward 0.000", f"c First{engine} 0.000 0.0%", f"all {times[0]} 100.0%",
        *["the figures are those of the simulated device, which is no GPU"] * (device == "sim"),
        *["l0: engine ONEDNN refused: too small"] * verbose]
