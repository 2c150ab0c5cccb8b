"""Figures that commands print, of random numbers: each is counted again by plain code that shares none with minicaffe.cli."""

import io
import json
import math
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from minicaffe.addons.workflows.confusion import Confusion, Prediction
from minicaffe.addons.workflows.wrong_pictures import WrongPictures
from minicaffe.cli import bars, records, time
from minicaffe.cli.parse_log import read_run
from minicaffe.cli.plot import Curve, curves, rounded
from minicaffe.inspection import watch
from minicaffe.inspection.timing import StepTime, Times

SEEDS = pytest.mark.parametrize("seed", range(40))


# ---- logs of trainings


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


@SEEDS
def test_logs_and_records(seed, tmp_path):
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


# ---- tests of a classifier


def prediction(dice, axis_of_loss=1):
    """A made-up Prediction, and the shape of its scores."""
    kind = dice.choice(["SoftmaxWithLoss", "Accuracy", "HingeLoss", "InfogainLoss"])
    classes, batch = dice.randint(2, 14), dice.randint(1, 9)
    places = [] if kind == "HingeLoss" else [dice.randint(1, 3) for _ in range(dice.choice([0, 0, 1, 2]))]
    shape = [batch, *places]
    axis = dice.randint(1, len(shape)) if kind != "HingeLoss" else 1
    shape.insert(axis, classes)
    labels = SimpleNamespace(count=batch * math.prod(places), shape=(batch, *places))
    ignored = dice.choice([None, None, 0, 255])
    return Prediction(SimpleNamespace(type=kind, name="judge"), SimpleNamespace(shape=tuple(shape)), labels, axis,
                      kind in ("SoftmaxWithLoss", "InfogainLoss"), ignored), classes


def answer_of(scores, truth):
    """The answer for a list of scores: the class that scores highest; the true one only if it scores more than each other."""
    best = None
    for i, score in enumerate(scores):
        if i != truth and not math.isnan(score) and (best is None or score > scores[best]):
            best = i
    if best is None:        # no other class has a score
        return (truth if scores[truth] == scores[truth] else int(not truth)), False
    return (truth, False) if scores[truth] > scores[best] else (best, scores[truth] == scores[best])


@SEEDS
def test_answers_of_a_classifier(seed, monkeypatch):
    dice = random.Random(seed)
    monkeypatch.setenv("COLUMNS", "80")
    random_numbers = np.random.default_rng(seed)
    judge, classes = prediction(dice)
    names = [f"class of {'long ' * (i % 3)}name {i}" for i in range(classes)] if dice.random() < 0.5 else None
    found = Confusion(judge, names)
    counts, ties, ignored = [[0] * classes for _ in range(classes)], 0, 0
    for _ in range(dice.randint(1, 3)):
        scores = random_numbers.integers(-2, 3, judge.scores.shape).astype(np.float32)
        scores[random_numbers.random(scores.shape) < dice.choice([0.05, 0.7])] = np.nan
        labels = random_numbers.integers(0, classes, judge.labels.shape).astype(np.float32)
        if judge.ignored is not None:
            labels[random_numbers.random(labels.shape) < 0.3] = judge.ignored
        truths, answers, given, counted = found.add(scores, labels)
        rows = np.moveaxis(scores, judge.axis, -1).reshape(-1, classes).tolist()
        for i, (row, truth) in enumerate(zip(rows, labels.ravel().tolist(), strict=True)):
            assert counted[i] == (truth != judge.ignored)
            if not counted[i]:
                ignored += 1
                continue
            answer, tie = answer_of(row, int(truth))
            ties += tie
            counts[int(truth)][answer] += 1
            share = math.exp(row[answer]) / sum(map(math.exp, row)) if judge.softmax else row[answer]
            assert (truths[i], answers[i]) == (truth, answer) and given[i] == pytest.approx(share, nan_ok=True)
    assert found.counts.tolist() == counts and (found.ties, found.ignored) == (ties, ignored)
    total, right = sum(map(sum, counts)), sum(counts[i][i] for i in range(classes))
    recall = [row[i] / sum(row) if sum(row) else None for i, row in enumerate(counts)]
    columns = [sum(row[i] for row in counts) for i in range(classes)]
    precision = [counts[i][i] / columns[i] if columns[i] else None for i in range(classes)]
    known = [one for one in recall if one is not None]
    text = f"{right} of {total} {'records' if math.prod(judge.labels.shape[1:]) == 1 else 'labels'} right: accuracy {right / total if total else math.nan:.4f}"
    text += f"; mean recall of {len(known)} classes {sum(known) / len(known):.4f}" if known else ""
    assert found.summary() == text + f"; {ties} ties count as wrong" * bool(ties) + f"; {ignored} labels {judge.ignored} are ignored" * bool(ignored)
    shorts = [name if len(name) <= 18 else name[:15] + "..." for name in names or [f"class {i}" for i in range(classes)]]
    digits = len(str(classes - 1))
    titles = [f"{i:{digits}d}" + (f" {shorts[i]}" if names else "") for i in range(classes)]
    lines = list(found.class_lines())
    for line, title, *figures, row in zip(lines[1:], titles, precision, recall, counts, strict=True):
        cells = line[max(5, *map(len, titles)):].split()
        assert line.startswith(title) and cells == [*("-" if one is None else f"{one:.4f}" for one in figures), str(sum(row))]
    pairs = sorted([(-counts[i][j], i, j) for i in range(classes) for j in range(classes) if i != j and counts[i][j]])
    assert found.pairs() == [(i, j, -count) for count, i, j in pairs]
    head = f"most confused pairs{f', {len(pairs) - 10} more are left out' if len(pairs) > 10 else ''}:"
    wanted = [head, *(f"{-count:>7}  {shorts[i]} taken for {shorts[j]} ({-count / sum(counts[i]):.1%} of the class)" for count, i, j in pairs[:10])]
    assert list(found.pair_lines()) == (wanted if pairs else ["no classes were confused"])
    lines = list(found.matrix_lines())
    cell = max(len(str(max(map(max, counts)))), digits) + 1
    if max(map(len, titles)) + classes * cell > 80:
        assert len(lines) == 1 and f"{classes} x {classes} classes does not fit 80 columns" in lines[0]
    else:
        assert [line[max(map(len, titles)):].split() for line in lines[1:]] == [
            list(map(str, range(classes))), *([str(n or ".") for n in row] for row in counts)]
        assert {len(line) for line in lines[1:]} == {max(map(len, titles)) + classes * cell}
    assert found.json() | {"accuracy": 0} == {
        "layer": "judge", "counted": total, "ignored": ignored, "ties": ties, "accuracy": 0, "names": names or [f"class {i}" for i in range(classes)],
        "precision": [pytest.approx(math.nan if one is None else one, nan_ok=True) for one in precision],
        "recall": [pytest.approx(math.nan if one is None else one, nan_ok=True) for one in recall], "count": [sum(row) for row in counts],
        "confusion": counts, "pairs": [{"truth": i, "answer": j, "count": -count} for count, i, j in pairs]}


@SEEDS
def test_the_wrong_answers_that_are_kept(seed):
    """Those with the highest scores, each with its own picture, however the arrays of batches are used again."""
    dice = random.Random(seed)
    kept = object.__new__(WrongPictures)
    kept.confusion, kept.limit, kept.found, kept.kept = SimpleNamespace(name=lambda i: ["a/b", "c d", ".e_f"][i]), dice.randint(1, 9), 0, []
    batch = dice.randint(1, 6)
    pictures, every, first = np.zeros((batch, 1, 2, 2), np.float32), [], 0
    for _ in range(dice.randint(1, 6)):
        pictures[...] = np.arange(first, first + batch).reshape(-1, 1, 1, 1)
        size = dice.randint(1, batch)       # records that count
        truth, answer = (np.array([dice.randrange(3) for _ in range(size)]) for _ in range(2))
        scores = np.array([dice.choice([0.25, 0.5, 1.0, dice.random(), math.nan]) for _ in range(size)])
        counted = np.array([dice.random() < 0.8 for _ in range(size)])
        kept.add(first, truth, answer, scores, counted, pictures)
        every += [(-math.inf if math.isnan(scores[i]) else scores[i], first + i, truth[i], answer[i]) for i in range(size)
                  if counted[i] and truth[i] != answer[i]]
        first += batch
    wanted = sorted(every, key=lambda one: (-one[0], one[1]))[: kept.limit]
    assert kept.found == len(every) and [one[:4] for one in kept.kept] == wanted
    assert all((picture == number).all() and picture.shape == (1, 2, 2) for _, number, _, _, picture in kept.kept)
    safe, names = ["a-b", "c-d", "e-f"], ["a/b", "c d", ".e_f"]
    assert kept.rows() == [(f"{safe[truth]}_{safe[answer]}_{score:.4f}_{number}.png", names[truth], names[answer], score, number)
                           for score, number, truth, answer in wanted]
    s = "" if len(every) == 1 else "s"
    assert kept.line("d") == (f"wrote d: {len(every)} wrong picture{s} and wrong.csv, the highest scores first" if len(wanted) == len(every) else
                              f"wrote d: {len(wanted)} of {len(every)} wrong pictures and wrong.csv, those with the highest scores; "
                              "--wrong-limit sets how many")


# ---- layers that are measured


@SEEDS
def test_rows_of_measured_layers(seed):
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
    found = watch.rows(samples)
    for row in found:
        row.pop("update", None)
    assert found == [{key: pytest.approx(value, nan_ok=True) if isinstance(value, float) else value for key, value in row.items()} for row in wanted]


# ---- minicaffe time


@SEEDS
def test_the_table_of_times(seed, monkeypatch):
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


# ---- the result of a training


@SEEDS
def test_lines_of_a_result(seed, monkeypatch):
    dice = random.Random(seed)
    last, stopped, images = dice.choice([30, 40]), dice.random() < 0.5, dice.choice([None, 64])
    monkeypatch.setattr(records, "images_per_iteration", lambda solver: images)
    best = None
    if dice.random() < 0.4:
        best = SimpleNamespace(exhausted=dice.random() < 0.5, reason=lambda: "no better", lines=lambda: ["best test"], patience=3)
    solver = SimpleNamespace(iter=10, smoothed_loss=0.125, best=best, param=SimpleNamespace(max_iter=40, snapshot_after_train=dice.random() < 0.5))
    result = records.Result()
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
