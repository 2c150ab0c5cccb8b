"""Answers of a classifier, and its wrong pictures, of random scores: each figure is counted again by plain code."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from minicaffe.addons.workflows.confusion import Confusion, Prediction
from minicaffe.addons.workflows.test_options import WrongPictures, _safe, picture_source

SEEDS = pytest.mark.parametrize("seed", range(40))


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
def test_wrong_answers(seed):
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


def test_picture_source():
    def node(kind, axes, bottoms=()):
        return SimpleNamespace(type=kind, tops=[SimpleNamespace(num_axes=count) for count in axes], bottoms=bottoms)

    wanted = node("Data", [4, 1])
    others = [node("Silence", []), node("Data", [2]), node("Parameter", [4]), node("Convolution", [4], ["x"])]
    assert picture_source(SimpleNamespace(nodes=[*others, wanted, node("Data", [4])])) is wanted
    assert picture_source(SimpleNamespace(nodes=others)) is None


@pytest.mark.parametrize("name, wanted", [
    ("cat", "cat"), ("great auk", "great-auk"), ("a_b", "a-b"), ("a/b\\c:d", "a-b-c-d"), ("../up", "-up"), (".hidden.", "hidden"), ("...", "-"), ("", "-"),
    ("/", "-"), ("a  ,;  b", "a-b"), ("é_9.5", "é-9.5"), ("x" * 50, "x" * 40), ("x" * 39 + ".y", "x" * 39)])
def test_class_names_in_file_names(name, wanted):
    assert _safe(name) == wanted
