"""train --watch: what it says and writes, also of values that are not finite, and that a training without it does nothing of it."""

import re

import pytest
from tiny import Process, run

from minicaffe.cli.parse_log import read_run
from minicaffe.cli.plot import curves
from minicaffe.inspection.watch import rows

DIVERGING = ("--base-lr=1e25", "--display=1", "--max-iter=9")


def test_watch_in_log_and_json(minicaffe, folder):
    done = run("train", "solver.prototxt", "--watch", "--json", "w.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("watched:") == 3 and "    [Watch] Layer scale: activations " in done.stderr
    samples = read_run(folder / "w.jsonl").samples
    assert sorted({sample["NumIters"] for sample in samples}) == [0, 10, 20]
    assert [(s["layer"], s.get("blob") or s.get("parameter") or s["diff"] + " diff") for s in samples if s["NumIters"] == 0] == [
        ("in", "data"), ("in", "target"), ("scale", "scaled"), ("loss", "loss"), ("scale", "scaled diff"),
        ("scale", "scale[0]"), ("scale", "scale[1]")]
    labels = {panel: [one.label for one in curves([read_run(folder / "w.jsonl")], panel, "NumIters")] for panel in ("diffs", "gradients", "activations")}
    assert labels["diffs"] == ["scale scaled"] and "scale[0]" in labels["gradients"] and "scale scaled" in labels["activations"]
    assert "w.jsonl.train: 3 rows" in minicaffe("plot", "w.jsonl", "--csv", ".")
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
    bad = [sample for sample in read_run(folder / "w.jsonl").samples if sample["not_finite"]]
    assert bad[0]["layer"] in ("scale", "loss") and bad[0]["wrong"] > 0 and f"Layer {bad[0]['layer']}: " in done.stderr
    done = run("train", "solver.prototxt", "--base-lr=3e38", "--display=1", "--watch=1", cwd=folder)
    assert done.returncode == 1 and re.search(r"Layer scale: .*update of scale\[\d\] is not finite", done.stderr)


def test_a_sample_without_a_norm_is_no_record(minicaffe, folder):
    (folder / "odd.jsonl").write_text('{"event": "watch", "time": 1, "iteration": 0, "samples": [{"layer": "a", "blob": "x"}]}\n')
    assert "odd.jsonl:1: is no record of minicaffe train --json: 'norm'" in minicaffe("plot", "odd.jsonl", status=1)


@pytest.mark.parametrize("samples, expected", [
    ([{"layer": "a", "blob": "x", "norm": 3.0, "zeros": 0.5, "saturated": None, "not_finite": 0.0},
      {"layer": "a", "parameter": "a[0]", "norm": 3.0, "zeros": 0, "saturated": None, "not_finite": 0.0, "data": 1.0, "update": 0.03},
      {"layer": "a", "parameter": "a[1]", "norm": 4.0, "zeros": 0, "saturated": None, "not_finite": 0.0, "data": 0.0, "update": 0.04}],
     {"activations": 3.0, "zeros": 0.5, "gradient": 5.0, "weights": 1.0, "update/weights": 0.05, "not_finite": ""}),
    ([{"layer": "a", "blob": "x", "norm": 1.0, "zeros": 0, "saturated": 0.25, "not_finite": 1e-6}], {"not_finite": "x", "saturated": 0.25}),
    ([{"layer": "a", "blob": "x", "norm": 1.0, "zeros": 0, "saturated": None, "not_finite": 0},
      {"layer": "a", "diff": "x", "norm": 2.0, "zeros": 0, "saturated": None, "not_finite": 0.5}], {"diff": 2.0, "not_finite": "x diff"}),
])
def test_rows(samples, expected):
    [row] = rows(samples)
    assert {key: pytest.approx(row[key]) if isinstance(row[key], float) else row[key] for key in expected} == expected
