"""The result that ``minicaffe train`` prints, and train --watch."""

import json
import math
import random
import re
from types import SimpleNamespace

import pytest
from tiny import Process, own_solver, run

from minicaffe.cli import records
from minicaffe.cli.records import Result
from minicaffe.inspection.watch import rows


@pytest.mark.parametrize("seed", range(40))
def test_lines_of_a_result(seed, monkeypatch):
    dice = random.Random(seed)
    last, stopped, images = dice.choice([30, 40]), dice.random() < 0.5, dice.choice([None, 64])
    monkeypatch.setattr(records, "images_per_iteration", lambda solver: images)
    best = None
    if dice.random() < 0.4:
        best = SimpleNamespace(exhausted=dice.random() < 0.5, reason=lambda: "no better", lines=lambda: ["best test"], patience=3)
    solver = SimpleNamespace(iter=10, smoothed_loss=0.125, best=best, param=SimpleNamespace(max_iter=40, snapshot_after_train=dice.random() < 0.5))
    result = Result()
    result.on_start(solver)
    outputs = [{"name": "loss", "value": 0.5, "loss_weight": 2.0}, {"name": "right", "value": 0.75, "loss_weight": 0.0}]
    texts = ["loss = 0.5 (* 2 = 1 loss)", "right = 0.75"]
    shown, snapshots, wanted = {}, [], []
    for iteration in range(11, last + 1):
        solver.iter = iteration
        if dice.random() < 0.1:
            result.on_display(solver, {"iteration": iteration, "outputs": outputs})
            shown["train"] = iteration
        for number in (1, 0) if dice.random() < 0.1 else ():
            result.on_test(solver, {"net": number, "iteration": iteration, "outputs": outputs, "loss": dice.choice([None, 1.0])})
            shown[number] = iteration, result.tests[number]["loss"]
        if dice.random() < 0.1:
            snapshots.append((f"m{iteration}", f"s{iteration}", iteration))
            for _ in range(2):      # written twice, as the last iteration's may be
                result.on_snapshot(solver, f"m{iteration}", f"s{iteration}")
    result.on_end(solver, stopped)
    result.seconds = 4.0
    result.log_path = dice.choice([None, "a b.log"])

    def at(iteration):
        return "" if iteration == last else f" (at iteration {iteration})"

    impatient = stopped and best is not None and best.exhausted
    wanted.append(f"{'Stopped' if stopped else 'Finished'} at iteration {last} of 40{': no better' if impatient else ''}")
    wanted.append(f"time: 4.0 s for {last - 10} iterations{f', {16 * (last - 10)} images/s' if images else ''} (with tests and snapshots)")
    if "train" in shown:
        wanted += ["smoothed loss = 0.125", *(f"train {text}{at(shown['train'])}" for text in texts)]
    for number in (0, 1) if 0 in shown else ():
        iteration, loss = shown[number]
        wanted += [*(f"test net {number} {text}{at(iteration)}" for text in texts), *([f"test net {number} total loss = 1{at(iteration)}"] if loss else [])]
    wanted += ["best test"] if best else []
    wanted += [f"wrote {path}" for model, state, _ in snapshots for path in (model, state)]
    wanted += ["wrote a b.log; draw it: minicaffe plot 'a b.log'"] if result.log_path else []
    if stopped and snapshots:
        _, state, iteration = snapshots[-1]
        wanted.append(f"resume with more patience: from {state} --patience=6" if impatient else f"resume{at(iteration)} with: from {state}")
    elif stopped and not solver.param.snapshot_after_train:
        wanted.append("wrote no snapshot: snapshot_after_train is false")
    assert list(result.lines(solver, lambda state, *more: " ".join(["from", state, *more]))) == wanted
    assert not re.search("nan|None", " ".join(wanted))


@pytest.mark.parametrize("end, rate", [(7.5, ", 32 images/s"), (5.0, "")])
def test_time_of_a_training(monkeypatch, end, rate):
    moments = iter([5.0, end])
    monkeypatch.setattr(records.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(records, "images_per_iteration", lambda solver: 4)
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


@pytest.mark.parametrize("seed", range(40))
def test_random_rows(seed):
    dice = random.Random(seed)
    layers, samples = [f"layer{i}" for i in range(dice.randint(1, 7))], []
    for layer in layers:
        for key in dice.choices(["blob", "diff", "parameter"], k=dice.randint(1, 5)):
            size = dice.choice([math.nan, math.inf]) if dice.random() < 0.1 else dice.choice([0.0, dice.uniform(0, 9)])
            one = {"layer": layer, key: f"{key} {len(samples)}", "norm": size, "zeros": dice.random(), "saturated": dice.choice([None, dice.random()]),
                   "not_finite": 0.1 if dice.random() < 0.1 else 0}
            if key == "parameter":
                one |= {"data": dice.choice([0.0, dice.random()]), "update": dice.choice([None, dice.random()])}
            samples.append(one)

    def sizes(some):
        return [one["norm"] for one in some]

    wanted = []
    for layer in layers:
        blobs, diffs, params = ([one for one in samples if one["layer"] == layer and key in one] for key in ("blob", "diff", "parameter"))

        def chosen(some):
            """The first sample, or the last one that is no number."""
            return ([one for one, size in zip(some, sizes(some)) if math.isnan(size)][-1:] or some[:1] or [None])[0]

        def together(values):
            return math.sqrt(sum(value * value for value in values)) if values else None

        top, diff = chosen(blobs), chosen(diffs)
        row = {"layer": layer, "activations": top and sizes([top])[0], "zeros": top and top.get("zeros"), "saturated": top and top.get("saturated"),
               "diff": diff and sizes([diff])[0]}
        gradient = sizes(params)
        row["gradient"] = math.inf if math.inf in gradient else together(gradient)
        row["weights"], update = (together([one[key] for one in params if one.get(key) is not None]) for key in ("data", "update"))
        row["update/weights"] = update / row["weights"] if row["weights"] and update is not None else None
        bad = [one for one, size in zip(samples, sizes(samples)) if one["layer"] == layer and (one.get("not_finite") or not math.isfinite(size))]
        row["not_finite"] = "" if not bad else bad[0].get("parameter") or bad[0].get("blob") or f"{bad[0]['diff']} diff"
        wanted.append(row)
    found = rows(samples)
    for row in found:
        row.pop("update", None)
    assert found == [{key: pytest.approx(value, nan_ok=True) if isinstance(value, float) else value for key, value in row.items()} for row in wanted]
