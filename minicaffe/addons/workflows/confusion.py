"""Answers of a classifier: the confusion matrix of a test, precision and recall by class, the most confused pairs.

A tie counts as wrong, as in Accuracy: the answer is then a class that scores as high as the true one.
"""

import shutil
from collections import namedtuple

import numpy as np

from minicaffe.addons.workflows.best_test import LABEL_LOSS, compares_labels, count_labels, mean_f1
from minicaffe.errors import ConfigError, close_matches
from minicaffe.net.deploy import CLASS_LOSSES, ignored

PAIRS_SHOWN = 10
NAME_WIDTH = 18                 # characters of a class's name in a table
TYPES = {**CLASS_LOSSES, "Accuracy": "accuracy_param", LABEL_LOSS: ""}     # the last: several labels for each record, on axis 1


def compares(net, node):
    """Return whether a node compares scores with the class of a record, or with its labels."""
    return compares_labels(net, node) if node.type == LABEL_LOSS else node.type in TYPES


class Prediction(namedtuple("Prediction", "node scores labels axis softmax ignored")):
    """The layer of a net that compares scores of classes with labels: its Node, both Blobs, the axis of the classes, whether the
    layer applies a softmax to the scores, and the label that it ignores (None).
    """

    @classmethod
    def of(cls, net, name=None):
        """Return the Prediction of layer `name`; by default of the last loss, as `minicaffe.net.deploy` has it, else of Accuracy.

        Raises ConfigError if there is no such layer, or it has scores of fewer than two classes.
        """
        found = {node.name: node for node in net.nodes if compares(net, node)}
        if name is not None and name not in found:
            raise ConfigError(f"no layer '{name}' compares scores of classes with a label{close_matches(name, found)}; such layers "
                              f"here are {', '.join(found) or 'none'}", field="--prediction", file=net.file)
        if name is None and not found:
            detects = any(node.type == "DetectionEvaluate" for node in net.nodes)
            raise ConfigError("no layer compares scores of classes with a label, so there are no right and wrong answers to count; "
                              + ("the net detects, and the test without these options prints its average precisions" if detects
                                 else f"add one of {', '.join(TYPES)} in phase TEST, the last for targets from a data layer"),
                              file=net.file)
        ranked = sorted(found.values(), key=lambda node: (node.type != LABEL_LOSS, node.type in CLASS_LOSSES))
        node = found[name] if name is not None else ranked[-1]
        scores, labels = node.bottoms[:2]
        where = {"file": net.file, "layer": node.name, "layer_type": node.type}
        if scores.num_axes < 2:
            raise ConfigError(f"needs scores of classes for each record, shape (N, classes), got {list(scores.shape)}", **where)
        field = TYPES[node.type]
        axis = getattr(node.param, field).axis % scores.num_axes if field else 1
        left_out = ignored(node.param.accuracy_param if node.type == "Accuracy" else node.param.loss_param)
        made = cls(node, scores, labels, axis, node.type in ("SoftmaxWithLoss", "InfogainLoss"), left_out)
        if made.classes < 2 and node.type != LABEL_LOSS:
            raise ConfigError(f"compares scores of {made.classes} class, and a right answer needs two", **where)
        return made

    @property
    def classes(self):
        """int: how many classes there are."""
        shape = self.scores.shape
        return int(np.prod(shape[1:])) if TYPES[self.node.type] is None else shape[self.axis]

    @property
    def positions(self):
        """int: how many labels a record has; more than 1 where the net labels pixels."""
        return self.labels.count // self.labels.shape[0] if self.labels.count else 1

    def text(self, net):
        """Return a line that says which layer it is, and which others there are."""
        others = [node.name for node in net.nodes
                  if compares(net, node) and node.bottoms[0].data_memory is not self.scores.data_memory]
        more = f"; --prediction takes another of {', '.join(others)}" if others else ""
        return f"answers: the scores that layer '{self.node.name}' ({self.node.type}) compares with the labels{more}"


class Confusion:
    """Counts of answers by true class; `names` are those of the classes, or None.

    Attributes
    ----------
    several : bool
        Whether a record has several labels, each of which is true or not.
    counts : array, shape (classes, classes), int64
        Element (i, j): records of class i that were answered with class j. If `several`, shape (labels, 3), of `count_labels`.
    ignored, ties : int
        Labels that the layer ignores and that are not counted; wrong answers whose score the true class has, too.
    """

    def __init__(self, prediction, names=None):
        self.prediction, self.names = prediction, names
        self.several = prediction.node.type == LABEL_LOSS
        self.counts = np.zeros((prediction.classes, 3 if self.several else prediction.classes), np.int64)
        self.ignored = self.ties = 0

    def add(self, scores, labels):
        """Count a batch, the arrays of the Prediction's blobs; return truth, answer and score of each label, and which count."""
        if self.several:
            self.counts += count_labels(scores, labels, self.prediction.ignored)
            return None
        size = self.prediction.classes
        if TYPES[self.prediction.node.type] is None:
            scores = scores.reshape(len(scores), -1)
        rows = np.moveaxis(scores, self.prediction.axis, -1).reshape(-1, size).astype(np.float64)
        truth = labels.reshape(-1)
        counted = truth != self.prediction.ignored if self.prediction.ignored is not None else np.ones(len(truth), bool)
        truth = np.where(counted, truth, 0).astype(np.int64)
        each = np.arange(len(rows))
        true_scores = rows[each, truth]
        others = np.where(np.isnan(rows), -np.inf, rows)
        others[each, truth] = -np.inf
        best = others.argmax(axis=1)
        best = np.where(best == truth, (truth + 1) % size, best)    # all others are -inf
        answer = np.where(true_scores > others[each, best], truth, best)
        self.ties += int((counted & (true_scores == others[each, best])).sum())
        self.ignored += int((~counted).sum())
        np.add.at(self.counts, (truth[counted], answer[counted]), 1)
        if self.prediction.softmax:
            with np.errstate(invalid="ignore"):
                rows = np.exp(rows - rows.max(axis=1, keepdims=True))
                rows /= rows.sum(axis=1, keepdims=True)
        return truth, answer, rows[each, answer], counted

    def by_class(self):
        """Return precision, recall and count of each class, as arrays; NaN where no answer or no record is of the class."""
        counts = self.counts
        right, answers, truth = counts.T if self.several else (counts.diagonal(), counts.sum(axis=0), counts.sum(axis=1))
        return _share(right, answers), _share(right, truth), truth

    def pairs(self):
        """Return (truth, answer, count) of each pair of classes that was confused, the most frequent first."""
        truth, answer = np.nonzero(self.counts - np.diag(self.counts.diagonal()))
        found = [(int(i), int(j), int(self.counts[i, j])) for i, j in zip(truth, answer, strict=True)]
        return sorted(found, key=lambda pair: -pair[2])

    def name(self, number):
        """Return the name of a class."""
        return self.names[number] if self.names else f"class {number}"

    # ---- as text

    def summary(self):
        """Return the line about all classes."""
        if self.several:
            size, known = len(self.counts), int(self.counts.any(axis=1).sum())
            some = f"{size}" if known == size else f"{known} of {size}, the others are in no answer and no record"
            text = f"labels with a probability above 0.5 are answers; mean F1 of {some}: {mean_f1(self.counts):.4f}"
            return text if known else "no label is in an answer or in a record"
        what = "records" if self.prediction.positions == 1 else "labels"
        recall = self.by_class()[1]
        found = recall[np.isfinite(recall)]
        right, total = self.counts.trace(), self.counts.sum()
        parts = [f"{right} of {total} {what} right: accuracy {_share(right, total):.4f}"]
        if found.size:
            parts.append(f"mean recall of {found.size} classes {found.mean():.4f}")
        if self.ties:
            parts.append(f"{self.ties} ties count as wrong")
        if self.ignored:
            parts.append(f"{self.ignored} labels {self.prediction.ignored} are ignored")
        return "; ".join(parts)

    def class_lines(self):
        """Return a line for each class, below a heading."""
        labels = self._row_names()
        width = max(5, *map(len, labels))
        yield f"{'class':<{width}}  precision  recall    count"
        for label, precision, recall, count in zip(labels, *self.by_class(), strict=True):
            yield f"{label:<{width}}  {_number(precision):>9}  {_number(recall):>6}  {count:>7}"

    def matrix_lines(self):
        """Return the matrix as lines where it fits the terminal (80 columns if there is none), else a line that says so."""
        size, labels = len(self.counts), self._row_names()
        width, cell = max(map(len, labels)), max(len(str(self.counts.max())), len(str(size - 1))) + 1
        room = shutil.get_terminal_size((80, 24)).columns
        if width + size * cell > room:
            yield f"the matrix of {size} x {size} classes does not fit {room} columns; --json FILE writes it"
            return
        yield "confusion matrix: a row for each true class, a column for each answer"
        yield " " * width + "".join(f"{number:>{cell}}" for number in range(size))
        for label, row in zip(labels, self.counts.tolist(), strict=True):
            yield f"{label:<{width}}" + "".join(f"{count or '.':>{cell}}" for count in row)

    def pair_lines(self):
        """Return lines with the most confused pairs."""
        found = self.pairs()
        if not found:
            yield "no classes were confused"
            return
        left = f", {len(found) - PAIRS_SHOWN} more are left out" if len(found) > PAIRS_SHOWN else ""
        yield f"most confused pairs{left}:"
        of_class = self.counts.sum(axis=1)
        for truth, answer, count in found[:PAIRS_SHOWN]:
            yield f"{count:>7}  {self._short(truth)} taken for {self._short(answer)} ({count / of_class[truth]:.1%} of the class)"

    def _short(self, number):
        name = self.name(number)
        return name if len(name) <= NAME_WIDTH else name[:NAME_WIDTH - 3] + "..."

    def _row_names(self):
        digits = len(str(len(self.counts) - 1))
        return [f"{i:>{digits}} {self._short(i)}" if self.names else f"{i:>{digits}}" for i in range(len(self.counts))]

    def json(self):
        """Return all of it for JSON."""
        precision, recall, count = (values.tolist() for values in self.by_class())
        result = {"layer": self.prediction.node.name, "names": [self.name(i) for i in range(len(count))], "precision": precision,
                  "recall": recall, "count": count}
        if self.several:
            return {**result, "mean_f1": mean_f1(self.counts)}
        total = int(self.counts.sum())
        return {**result, "counted": total, "ignored": self.ignored, "ties": self.ties, "confusion": self.counts.tolist(),
                "accuracy": float(_share(self.counts.trace(), total)),
                "pairs": [{"truth": i, "answer": j, "count": count} for i, j, count in self.pairs()]}


def _share(part, whole):
    """Return part / whole, NaN for a whole of 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.true_divide(part, whole)


def _number(value):
    return f"{value:.4f}" if np.isfinite(value) else "-"
