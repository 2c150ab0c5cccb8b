"""``minicaffe test`` and ``minicaffe time``: Caffe's words in the log, the result on standard output."""

import io
import json
import random
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


def test_time_on_a_narrow_terminal(folder):
    process = Process("time", "net.prototxt", cwd=folder, size=(24, 40))    # on a device, too
    assert process.finish()[0] == 0 and "100.0%" in process.text and "Benchmark" not in process.text


@pytest.mark.parametrize("seed", range(40))
def test_random_tables_of_times(seed, monkeypatch):
    dice = random.Random(seed)
    device, width, verbose = dice.choice(["cpu", "gpu", "sim"]), dice.choice([80, 120]), dice.random() < 0.5
    steps = []
    for i in range(dice.randint(1, 6)):
        figures = [dice.choice([None, dice.uniform(0, 500)]) for _ in range(2)]
        layers = [f"l{i}{k}" for k in range(dice.randint(1, 2))]
        steps.append(StepTime(dice.choice(["forward", "backward"]), i, layers, ["First", "Second"][: len(layers)], dice.choice([None, "CAFFE"]),
                              dice.choice([0.0, dice.uniform(0, 3)]), 9.0, 1, 1, *figures))
    times = Times(device, steps)
    out = Console(width=width, file=io.StringIO(), highlight=False, markup=False)
    monkeypatch.setattr(bars, "table_console", lambda: out)
    monkeypatch.setattr(time.click, "get_current_context", lambda: SimpleNamespace(meta={"verbose": verbose}))
    net = SimpleNamespace(engines=lambda: [{"layer": "l0", "refused": {"ONEDNN": "too small"}}])
    time.print_times(net, times)
    lines = out.file.getvalue().splitlines()
    whole = sum(step.ms for step in steps)
    wanted = [f"layer type {'engine ' * verbose}ms share GB/s GFLOP/s".split()]
    for direction in ("forward", "backward"):
        those = [step for step in steps if step.direction == direction]
        wanted += [[direction, f"{sum(step.ms for step in those):.3f}"]] if those else []
        for step in those:
            cells = [" + ".join(step.layers), "First", *([step.engine] if verbose and step.engine else []), f"{step.ms:.3f}",
                     f"{100 * step.ms / whole if whole else 0:.1f}%"]
            cells += [f"{value:.1f}" for value in (step.gb_s, step.gflop_s) if value is not None]
            wanted.append(" ".join(cells).split())
    wanted.append(["all", f"{whole:.3f}", "100.0%"])
    assert [line.split() for line in lines[: len(wanted)]] == wanted
    rest = ["the figures are those of the simulated device, which is no GPU"] if device == "sim" else []
    assert lines[len(wanted):] == rest + ["l0: engine ONEDNN refused: too small"] * verbose
