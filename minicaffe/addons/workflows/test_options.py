"""Options of ``minicaffe test``: which classes and pictures a classifier gets wrong."""

import csv
import os
import re

import click
import numpy as np

from minicaffe.addons.workflows import confusion
from minicaffe.cli import options, ranks
from minicaffe.cli.classify import read_labels
from minicaffe.cli.inputs import csv_bytes
from minicaffe.cli.picture_nets import PictureSource
from minicaffe.cli.pictures import to_rgb, write_png
from minicaffe.data.db import replacing_folder
from minicaffe.errors import ConfigError, FileError
from minicaffe.proto.atomic import check_free, check_writable, write_bytes
from minicaffe.proto.files import read_bytes

TABLE, COLUMNS = "wrong.csv", ("file", "truth", "answer", "score", "number")
NAME_LENGTH = 40    # characters of a class's name in the name of a file
EVALUATIONS = {"confusion": "--confusion", "per_class": "--per-class", "wrong": "--wrong"}     # parameters that need all answers
WRONG_LIMIT = 100
PARAMS = [
    click.Option(["--confusion"], is_flag=True, help="Of a classifier: print the confusion matrix and the most confused pairs."),
    click.Option(["--per-class"], is_flag=True, help="Of a classifier: print precision, recall and count of each class, or of each "
              "of several labels (SigmoidCrossEntropyLoss)."),
    click.Option(["--wrong"], metavar="DIR", help="Of a classifier: write the pictures with wrong answers as PNG files and "
              "wrong.csv to the new folder DIR, those with the highest scores first."),
    click.Option(["--wrong-limit"], type=click.IntRange(min=1), help="With --wrong: the most pictures to write; "
              f"by default {WRONG_LIMIT}."),
    click.Option(["--labels"], metavar="FILE", help="Names of the classes, one a line; by default labels.txt beside the net, in "
              "the test database or beside it."),
    click.Option(["--prediction"], metavar="LAYER", help="The loss or Accuracy layer whose scores are the answers; by default the "
              "last loss of classes, else the last Accuracy, else the last SigmoidCrossEntropyLoss of labels."),
]


def check_options(values, force):
    """Return whether answers are counted. Raises UsageError for options that do not fit, FileError for an output that exists."""
    given = [name for name in EVALUATIONS if values[name] not in (None, False)]
    for name in ("labels", "prediction", "wrong_limit"):
        if values[name] is not None and not given:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {', '.join(EVALUATIONS.values())}; give one of them")
    if values["wrong_limit"] is not None and not values["wrong"]:
        raise click.UsageError("--wrong-limit limits the pictures of --wrong, which is not given")
    if values["wrong"] and ranks.group.rank == 0:
        check_folder(values["wrong"], force)
    return bool(given)


class Evaluation:
    """The answers of a test of `net`, read from `file`, as --confusion, --per-class and --wrong show them (`values`, by option)."""

    def __init__(self, net, file, values):
        self.values, self.seen = values, 0
        self.prediction = confusion.Prediction.of(net, values["prediction"])
        options.notify(self.prediction.text(net))
        source = picture_source(net)
        training = PictureSource(file, source.param) if source is not None else None
        names = read_labels(values["labels"], file, training, self.prediction.classes)
        if names is None:
            options.notify("names of the classes are not known, so their numbers are shown; --labels FILE gives them")
        self.confusion = confusion.Confusion(self.prediction, names)
        if self.confusion.several and (values["confusion"] or values["wrong"]):
            raise ConfigError("is for one label in each record, and here are several; --per-class counts each",
                              field="--wrong" if values["wrong"] else "--confusion", file=file, layer=self.prediction.node.name,
                              layer_type=self.prediction.node.type)
        self.blobs = [self.prediction.scores, self.prediction.labels]
        self.wrong = None
        if values["wrong"]:
            self.wrong = WrongPictures(net, self.confusion, values["wrong_limit"] or WRONG_LIMIT)
            self.blobs.append(self.wrong.blob)

    def add(self, arrays, left=None):
        """Take the arrays of `blobs` of a batch, of at most `left` records; return how many are left (None: all count)."""
        scores, labels, *pictures = arrays
        if left is not None:
            scores, labels = scores[:left], labels[:left]
            left -= len(scores)
        answers = self.confusion.add(scores, labels)
        if self.wrong is not None:
            self.wrong.add(self.seen, *answers, *pictures)
        self.seen += len(scores)
        return left

    def finish(self, force):
        """Print the result and write its files."""
        lines = [self.confusion.summary()]
        if self.values["per_class"]:
            lines += ["", *self.confusion.class_lines()]
        if self.values["confusion"]:
            lines += ["", *self.confusion.matrix_lines()]
        if not self.confusion.several:
            lines += ["", *self.confusion.pair_lines()]
        click.echo("\n".join(lines))
        if self.wrong is not None:
            self.wrong.write(self.values["wrong"], force)
            click.echo(self.wrong.line(self.values["wrong"]))

    def json(self):
        """Return the result for JSON."""
        result = {"evaluation": self.confusion.json()}
        if self.wrong is not None:
            pictures = [dict(zip(COLUMNS, row, strict=True)) for row in self.wrong.rows()]
            result["wrong"] = {"found": self.wrong.found, "pictures": pictures}
        return result


# ---- the pictures with wrong answers, as PNG files in a folder, and a table of them

def check_folder(path, force):
    """Raise FileError unless the folder `path` can be made, or `force` is true and it holds only what an earlier test wrote."""
    check_free(path, force)
    if not os.path.isdir(path):
        check_writable(path)
        return
    table = os.path.join(path, TABLE)
    known = {TABLE}
    if os.path.isfile(table):
        known.update(row[0] for row in csv.reader(read_bytes(table).decode(errors="surrogateescape").splitlines()) if row)
    others = sorted(set(os.listdir(path)) - known)
    if others:
        raise FileError(f"is a folder that holds more than the wrong pictures of a test ({others[0]}), so --force does not replace "
                        "it; choose another name", file=path)


class WrongPictures:
    """Keeps the wrong answers with the highest scores, `limit` of them, with their pictures as the net sees them.

    `confusion` is the Confusion of the test of a Net. `blob` has the pictures of a batch, `found` is the number of wrong answers,
    and `kept` has (score, number, truth, answer, picture) of each, the highest score first; `number` counts the records of the test
    from 0. Raises ConfigError if the net reads no pictures, or a record has several labels.
    """

    def __init__(self, net, confusion, limit):
        self.confusion, self.limit = confusion, limit
        self.found, self.kept = 0, []
        source = picture_source(net)
        if source is None:
            raise ConfigError("no data layer gives pictures, shape (N, channels, height, width), so --wrong has none to write",
                              file=net.file)
        if confusion.prediction.positions != 1:
            raise ConfigError(f"--wrong needs one label for each picture, and a picture has {confusion.prediction.positions}",
                              file=net.file, layer=confusion.prediction.node.name, layer_type=confusion.prediction.node.type)
        self.blob = source.tops[0]

    def add(self, first, truth, answer, scores, counted, pictures):
        """Take the wrong answers of a batch whose first record has number `first`."""
        wrong = np.flatnonzero(counted & (truth != answer))
        self.found += len(wrong)
        scores = np.nan_to_num(scores, nan=-np.inf)
        best = wrong[np.argsort(-scores[wrong], kind="stable")][:self.limit]
        new = [(float(scores[i]), first + int(i), int(truth[i]), int(answer[i]), pictures[i].copy()) for i in best]
        self.kept = sorted([*self.kept, *new], key=lambda item: (-item[0], item[1]))[:self.limit]

    def rows(self):
        """Return `COLUMNS` of each kept answer."""
        name = self.confusion.name
        return [(f"{_safe(name(truth))}_{_safe(name(answer))}_{score:.4f}_{number}.png", name(truth), name(answer), score, number)
                for score, number, truth, answer, _ in self.kept]

    def write(self, path, force):
        """Write the folder, whole or not at all; of a picture the lowest value is black, the highest white."""
        check_folder(os.path.abspath(path), force)
        rows = self.rows()
        with replacing_folder(path) as folder:
            folder.mkdir()
            for row, kept in zip(rows, self.kept, strict=True):
                write_png(folder / row[0], to_rgb(kept[4]))
            write_bytes(folder / TABLE, csv_bytes(COLUMNS, ([*row[:3], f"{row[3]:.6g}", row[4]] for row in rows)))

    def line(self, path):
        """Return what was written."""
        if len(self.kept) == self.found:
            return f"wrote {path}: {self.found} wrong picture{'s' * (self.found != 1)} and {TABLE}, the highest scores first"
        return (f"wrote {path}: {len(self.kept)} of {self.found} wrong pictures and {TABLE}, those with the highest scores; "
                "--wrong-limit sets how many")


def picture_source(net):
    """Return the first node of a net that gives pictures; None if none does."""
    return next((node for node in net.nodes if node.tops and not node.bottoms and node.type != "Parameter"
                 and node.tops[0].num_axes == 4), None)


def _safe(name):
    """Return a class's name with nothing that a file name must not have."""
    return re.sub(r"[^\w.-]+|_", "-", name)[:NAME_LENGTH].strip(".") or "-"
