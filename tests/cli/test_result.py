"""The result that ``minicaffe train`` prints, and train --watch."""

import json
import math
import re
from types import SimpleNamespace

import pytest
from tiny import Process, own_solver, run

from minicaffe.cli import records
from minicaffe.cli.records import Result
from minicaffe.inspection.watch import COLUMNS, rows


@pytest.mark.parametrize("stopped, after_train, patience, snapshots, end", [
    (False, True, None, True, []), (False, True, 3, True, []), (True, True, 3, False, []),
    *((True, *how, True, ["resume (at iteration 30) with: from s30"]) for how in ((True, 0), (False, None))),
    (True, True, 3, True, ["resume with more patience: from s30 --patience=6"]),
    (True, False, None, False, ["wrote no snapshot: snapshot_after_train is false"])])
def test_lines_of_a_result(monkeypatch, stopped, after_train, patience, snapshots, end):
    monkeypatch.setattr(records, "images_per_iteration", lambda solver: 64)
    best = SimpleNamespace(exhausted=bool(patience), reason=lambda: "no better", lines=lambda: ["best test"], patience=patience)
    solver = SimpleNamespace(iter=10, smoothed_loss=0.125, best=None if patience is None else best,
                             param=SimpleNamespace(max_iter=60, snapshot_after_train=after_train))
    outputs = [{"name": "loss", "value": 0.5, "loss_weight": 2.0}, {"name": "right", "value": 0.75, "loss_weight": 0.0}]
    result = Result()
    result.on_start(solver)
    result.on_display(solver, {"iteration": 20, "outputs": outputs})
    for number, iteration, loss in (1, 40, None), (0, 20, 1.0):
        result.on_test(solver, {"net": number, "iteration": iteration, "outputs": outputs, "loss": loss})
    for solver.iter in (20, 30, 30) * snapshots:      # the last one is written twice
        result.on_snapshot(solver, f"m{solver.iter}", f"s{solver.iter}")
    solver.iter = 40
    result.on_end(solver, stopped)
    result.seconds, result.log_path = 4.0, "a b.log"
    assert list(result.lines(solver, lambda state, *more: " ".join(["from", state, *more]))) == [
        f"{'Stopped' if stopped else 'Finished'} at iteration 40 of 60{': no better' * bool(stopped and patience)}",
        "time: 4.0 s for 30 iterations, 480 images/s (with tests and snapshots)",
        "smoothed loss = 0.125", "train loss = 0.5 (* 2 = 1 loss) (at iteration 20)", "train right = 0.75 (at iteration 20)",
        *(f"test net 0 {text} (at iteration 20)" for text in ("loss = 0.5 (* 2 = 1 loss)", "right = 0.75", "total loss = 1")),
        "test net 1 loss = 0.5 (* 2 = 1 loss)", "test net 1 right = 0.75", *["best test"] * (patience is not None),
        *["wrote m20", "wrote s20", "wrote m30", "wrote s30"] * snapshots, "wrote a b.log; draw it: minicaffe plot 'a b.log'", *end]


@pytest.mark.parametrize("images, end, rate", [(4, 7.5, ", 32 images/s"), (4, 5.0, ""), (None, 7.5, "")])
def test_time_of_a_training(monkeypatch, images, end, rate):
    moments = iter([5.0, end])
    monkeypatch.setattr(records.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(records, "images_per_iteration", lambda solver: images)
    solver, result = SimpleNamespace(iter=10, best=None, param=SimpleNamespace(max_iter=30)), Result()
    result.on_start(solver)
    solver.iter = 30
    result.on_end(solver, False)
    assert list(result.lines(solver, None)) == ["Finished at iteration 30 of 30", f"time: {end - 5:.1f} s for 20 iterations{rate} (with tests and snapshots)"]


def test_speed_counts_all_batches(folder):
    solver, result = own_solver(), Result()
    solver.param.iter_size, solver.iter = 3, 25
    result.first_iter, result.seconds = 5, 2.0
    assert "20 iterations, 240 images/s" in list(result.lines(solver, None))[1]  # 8 pictures, 3 batches, 20 iterations, 2 seconds


DIVERGING = ("--base-lr=1e25", "--display=1", "--max-iter=9")


def samples_in(path):
    """Return the samples of each watched iteration in the records of --json."""
    records = map(json.loads, path.read_text().splitlines())
    return {record["iteration"]: record["samples"] for record in records if record["event"] == "watch"}


def test_watch_in_log_and_json(folder):
    done = run("train", "solver.prototxt", "--watch", "--json", "w.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("watched:") == 3 and "    [Watch] Layer scale: activations " in done.stderr
    samples = samples_in(folder / "w.jsonl")
    assert list(samples) == [0, 10, 20]
    assert [(s["layer"], s.get("blob") or s.get("parameter") or s["diff"] + " diff") for s in samples[0]] == [
        ("in", "data"), ("in", "target"), ("scale", "scaled"), ("loss", "loss"), ("scale", "scaled diff"),
        ("scale", "scale[0]"), ("scale", "scale[1]")]
    quiet = run("train", "solver.prototxt", "--watch", "7", "--quiet", cwd=folder)
    assert quiet.returncode == 0 and "[Watch]" not in quiet.stderr
    assert "[Watch]" not in run("train", "solver.prototxt", cwd=folder).stderr


@pytest.mark.slow(1)
def test_watch_in_display_and_errors(folder):
    process = Process("train", "solver.prototxt", "--watch=5", cwd=folder, size=(30, 80))
    status, _ = process.finish()
    assert status == 0
    assert process.text.count("layers at iteration ") == 6 and "update/weights" in process.text
    done = run("train", "solver.prototxt", *DIVERGING, cwd=folder)
    assert done.returncode == 1 and "; to see where it began, add --watch 1; " in done.stderr.splitlines()[-1]
    done = run("train", "solver.prototxt", *DIVERGING, "--watch", "1", "--json", "w.jsonl", cwd=folder)
    assert done.returncode == 1 and "add --watch" not in done.stderr and " is not finite" in done.stderr
    bad = [sample for some in samples_in(folder / "w.jsonl").values() for sample in some if sample["not_finite"]]
    assert bad[0]["layer"] in ("scale", "loss") and bad[0]["wrong"] > 0 and f"Layer {bad[0]['layer']}: " in done.stderr
    done = run("train", "solver.prototxt", "--base-lr=3e38", "--display=1", "--watch=1", cwd=folder)
    assert done.returncode == 1 and re.search(r"Layer scale: .*update of scale\[\d\] is not finite", done.stderr)


def test_rows_of_samples():
    """The first blob and diff of a layer, unless a later one is NaN, and all of its parameters together."""
    def sample(layer, norm, **more):
        return {"layer": layer, "norm": norm, "zeros": norm / 8, "saturated": None, "not_finite": 0, **more}

    empty = dict.fromkeys(["layer", *COLUMNS]) | {"not_finite": ""}
    found = rows([
        sample("a", 1.0, blob="x"), sample("a", math.nan, blob="y"), sample("a", 2.0, diff="x"), sample("a", 5.0, diff="y"),
        sample("a", 3.0, parameter="a[0]", data=6.0, update=0.3), sample("a", 4.0, parameter="a[1]", data=8.0, update=0.4),
        sample("b", 0.5, blob="z", saturated=0.25), sample("b", 7.0, blob="w"), sample("b", math.inf, parameter="b[0]", data=0.0),
        sample("c", 0.0, diff="v", not_finite=0.1), sample("c", math.inf, diff="u"),
        sample("c", 1.0, parameter="c[0]", data=0.0, update=0.5, update_wrong=1),
        sample("d", 1.0, parameter="d[0]", data=2.0, update=math.inf, update_wrong=1), sample("d", 2.0, diff="t"), sample("d", math.nan, diff="s"),
        sample("e", 1.0, parameter="e[0]", data=2.0)])
    assert [{name: row[name] for name in empty} for row in found] == [pytest.approx(empty | row, nan_ok=True) for row in (
        {"layer": "a", "activations": math.nan, "zeros": math.nan, "diff": 2.0, "gradient": 5.0, "weights": 10.0,
         "update/weights": 0.05, "not_finite": "y"},
        {"layer": "b", "activations": 0.5, "zeros": 1 / 16, "saturated": 0.25, "gradient": math.inf, "weights": 0.0,
         "not_finite": "b[0]"},
        {"layer": "c", "diff": 0.0, "gradient": 1.0, "weights": 0.0, "not_finite": "v diff"},
        {"layer": "d", "diff": math.nan, "gradient": 1.0, "weights": 2.0, "update/weights": math.inf, "not_finite": "update of d[0]"},
        {"layer": "e", "gradient": 1.0, "weights": 2.0})]
