"""minicaffe plot: the curves that it finds, and pictures of them; logs that are cut off."""

import json
import math
import re
import sys

import pytest

from minicaffe.cli.parse_log import read_run
from minicaffe.cli.plot import Curve, curves, plot_panel

LINES = [f"I1121 03:31:{second:02}.000000 1 solver.py:1] {text}\n" for second, text in enumerate((
    "Solving tiny",
    "Iteration 0, Testing net (#0)",
    "    Test net output #0: accuracy = 0.1",
    "    Test net output #1: loss = 2.5 (* 1 = 2.5 loss)",
    "Iteration 0 (0 iter/s, 0s/10 iters), loss = 2.4",
    "    Train net output #0: loss = 2.4 (* 1 = 2.4 loss)",
    "Iteration 0, lr = 0.01",
    "Iteration 10 (0 iter/s, 0s/10 iters), loss = 1.25",
    "    Train net output #0: loss = 1.25 (* 1 = 1.25 loss)",
    "Iteration 10, lr = 1e-3",
    "Optimization Done."))]


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "a.log").write_text("".join(LINES))
    records = [{"event": "train", "time": 5.0 + i, "iteration": 5 * i, "lr": 0.1, "loss": 1.0,
                "outputs": [{"name": "loss", "value": None if i == 3 else 1 / (i + 1)}]} for i in range(4)]
    samples = [{"layer": "ip", "parameter": "ip[0]", "norm": 0.5, "zeros": 0.0}, {"layer": "ip", "blob": "ip", "norm": 3.0, "zeros": 0.5}]
    records.insert(1, {"event": "watch", "time": 5.5, "iteration": 0, "samples": samples})
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def test_curves_of_a_log_and_of_records(logs):
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


def test_rounding_is_no_jump(logs):
    """A log rounds to six digits, and records do not."""
    (logs / "a.log").write_text("".join(LINES).replace("lr = 1e-3", "lr = 0.0099999998"))
    assert curves([read_run(logs / "a.log")], "rate", "NumIters")[0].ys == [0.01, 0.01]


def test_what_is_refused(minicaffe, logs):
    pytest.importorskip("matplotlib")
    assert "there is no panel 'lost'" in minicaffe("plot", "a.log", "--show", "lost", status=2)
    assert "has no top5 along iterations; its outputs are accuracy, loss" in minicaffe("plot", "a.log", "--output", "top5", status=1)


def test_without_matplotlib(minicaffe, logs, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert 'pictures need matplotlib: pip install "minicaffe[plots]"' in minicaffe("plot", "a.log", status=1)
    assert "a.log.train: 2 rows" in minicaffe("plot", "a.log", "--csv", ".")     # does not need it


def test_one_kind_of_output(minicaffe, logs):
    assert "give --out or --csv" in minicaffe("plot", "a.log", "--out=x.png", "--csv=.", status=2)


def test_pictures(minicaffe, logs):
    pytest.importorskip("matplotlib")
    assert "wrote a.log.svg" in minicaffe("plot", "a.log", "b.jsonl")
    text = (logs / "a.log.svg").read_text()
    for label in ("a.log: train loss", "a.log: test accuracy", "b.jsonl: ip[0]", "learning rate"):
        assert label in re.sub("<!-- | -->", "", text), label
    assert "wrote a.log.svg" in minicaffe("plot", "a.log") and "b.jsonl" not in (logs / "a.log.svg").read_text()     # it is the command's own
    minicaffe("plot", "a.log", "--out", "x.png", "--along", "seconds", "--log")
    assert (logs / "x.png").read_bytes()[:4] == b"\x89PNG"
    for name in ("x", "folder"):    # matplotlib would write another file, x.png
        (logs / "folder").mkdir(exist_ok=True)
        assert f"{name}: has no extension" in minicaffe("plot", "a.log", "--out", name, status=2)
    assert not (logs / "folder.png").exists()
    assert "--out: x.xyz: " in minicaffe("plot", "a.log", "--out", "x.xyz", status=2)
    assert "nowhere/x.png: cannot be written" in minicaffe("plot", "a.log", "--out", "nowhere/x.png", status=1)


def test_curves_are_distinct():
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    curves = [Curve(str(i), [0, 1], [0.01, 0.01], run, test) for i, (run, test) in enumerate(((0, 0), (0, 1), (1, 0)))]
    plot_panel(axes, "loss", curves, False, 2)
    assert [line.get_color() for line in axes.lines] == ["C0", "C0", "C1"]      # of the runs
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--", "-"]
    axes.clear()
    plot_panel(axes, "gradients", [*curves, Curve("3", [0, 1], [1, 2], 1, 0)], False, 2)
    assert [line.get_color() for line in axes.lines] == ["C0", "C1", "C2", "C3"]


@pytest.mark.parametrize("cut, said, last", [
    (-1, "the training does not end in it; read up to iteration 10", 1.25),
    (-3, "the training does not end in it; read up to iteration 0", 2.4),
])
def test_logs_without_an_end(minicaffe, logs, cut, said, last):
    (logs / "a.log").write_text("".join(LINES[:cut]))
    minicaffe("plot", "a.log", "--csv", ".")
    assert minicaffe.messages == f"a.log: {said}\n"
    assert curves([read_run(logs / "a.log")], "loss", "NumIters")[0].ys[-1] == last


def test_cut_off_in_the_middle_of_a_number(minicaffe, logs):
    whole = "".join(LINES[:-2])     # ends with "loss = 1.25 (* 1 = 1.25 loss)"
    for end in ("loss = 1.2", "loss = 1.25 (* 1 "):
        (logs / "a.log").write_text(whole[:whole.rindex("loss = 1.25")] + end)
        run = read_run(logs / "a.log")
        assert run.cut == "its last line is cut off" and [row["NumIters"] for row in run.tables["train"]] == [0]
    (logs / "a.log").write_text(whole.rstrip("\n"))
    assert len(read_run(logs / "a.log").tables["train"]) == 2
    text = (logs / "b.jsonl").read_text()
    (logs / "b.jsonl").write_text(text[:-9])
    minicaffe("plot", "b.jsonl", "--csv", ".")
    assert minicaffe.messages == "b.jsonl: its last line is cut off; read up to iteration 10\n"
    (logs / "a.log").write_text("")
    assert "holds no outputs of a net" in minicaffe("plot", "a.log", status=1)


@pytest.mark.parametrize("count", [1, 7])
def test_the_look_of_a_panel(count):
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


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_panel_without_a_finite_value(logarithmic):
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    plot_panel(axes, "loss", [Curve("lost", [0, 1], [math.nan, math.inf])], logarithmic, 1)
    assert [line.get_label() for line in axes.lines] == ["lost; not finite 2 times, first at 0"]


def test_train_and_test_of_one_run_have_colours_of_their_own():
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    plot_panel(axes, "loss", [Curve("train", [0, 1], [1, 2]), Curve("test", [0, 1], [2, 3], test=True)], False, 1)
    assert [line.get_color() for line in axes.lines] == ["C0", "C1"]


def test_which_lines_of_a_log_are_read(tmp_path):
    """None before the first iteration; outputs of another iteration begin a row."""
    texts = ("lr = 0.5", "    Train net output #0: early = 1", "Iteration 0, Testing net (#0)", "    [Forward] Layer ip, top blob x data: 9",
             "    Test net output #0: accuracy = 0.5", "    [Forward] Layer ip, top blob ip data: 2", "    [Forward] Layer ip, param blob 1 data: 7",
             "    [Backward] Layer ip, param blob 0 diff: 3", "Iteration 0, loss = 2", "    Train net output #0: a = 1", "Iteration 10, loss = 1",
             "    Train net output #0: b = 4", "Optimization Done.")
    (tmp_path / "log").write_text("".join(f"I1121 03:31:00.000000 1 solver.py:1] {text}\n" for text in texts))
    run, common = read_run(tmp_path / "log"), {"Seconds": 0.0, "LearningRate": None}
    assert run.tables == {"train": [{"NumIters": 0, **common, "a": 1.0}, {"NumIters": 10, **common, "b": 4.0}],
                          "test": [{"NumIters": 0, **common, "accuracy": 0.5}]}
    assert run.samples == []


@pytest.mark.parametrize("end, cut", [
    ("Optimization Done.", None), ("Optimization stopped early.", None), ("Snapshotting.", "the training does not end in it")])
def test_the_end_of_a_training(logs, end, cut):
    (logs / "a.log").write_text("".join(LINES[:-1]) + LINES[-1].replace("Optimization Done.", end))
    assert read_run(logs / "a.log").cut == cut


def test_records_with_empty_lines_and_without_a_line_end(logs):
    text = (logs / "b.jsonl").read_text()
    (logs / "c.jsonl").write_text("\n" + text.replace("\n", "\n \n").rstrip())
    run, wanted = read_run(logs / "c.jsonl"), read_run(logs / "b.jsonl")
    assert run.cut is None and repr(run.tables) == repr(wanted.tables) and run.samples == wanted.samples and len(run.tables["train"]) == 4
