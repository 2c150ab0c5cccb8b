"""train --watch: what it says and writes, also of values that are not finite, and that a training without it does nothing of it."""

import json
import math
import random
import re

import pytest
from tiny import Process, run

from minicaffe.inspection.watch import rows

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


def test_watch_in_the_display(folder):
    process = Process("train", "solver.prototxt", "--watch=5", cwd=folder, size=(30, 80))
    status, _ = process.finish()
    assert status == 0
    assert process.text.count("layers at iteration ") == 6 and "update/weights" in process.text


def test_where_a_nan_began(folder):
    """Also that of an update, where gradients and losses are finite and the training ends before the next iteration."""
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
