"""minicaffe plot: the curves that it finds, and pictures of them."""

import json
import math
import re
import sys

import pytest
from tiny import LINES, run

from minicaffe.addons.plotting import plot
from minicaffe.addons.plotting.parse_log import Run, read_run
from minicaffe.addons.plotting.plot import Curve, curves, plot_panel


def test_curves(logs):
    runs = [read_run(logs / name) for name in ("a.log", "b.jsonl")]
    found = {(panel, curve.label): curve for panel in ("loss", "accuracy", "rate", "gradients", "activations")
             for curve in curves(runs, panel, "NumIters")}
    assert list(found) == [("loss", "a.log: train loss"), ("loss", "a.log: test loss"), ("loss", "b.jsonl: train loss"),
                           ("accuracy", "a.log: test accuracy"), ("rate", "a.log: learning rate"), ("rate", "b.jsonl: learning rate"),
                           ("gradients", "b.jsonl: ip[0]"), ("activations", "b.jsonl: ip ip")]
    assert found["loss", "a.log: train loss"] == Curve("a.log: train loss", [0, 10], [2.4, 1.25])
    assert found["loss", "a.log: test loss"].test and found["loss", "b.jsonl: train loss"].run == 1
    assert found["loss", "b.jsonl: train loss"].xs == [0, 5, 10, 15] and math.isnan(found["loss", "b.jsonl: train loss"].ys[3])
    assert found["gradients", "b.jsonl: ip[0]"].ys == [0.5] and found["activations", "b.jsonl: ip ip"].ys == [3.0]
    [seconds] = curves(runs[:1], "accuracy", "Seconds")
    assert seconds.xs == [2.0] and seconds.label == "test accuracy"
    (logs / "a.log").write_text("".join(LINES).replace("lr = 1e-3", "lr = 0.0099999998"))     # a log rounds to six digits, and records do not
    assert curves([read_run(logs / "a.log")], "rate", "NumIters")[0].ys == [0.01, 0.01]


def test_what_is_refused(minicaffe, logs):
    pytest.importorskip("matplotlib")
    assert "there is no panel 'lost'" in minicaffe("plot", "a.log", "--show", "lost", status=2)
    assert "has no top5 along iterations; its outputs are accuracy, loss" in minicaffe("plot", "a.log", "--output", "top5", status=1)
    assert "give --out or --csv" in minicaffe("plot", "a.log", "--out=x.png", "--csv=.", status=2)
    (logs / "odd.jsonl").write_text('{"event": "watch", "time": 1, "iteration": 0, "samples": [{"layer": "a", "blob": "x"}]}\n')
    assert "odd.jsonl:1: is no record of minicaffe train --json: 'norm'" in minicaffe("plot", "odd.jsonl", status=1)


def test_without_matplotlib(minicaffe, logs, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert 'pictures need matplotlib: pip install "minicaffe[plots]"' in minicaffe("plot", "a.log", status=1)
    assert "a.log.train: 2 rows" in minicaffe("plot", "a.log", "--csv", ".")     # does not need it


@pytest.mark.slow(3)
def test_pictures(minicaffe, logs):
    pytest.importorskip("matplotlib")
    assert "wrote a.log.svg" in minicaffe("plot", "a.log", "b.jsonl")
    text = (logs / "a.log.svg").read_text()
    for label in ("a.log: train loss", "a.log: test accuracy", "b.jsonl: ip[0]", "learning rate"):
        assert label in re.sub("<!-- | -->", "", text), label
    assert "wrote a.log.svg" in minicaffe("plot", "a.log") and "b.jsonl" not in (logs / "a.log.svg").read_text()     # it is the command's own
    for name in "x.png", "X.PNG":
        minicaffe("plot", "a.log", "--out", name, "--along", "seconds", "--log")
        assert (logs / name).read_bytes()[:4] == b"\x89PNG"
    for name in ("x", "folder"):    # matplotlib would write another file, x.png
        (logs / "folder").mkdir(exist_ok=True)
        assert f"{name}: has no extension" in minicaffe("plot", "a.log", "--out", name, status=2)
    assert not (logs / "folder.png").exists()
    assert "--out: x.xyz: " in minicaffe("plot", "a.log", "--out", "x.xyz", status=2)
    assert "nowhere/x.png: cannot be written" in minicaffe("plot", "a.log", "--out", "nowhere/x.png", status=1)


@pytest.mark.parametrize("panel, runs, styles", [
    ("loss", ((0, 0), (0, 1), (1, 0)), [("C0", "-"), ("C0", "--"), ("C1", "-")]), ("loss", ((0, 0), (0, 1)), [("C0", "-"), ("C1", "--")]),
    ("gradients", ((0, 0), (0, 1), (1, 0), (1, 0)), [("C0", "-"), ("C1", "--"), ("C2", "-"), ("C3", "-")])])
def test_styles_of_curves(panel, runs, styles):
    """Colours are those of the runs; of one run, and of gradients, each curve has its own."""
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    plot_panel(axes, panel, [Curve(str(i), [0, 1], [0.01, 0.02], run, test) for i, (run, test) in enumerate(runs)], False, 1 + max(run for run, _ in runs))
    assert [(line.get_color(), line.get_linestyle()) for line in axes.lines] == styles


@pytest.mark.parametrize("count", [1, 7])
def test_panel(count):
    """A grid, no frame above and at the right, and a legend without a frame, beside the curves if it is long."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    plot_panel(axes, "loss", [Curve(str(i), [0, 1], [1, 2]) for i in range(count)], False, 1)
    assert axes.get_ylabel() == "loss" and axes.get_ylim()[0] < 1 < 2 < axes.get_ylim()[1]
    assert all(line.get_visible() for line in axes.get_xgridlines() + axes.get_ygridlines())
    assert [axes.spines[side].get_visible() for side in ("top", "right", "bottom", "left")] == [False, False, True, True]
    legend = axes.get_legend()
    assert not legend.get_frame_on() and len(legend.get_texts()) == count
    figure.canvas.draw()
    inside = axes.get_window_extent().x1 > legend.get_window_extent().x0
    assert inside == (count == 1)
    for logarithmic in False, True:
        axes = figure.subplots()
        plot_panel(axes, "loss", [Curve("lost", [0, 1], [math.nan, math.inf])], logarithmic, 1)
        assert [line.get_label() for line in axes.lines] == ["lost; not finite 2 times, first at 0"]


def test_labels_of_curves():
    rows = [{"NumIters": 0, "Seconds": 0.0, "LearningRate": 0.1, "accuracy": 0.5, "loss": 1.0}]
    runs = [Run(path, {"train": rows, "test": rows}, []) for path in ("a/log", "b/log", "b/other")]
    assert [one.label for one in plot.curves(runs[:2], "rate", "NumIters")] == ["a/log: learning rate", "b/log: learning rate"]
    assert [one.label for one in plot.curves(runs[1:], "rate", "NumIters")] == ["log: learning rate", "other: learning rate"]
    assert [one.label for one in plot.curves(runs[:1], "rate", "NumIters")] == ["learning rate"]
    for panel, labels in {"outputs": ["train accuracy", "test accuracy"], "loss": [], "accuracy": [], "rate": []}.items():
        assert [one.label for one in plot.curves(runs[:1], panel, "NumIters", "accuracy")] == labels


def test_scales_of_panels(monkeypatch, tmp_path, minicaffe):
    """Gradients, their blobs and activations are logarithmic always."""
    sample = {"layer": "a", "norm": 1.0, "zeros": 0, "saturated": None, "not_finite": 0}
    lines = [{"event": "watch", "time": 1.0, "iteration": i, "samples": [{**sample, "parameter": "a[0]"}, {**sample, "diff": "x"}, {**sample, "blob": "x"}]}
             for i in (0, 10)] + [{"event": "train", "time": 2.0, "iteration": 0, "lr": 0.1, "outputs": [{"name": "loss", "value": 1.0}]}]
    (tmp_path / "r").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pytest.importorskip("matplotlib")
    drawn, titles = [], ("loss", "rate", "gradients", "diffs", "activations")
    monkeypatch.setattr(plot, "plot_panel", lambda axes, name, found, logarithmic, runs: drawn.append((name, logarithmic)))
    for more, loud in (([], titles[2:]), (["--log"], titles)):
        drawn.clear()
        minicaffe("plot", "r", "--force", *more)
        assert drawn == [(title, title in loud) for title in titles]


def test_samples_of_watch(minicaffe, folder):
    assert run("train", "solver.prototxt", "--watch", "--json", "w.jsonl", cwd=folder).returncode == 0
    labels = {panel: [one.label for one in curves([read_run(folder / "w.jsonl")], panel, "NumIters")] for panel in ("diffs", "gradients", "activations")}
    assert labels["diffs"] == ["scale scaled"] and "scale[0]" in labels["gradients"] and "scale scaled" in labels["activations"]
    assert "w.jsonl.train: 3 rows" in minicaffe("plot", "w.jsonl", "--csv", ".")


def test_skipped_logs(minicaffe, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "a.jsonl").write_text('{"event": "train", "iteration": 1, "loss": 2, "outputs": [{"name": "loss", "value": 3}]}\n')
    (tmp_path / "bad.jsonl").write_text("{ no json\n")
    for words in (("--out=p.png",), ()):
        assert "1 of 2 inputs cannot be read" in minicaffe("plot", "bad.jsonl", "a.jsonl", *words, status=1)
        assert "bad.jsonl:1: " in minicaffe.log
    assert (tmp_path / "p.png").exists()
