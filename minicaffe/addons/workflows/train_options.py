"""Options of ``minicaffe train``: weights of the classes, the best test, an end when tests no longer improve."""

import functools

import click

from minicaffe.cli import earlier_files
from minicaffe.errors import located

BEST_TESTS = 20       # least number of tests of a training made for a net, where the best one is wanted
PARAMS = [
    click.Option(["--class-weights"], metavar="auto|FILE", help=(
    "Weigh the classes of SoftmaxWithLoss, by InfogainLoss: auto, by their inverse frequency in the training data; FILE has a "
    "weight on each line, from class 0 on.")),
    click.Option(["--keep-best"], is_flag=True, help=(
    "Keep the weights of the test with the highest accuracy (of several labels in a picture the mean F1, of detection the mean "
    "average precision), or the least loss where the test net has none of these, as <snapshot_prefix>_best.caffemodel.")),
    click.Option(["--patience"], type=click.IntRange(min=1), metavar="N", help=(
    "Stop after N tests in a row that were no better than the best one.")),
]


def least_tests(given):
    """Return how many tests a training made for a net has at least."""
    return max(BEST_TESTS, 2 * (given["patience"] or 0)) if given["keep_best"] or given["patience"] else 0


def change_of_net(given, param):
    """Return what replaces the losses of the train net; None without --class-weights."""
    if given["class_weights"] is None:
        return None
    from minicaffe.addons.workflows.class_weights import weigh_classes
    same = given["state"] is not None and earlier_files.is_same_training(given["state"], param.snapshot_prefix)
    return functools.partial(weigh_classes, wanted=given["class_weights"], keep=not (given["force"] or same))


def prepare(solver, given):
    """Let the solver keep its best test, or end by patience."""
    if given["keep_best"] or given["patience"]:
        from minicaffe.addons.workflows.best_test import BestTest
        with located(field="--keep-best" if given["keep_best"] else "--patience"):
            solver.best = BestTest(solver, given["keep_best"], given["patience"])
