"""``minicaffe test``: score the weights of a net (Caffe tools/caffe.cpp, test).

Different from Caffe: each record counts once, and for a classifier it shows which classes and pictures it gets wrong.
"""

import logging

import click

from minicaffe.cli import bars, options, ranks, training_file
from minicaffe.addons.workflows import confusion
from minicaffe.cli.classify import read_labels
from minicaffe.cli.inputs import json_bytes
from minicaffe.cli.picture_nets import PictureSource, open_data_net
from minicaffe.cli.plot import new_figure
from minicaffe.cli.records import finite_values
from minicaffe.addons.workflows.wrong_pictures import WrongPictures, check_folder, picture_source
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import write_bytes
from minicaffe.solver.report import OutputMeans, RecordCounts, evaluation_of, output_records, run_batches

logger = logging.getLogger("minicaffe.cli")
EVALUATIONS = {"matrix": "--confusion", "per_class": "--per-class", "wrong": "--wrong"}     # parameters that need all answers
WRONG_LIMIT = 100
VERSIONS = "Integral", "MaxIntegral", "11point"     # of average precision


@click.command(cls=options.CaffeCommand)
@click.argument("file", required=False)
@click.option("--model", metavar="FILE", help="FILE, as an option like Caffe's.")
@click.option("--weights", required=True, metavar="FILE", help="A .caffemodel, or HDF5.")
@click.option("--iterations", type=click.IntRange(min=1), help="Batches to run; by default so many that each record of the "
              "test data counts once, or 50 where their number is not known.")
@click.option("--confusion", "matrix", is_flag=False, flag_value="", type=options.OutputFile(confusion.ENDINGS), metavar="[FILE]",
              help="Of a classifier: print the confusion matrix and the most confused pairs; FILE, .csv or .png, gets the matrix.")
@click.option("--per-class", is_flag=True, help="Of a classifier: print precision, recall and count of each class, or of each "
              "of several labels (SigmoidCrossEntropyLoss).")
@click.option("--wrong", metavar="DIR", help="Of a classifier: write the pictures with wrong answers as PNG files and wrong.csv to "
              "the new folder DIR, those with the highest scores first.")
@click.option("--wrong-limit", type=click.IntRange(min=1), help="With --wrong: the most pictures to write; "
              f"by default {WRONG_LIMIT}.")
@click.option("--labels", metavar="FILE", help="Names of the classes, one a line; by default labels.txt beside the net, in "
              "the test database or beside it.")
@click.option("--prediction", metavar="LAYER", help="The loss or Accuracy layer whose scores are the answers; by default the last "
              "loss of classes, else the last Accuracy.")
@click.option("--json", "json_path", metavar="FILE", help="Write the result as JSON, with all that the other options print.")
@click.option("--ap-version", type=click.Choice(VERSIONS), default=VERSIONS[0], show_default=True,
              help="How precision is computed, where the net ends in DetectionEvaluate.")
@options.force
@options.whole_net_options
def test(file, model, weights, iterations, ap_version, json_path, force, level, stage, **asked):
    """Run the net of FILE with its test data and print the means of its outputs, or mean average precisions of detections.

    Processes that mpiexec started divide the batches, and the result is that of one process.
    """
    file = options.one_file(file, model, "--model", "net")
    evaluates = check_options(asked, json_path, force)
    options.log_device()
    # With an evaluation there is no plan: blobs from the middle of the net are read when it has run.
    net = open_data_net(file, weights, (level, stage), "and a test would score zeros; give the net that reads test data, or score "
                        "pictures by minicaffe classify", **({"plan": None} if evaluates else {}))
    evaluation = Evaluation(net, file, asked) if evaluates else None
    data = RecordCounts.of(net)
    training_file.report_records("test" if iterations is None else "--iterations", data, iterations)
    whole = data if iterations is None and data.records and not data.why else None
    left = data.records if iterations is None else None     # records that no batch has given; None: all count
    if iterations is None:
        iterations = data.batches if data.records else training_file.DEFAULT_TEST_ITER
    logger.info("Running for %d iterations.", iterations)
    evaluates_outputs = evaluation_of(net)
    finds = evaluates_outputs is not OutputMeans
    means = OutputMeans(net)
    if finds:
        means = evaluates_outputs(net, caffe_pb2.SolverParameter(ap_version=ap_version, show_per_class_result=True))
    records = whole.records if whole else None
    outputs, blobs = len(net.output_blobs), None if evaluation is None else [*net.output_blobs, *evaluation.blobs]
    with bars.progress() as report:
        for i, (loss, values, counted) in enumerate(run_batches(net, iterations, ranks.group(), records=records, blobs=blobs)):
            if not values and blobs:    # of a rank other than 0
                continue
            means.add(values[:outputs], whole.share(i) if whole else 1.0, counted[:outputs], loss)
            if evaluation is not None:
                left = evaluation.add(values[outputs:], left)
            for record in output_records(net, values[:outputs]) if logger.isEnabledFor(logging.INFO) and not finds else ():
                logger.info("Batch %d, %s = %g", i, record["name"], record["value"])
            report("testing", i + 1, iterations)
    if not ranks.first():
        return
    for line in (f"Loss: {means.loss():g}", *map(options.output_text, means.records())):
        logger.info("%s", line)
        click.echo(line)
    if evaluation is not None:
        evaluation.finish(force)
    if json_path:
        result = {"net": file, "weights": weights, "batches": iterations, "records": data.records, "loss": means.loss(),
                  "outputs": means.records(), **(evaluation.json() if evaluation else {})}
        write_bytes(json_path, json_bytes(finite_values(result)))
        click.echo(f"wrote {json_path}")


def check_options(asked, json_path, force):
    """Return whether answers are counted. Raises UsageError for options that do not fit, FileError for an output that exists."""
    given = [name for name in EVALUATIONS if asked[name] not in (None, False)]
    for name in ("labels", "prediction", "wrong_limit"):
        if asked[name] is not None and not given:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {', '.join(EVALUATIONS.values())}; give one of them")
    if asked["wrong_limit"] is not None and not asked["wrong"]:
        raise click.UsageError("--wrong-limit limits the pictures of --wrong, which is not given")
    if ranks.first():
        options.check_outputs(asked["matrix"] or None, json_path, force=force)
        if asked["wrong"]:
            check_folder(asked["wrong"], force)
    if (asked["matrix"] or "").lower().endswith(".png"):
        new_figure()    # raises without matplotlib, now rather than after the test
    return bool(given)


class Evaluation:
    """What --confusion, --per-class and --wrong show of a test of `net`, read from `file`; `asked` has the options' values."""

    def __init__(self, net, file, asked):
        self.asked, self.seen = asked, 0
        self.prediction = confusion.Prediction.of(net, asked["prediction"])
        options.notify(self.prediction.text(net))
        source = picture_source(net)
        training = PictureSource(file, source.param) if source is not None else None
        names = read_labels(asked["labels"], file, training, self.prediction.classes)
        if names is None:
            options.notify("names of the classes are not known, so their numbers are shown; --labels FILE gives them")
        self.confusion = confusion.Confusion(self.prediction, names)
        if self.confusion.several and (asked["matrix"] is not None or asked["wrong"]):
            raise ConfigError("is for one label in each record, and here are several; --per-class counts each",
                              field="--wrong" if asked["wrong"] else "--confusion", file=file)
        self.blobs = [self.prediction.scores, self.prediction.labels]
        self.wrong = None
        if asked["wrong"]:
            self.wrong = WrongPictures(net, self.confusion, asked["wrong_limit"] or WRONG_LIMIT)
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
        if self.asked["per_class"]:
            lines += ["", *self.confusion.class_lines()]
        if self.asked["matrix"] is not None:
            lines += ["", *self.confusion.matrix_lines()]
        if not self.confusion.several:
            lines += ["", *self.confusion.pair_lines()]
        click.echo("\n".join(lines))
        if self.asked["matrix"]:
            self.confusion.write(self.asked["matrix"])
            click.echo(f"wrote {self.asked['matrix']}")
        if self.wrong is not None:
            self.wrong.write(self.asked["wrong"], force)
            click.echo(self.wrong.line(self.asked["wrong"]))

    def json(self):
        """Return the result for JSON."""
        result = {"evaluation": self.confusion.json()}
        if self.wrong is not None:
            keys = ("file", "truth", "answer", "score", "number")
            pictures = [dict(zip(keys, row, strict=True)) for row in self.wrong.rows()]
            result["wrong"] = {"found": self.wrong.found, "pictures": pictures}
        return result
