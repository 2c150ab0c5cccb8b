"""Logs and JSON lines of trainings are read as tables: random ones, those of minicaffe itself, times without a year, and damaged files."""

import csv
import json
import math
import re

import numpy as np
import pytest
from tiny import LINES, run

from minicaffe.addons.plotting.parse_log import read_run, times_of
from minicaffe.addons.plotting.plot import Curve, curves

INF, NAN = math.inf, math.nan
ROWS = [    # second, table, iteration, rate, outputs
    (3.5, "test", 0, 0.01, {"my_Accuracy": 0.25, "top-5": 1e-7, "loss": 2.5}), (4.25, "test", 0, 0.01, {"my_Accuracy": 0.5, "top-5": 2, "loss": NAN}),
    (7, "train", 10, 0.01, {"aux/loss": -3.0, "loss": INF}), (9.000001, "test", 20, 0.01, {"my_Accuracy": 0.5, "top-5": 1, "loss": 1}),
    (12, "train", 30, 1e-5, {"aux/loss": 1.5e12, "loss": NAN}), (13, "test", 30, 1e-5, {"my_Accuracy": 0.75, "top-5": 0.1234567, "loss": 0})]


@pytest.mark.parametrize("begin, first, ends", [(2, "Solving made up", True), (1, "Creating the net", False)])
def test_rows_of_logs_and_records(begin, first, ends, tmp_path):
    """A row has the rate of its iteration, else the last one before, else the first one after; there may be several test nets."""
    texts, records = [(1, "Creating the net"), (2, first)], []
    for moment, table, iteration, rate, outputs in ROWS:
        texts.append((moment, f"Iteration {iteration}" + (" (0 iter/s, 0s/10 iters), loss = 1" if table == "train" else ", Testing net (#0)")))
        texts += [(moment + i, f"    {table.capitalize()} net output #{i}: {name} = {value!r}" + f" (* 1 = {value:g} loss)" * ("loss" in name))
                  for i, (name, value) in enumerate(outputs.items())]
        texts += [(moment + 2, f"Iteration {iteration}, lr = {rate!r}")] * (table == "train")
        found = [{"name": name, "value": value if math.isfinite(value) else None} for name, value in outputs.items()]
        records.append({"event": table, "time": moment, "iteration": iteration, "outputs": found} | ({"lr": rate} if table == "train" else {}))
    (tmp_path / "log").write_text("".join(f"I1121 03:31:{second:09.6f} 1 solver.py:1] {text}\n" for second, text in [*texts, *[(59, "Optimization Done.")] * ends]))
    (tmp_path / "records").write_text("".join(json.dumps(record) + "\n" for record in records))

    def tables(begin, read):
        return {kind: [{"NumIters": iteration, "Seconds": pytest.approx(moment - begin, abs=1e-7), "LearningRate": rate,
                        **{name: pytest.approx(read(value), nan_ok=True) for name, value in outputs.items()}}
                       for moment, table, iteration, rate, outputs in ROWS if table == kind] for kind in ("train", "test")}

    run, again = read_run(tmp_path / "log"), read_run(tmp_path / "records")
    assert run.tables == tables(begin, float) and run.cut == (None if ends else "the training does not end in it")
    assert again.tables == tables(3.5, lambda value: value if math.isfinite(value) else NAN) and again.cut is None
    for panel, wanted in {"loss": ["train aux/loss", "train loss", "test loss"], "accuracy": ["test my_Accuracy"], "outputs": ["test top-5"],
                          "rate": ["learning rate"]}.items():
        assert [curve.label for curve in curves([run], panel, "NumIters")] == wanted
    assert curves([run], "outputs", "NumIters") == [Curve("test top-5", [0, 0, 20, 30], [1e-7, 2, 1, 0.123457], 0, True)]
    assert curves([run], "rate", "NumIters") == [Curve("learning rate", [10, 30], [0.01, 1e-5])]


def test_csv(minicaffe, logs):
    """The tables of Caffe's parse_log.py."""
    (logs / "a.log").write_text("".join(LINES).replace("loss = 1.25", "loss = nan"))
    out = minicaffe("plot", "a.log", "--csv", ".")
    assert "a.log.train: 2 rows" in out and "a.log.test: 1 rows" in out
    assert list(csv.DictReader(open("a.log.train"))) == [{"NumIters": "0", "Seconds": "5.0", "LearningRate": "0.01", "loss": "2.4"},
                                                         {"NumIters": "10", "Seconds": "8.0", "LearningRate": "0.001", "loss": "nan"}]
    assert list(csv.DictReader(open("a.log.test"))) == [{"NumIters": "0", "Seconds": "2.0", "LearningRate": "0.01", "accuracy": "0.1", "loss": "2.5"}]
    assert "exists already" in minicaffe("plot", "a.log", "--csv", ".", status=1)
    minicaffe("plot", "a.log", "--csv", ".", "--force")
    (logs / "net.prototxt").write_text("name: 'net'")
    assert "net.prototxt: is a prototxt, where the log of a training is expected" in minicaffe("plot", "net.prototxt", "--csv", ".", status=1)
    for text in LINES[0], "":
        (logs / "a.log").write_text(text)
        assert "a.log: holds no outputs of a net" in minicaffe("plot", "a.log", "--csv", ".", status=1)
    assert "minicaffe plot LOG --csv FOLDER does the same" in minicaffe("parse_log", "a.log", ".", status=2)


@pytest.mark.slow(1)
def test_own_log_and_records(minicaffe, folder):
    log = run("train", "solver.prototxt", "--json", "own.jsonl", "--lr-policy=exp", "--gamma=0.9", cwd=folder).stderr
    log += run("train", "solver.prototxt", "--json", "own.jsonl", "--snapshot=tiny_iter_30.solverstate", "--max-iter=50",
               "--lr-policy=exp", "--gamma=0.9", cwd=folder).stderr
    (folder / "own.log").write_text(log)
    from_log, from_json = read_run("own.log").tables, read_run("own.jsonl").tables
    assert [len(from_json[table]) for table in ("train", "test")] == [5, 7]
    for table in ("train", "test"):
        for text, record in zip(from_log[table], from_json[table], strict=True):
            assert list(text) == list(record)
            for name in text:
                tolerance = {"abs": 1} if name == "Seconds" else {"rel": 1e-4, "abs": 1e-30}
                assert record[name] == pytest.approx(text[name], **tolerance), (table, name)
    assert "own.jsonl.train: 5 rows" in minicaffe("plot", "own.jsonl", "--csv", ".")
    text = (folder / "own.jsonl").read_text()
    lines = text.splitlines(keepends=True)
    (folder / "own.jsonl").write_text(text[:-20])  # killed while it wrote
    assert len(read_run("own.jsonl").tables["test"]) == 6
    (folder / "own.jsonl").write_text(lines[0] + "{}\n" + lines[1])
    assert "own.jsonl:2: is no record of minicaffe train --json" in minicaffe("plot", "own.jsonl", "--csv", ".", status=1)
    (folder / "own.jsonl").write_text(re.sub('"time": [^,]*, ', "", lines[1]).replace(re.search('"value": ([^,]*)', lines[1])[1], "null"))
    row, = read_run("own.jsonl").tables["train"]
    assert row["Seconds"] is None and np.isnan(row["loss"])


LINE = "I{0}.000000 1 solver.cpp:1] {1}\n"


ITERATION = LINE.format("{0}", "Iteration {1}, loss = 2") + LINE.format("{0}", "    Train net output #0: loss = 2 (* 1 = 2 loss)")


@pytest.mark.parametrize("begin, moments, seconds", [
    ("1231 23:59:58", ["1231 23:59:59", "0101 00:00:02"], [1, 4]),
    ("0101 00:00:01", ["0101 00:00:02", "0101 00:00:05"], [1, 4]),      # the net was built in the old year
    ("0228 23:59:58", ["0229 00:00:02", "0301 00:00:00"], [4, 86402]),  # the file's year may have no such day
    ("1231 23:59:58", ["1231 23:59:59", "0229 23:59:58"], [1, 60 * 86400]),
], ids=["iterations", "solving", "leap day", "leap day of the next year"])
def test_times_without_a_year(tmp_path, begin, moments, seconds):
    """Seconds continue when December ends, and on 29 February, whatever the year of the file is."""
    log = tmp_path / "log"
    log.write_text(LINE.format("1231 23:59:57", "Creating the net") * begin.startswith(("1231", "0101")) + LINE.format(begin, "Solving net")
                   + "".join(ITERATION.format(moment, i) for i, moment in enumerate(moments)) + LINE.format(moments[-1], "Optimization Done."))
    assert [row["Seconds"] for row in read_run(log).tables["train"]] == seconds
    for year in range(2020, 2028):
        times = [moment for moment in times_of(log.read_text().splitlines(), year) if moment]
        assert len(times) == len(log.read_text().splitlines()) and times == sorted(times)


@pytest.mark.parametrize("lines, said, last", [
    (LINES[:-1], "the training does not end in it; read up to iteration 10", 1.25), (LINES[:-3], "the training does not end in it; read up to iteration 0", 2.4),
    ([*LINES[:-1], LINES[-1].replace("Optimization Done.", "Snapshotting.")], "the training does not end in it; read up to iteration 10", 1.25),
    ([*LINES[:-1], LINES[-1].replace("Optimization Done.", "Optimization stopped early.")], None, 1.25), (LINES, None, 1.25)])
def test_end_of_a_log(minicaffe, logs, lines, said, last):
    (logs / "a.log").write_text("".join(lines))
    minicaffe("plot", "a.log", "--csv", ".")
    assert minicaffe.messages == (f"a.log: {said}\n" if said else "")
    assert curves([read_run(logs / "a.log")], "loss", "NumIters")[0].ys[-1] == last


def test_cut_off_and_empty_lines(minicaffe, logs):
    whole = "".join(LINES[:-2])     # ends with "loss = 1.25 (* 1 = 1.25 loss)"
    for end in ("loss = 1.2", "loss = 1.25 (* 1 "):
        (logs / "a.log").write_text(whole[:whole.rindex("loss = 1.25")] + end)
        run = read_run(logs / "a.log")
        assert run.cut == "its last line is cut off" and [row["NumIters"] for row in run.tables["train"]] == [0]
    (logs / "a.log").write_text(whole.rstrip("\n"))
    assert len(read_run(logs / "a.log").tables["train"]) == 2
    text = (logs / "b.jsonl").read_text()
    (logs / "c.jsonl").write_text("\n" + text.replace("\n", "\n \n").rstrip())
    run, wanted = read_run(logs / "c.jsonl"), read_run(logs / "b.jsonl")
    assert run.cut is None and repr(run.tables) == repr(wanted.tables) and run.samples == wanted.samples and len(run.tables["train"]) == 4
    (logs / "b.jsonl").write_text(text[:-9])
    minicaffe("plot", "b.jsonl", "--csv", ".")
    assert minicaffe.messages == "b.jsonl: its last line is cut off; read up to iteration 10\n"


def test_lines_that_are_read(tmp_path):
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
