"""Logs and JSON lines of trainings are read as tables: random ones, those of minicaffe itself, times without a year, and damaged files."""

import csv
import json
import math
import random
import re

import numpy as np
import pytest
from tiny import LINES, run

from minicaffe.addons.plotting.parse_log import read_run, times_of
from minicaffe.addons.plotting.plot import Curve, curves, rounded


class Training:
    """A made-up training: `log` and `lines` (of --json) say the same; `rows` are what they hold."""

    def __init__(self, seed):
        dice = self.dice = random.Random(seed)
        self.log, self.lines, self.rows = [], [], []
        self.clock, self.begin, self.solving = dice.randint(0, 60_000_000), None, dice.random() < 0.8
        names = ["loss", dice.choice(["accuracy", "top-5", "my_Accuracy"]), "aux/loss"]
        if dice.random() < 0.5:
            self.say("Creating the net")
        if self.solving:
            self.say("Solving made up")
            self.begin = self.clock
        tests, self.test_names, self.train_names = dice.randint(0, 2), dice.sample(names, dice.randint(1, 3)), dice.sample(names, dice.randint(1, 2))
        for iteration in range(0, 10 * dice.randint(0, 6), 10):
            rate = dice.choice([0.01, 1e-5, 0.5 ** (1 + iteration)])
            for number in range(tests if dice.random() < 0.7 else 0):
                self.test(number, iteration)
            if dice.random() < 0.7:
                self.display(iteration, rate)
        self.ends = dice.random() < 0.6
        if self.ends:
            self.say("Optimization Done.")

    def say(self, text):
        self.clock += self.dice.choice([0, self.dice.randint(1, 9_000_000)])
        if self.begin is None and not self.solving:
            self.begin = self.clock
        seconds, micros = divmod(self.clock, 10**6)
        self.log.append(f"I1121 {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d} 1 solver.py:1] {text}\n")

    def outputs(self, table, iteration, rate, names):
        found = {}
        for i, name in enumerate(names):
            found[name] = value = self.dice.choice([0.25, -3.0, 1e-7, 1.5e12, float("nan"), float("inf"), self.dice.uniform(0, 9)])
            weighted = f" (* 1 = {value:g} loss)" if self.dice.random() < 0.5 else ""
            self.say(f"    {table.capitalize()} net output #{i}: {name} = {value!r}{weighted}")
            if not i:
                begun = self.clock
        self.rows.append((table, iteration, rate, begun, found))
        record = {"event": table, "time": begun / 1e6, "iteration": iteration, "outputs": [
            {"name": name, "value": value if math.isfinite(value) else None} for name, value in found.items()]}
        self.lines.append(json.dumps(record | ({"lr": rate} if table == "train" else {})) + "\n")

    def test(self, number, iteration):
        self.say(f"Iteration {iteration}, Testing net (#{number})")
        self.outputs("test", iteration, None, self.test_names)

    def display(self, iteration, rate):
        self.say(f"Iteration {iteration} (0 iter/s, 0s/10 iters), loss = 1")
        self.outputs("train", iteration, rate, self.train_names)
        self.say(f"Iteration {iteration}, lr = {rate!r}")

    def table(self, name, begin, finite=False):
        """The rows that a table must have; a row has the rate of its iteration, else the last one before, else the first one after."""
        displays, found = [(i, row) for i, row in enumerate(self.rows) if row[0] == "train"], []
        for i, (table, iteration, _, moment, outputs) in enumerate(self.rows):
            same = [row[2] for _, row in displays if row[1] == iteration]
            before, after = [row[2] for at, row in displays if at < i], [row[2] for at, row in displays if at > i]
            rate = same[0] if same else before[-1] if before else after[0] if after else None
            if table == name:
                values = {key: value if math.isfinite(value) or not finite else float("nan") for key, value in outputs.items()}
                found.append({"NumIters": iteration, "Seconds": pytest.approx((moment - begin) / 1e6, abs=1e-5), "LearningRate": rate,
                              **{key: pytest.approx(value, rel=6e-6, nan_ok=True) for key, value in values.items()}})
        return found


@pytest.mark.parametrize("seed", range(40))
def test_random_logs(seed, tmp_path):
    made = Training(seed)
    (tmp_path / "log").write_text("".join(made.log))
    run = read_run(tmp_path / "log")
    assert run.tables == {table: made.table(table, made.begin) for table in ("train", "test")}
    assert run.cut == (None if made.ends else "the training does not end in it")
    (tmp_path / "records").write_text("".join(made.lines))
    again = read_run(tmp_path / "records")
    if made.rows:
        assert again.tables == {table: made.table(table, made.rows[0][3], True) for table in ("train", "test")} and again.cut is None
    for panel in ("loss", "accuracy", "rate", "outputs"):
        wanted = []
        for table, names in (("train", made.train_names), ("test", made.test_names)):
            rows = made.table(table, made.begin)
            kinds = {name: "loss" if "loss" in name else "accuracy" if "accuracy" in name.lower() else "outputs" for name in names}
            if panel == "rate":
                names, kinds = (["LearningRate"], {"LearningRate": "rate"}) if table == "train" else ([], {})
            for name in names if rows else ():
                if kinds[name] == panel:
                    label = "learning rate" if panel == "rate" else f"{table} {name}"
                    ys = [rounded(row[name]) if panel == "rate" else row[name] for row in rows]
                    wanted.append(Curve(label, [row["NumIters"] for row in rows], ys, 0, table == "test"))
        assert curves([run], panel, "NumIters") == wanted


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


def test_cut_off_number(minicaffe, logs):
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


def test_records_with_empty_lines(logs):
    text = (logs / "b.jsonl").read_text()
    (logs / "c.jsonl").write_text("\n" + text.replace("\n", "\n \n").rstrip())
    run, wanted = read_run(logs / "c.jsonl"), read_run(logs / "b.jsonl")
    assert run.cut is None and repr(run.tables) == repr(wanted.tables) and run.samples == wanted.samples and len(run.tables["train"]) == 4
