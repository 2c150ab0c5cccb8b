"""Options of ``minicaffe test``: which classes and pictures a classifier gets wrong."""

import click

from minicaffe.addons.workflows import confusion
from minicaffe.addons.workflows.wrong_pictures import WrongPictures, check_folder, picture_source
from minicaffe.cli import options, ranks
from minicaffe.cli.classify import read_labels
from minicaffe.cli.picture_nets import PictureSource
from minicaffe.errors import ConfigError

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


def check_options(values, json_path, force):
    """Return whether answers are counted. Raises UsageError for options that do not fit, FileError for an output that exists."""
    given = [name for name in EVALUATIONS if values[name] not in (None, False)]
    for name in ("labels", "prediction", "wrong_limit"):
        if values[name] is not None and not given:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {', '.join(EVALUATIONS.values())}; give one of them")
    if values["wrong_limit"] is not None and not values["wrong"]:
        raise click.UsageError("--wrong-limit limits the pictures of --wrong, which is not given")
    if ranks.group.rank == 0:
        options.check_outputs(json_path, force=force)
        if values["wrong"]:
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
            keys = ("file", "truth", "answer", "score", "number")
            pictures = [dict(zip(keys, row, strict=True)) for row in self.wrong.rows()]
            result["wrong"] = {"found": self.wrong.found, "pictures": pictures}
        return result
