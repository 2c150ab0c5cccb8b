"""The best test of a training: its parameters in a file of their own, and the end of a training that no longer improves.

Caffe keeps no best model. The measure is an output of the first test net: of an Accuracy layer, the higher the better; of
``eval_type: "detection"`` the mean average precision; where a picture has several labels, their mean F1, the harmonic mean of
precision and recall; otherwise the loss, the lower the better.
"""

import logging
import math
import os

import numpy as np

from minicaffe.errors import ConfigError, DataError
from minicaffe.net.deploy import ignored
from minicaffe.net.run import AFTER_FORWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.atomic import delayed_interrupts
from minicaffe.solver import snapshot

log = logging.getLogger("minicaffe.solver")
LABEL_LOSS = "SigmoidCrossEntropyLoss"
# Attributes of a BestTest in a solver state, with their types.
STATE = {"output": str, "value": (int, float), "iteration": int, "count": int, "last": int, "path": (str, type(None))}


class BestTest:
    """Finds the best test of a solver, as its attribute `best`::

        solver.best = BestTest(solver, patience=5)
        solver.solve()

    Parameters
    ----------
    solver : Solver
    keep : bool
        Write the parameters of the best test to ``<snapshot_prefix>_best.caffemodel``, with ``.h5`` in format HDF5.
    patience : int, optional
        Stop the training after so many tests in a row that are no better than the best one.

    Attributes
    ----------
    output : str
        What is measured.
    value, iteration : float, int
        Of the best test so far, None if there was none.
    count : int
        Tests since then that were no better.
    path : str
        The file with its parameters, None if they are not kept.

    Raises
    ------
    ConfigError
        If the solver makes no tests, its first test net measures nothing, or `patience` is less than 1.
    """

    def __init__(self, solver, keep=True, patience=None):
        self.keep, self.patience = keep, patience
        self.value = self.iteration = self.path = None
        self.label_counts = []              # of the batches of a test, if a picture has several labels; the solver clears it
        self.count, self.last = 0, -1       # `last` is the iteration of the last test that was recorded
        param = solver.param
        if patience is not None and patience < 1:
            raise ConfigError(f"must be at least 1, got {patience}", field="patience")
        if not solver.test_nets or not (param.test_iter[0] or solver.whole_tests.get(0)):
            raise ConfigError("the best test is wanted, and this solver makes none; give it test_iter and test_interval, and its "
                              "net a phase TEST", file=solver.file)
        self.output, self.higher_is_better, self._value_of = choose_metric(solver, self.label_counts)

    @property
    def exhausted(self):
        """bool: whether `patience` tests in a row were no better than the best."""
        return self.patience is not None and self.count >= self.patience

    def record_test(self, solver, record):
        """Record a test; all ranks of the solver's group must call this, and decide as rank 0 does."""
        if record["net"] != 0 or record["iteration"] <= self.last:      # a resumed training repeats the test that it begins with
            return
        self.last = record["iteration"]
        value = self._value_of(record)
        improves = self.value is None or (value > self.value if self.higher_is_better else value < self.value)
        better = math.isfinite(value) and improves
        if better and self.keep:
            better = solver.check_finite()
        if not solver.group.broadcast_from_root(better):
            self.count += 1
            if self.exhausted:
                log.info("Iteration %d: %s", self.last, self.reason())
            return
        self.value, self.iteration, self.count = solver.group.broadcast_from_root(value), self.last, 0
        if self.keep:
            with solver.net.lock, delayed_interrupts():
                self.path = solver.group.run_on_root(_write, solver)
        log.info("Iteration %d: best test %s so far = %g%s", self.iteration, self.output, self.value,
                 f", kept in {self.path}" if self.keep else "")

    def reason(self):
        """Return why the training stops."""
        return f"no better test {self.output} in {self.count} test{'s' * (self.count != 1)}, the patience is {self.patience}"

    def lines(self):
        """Return the result as lines of text."""
        if self.value is None:
            yield f"no test {self.output} is known, so there is no best one"
        else:
            where = f": {self.path}" if self.path else ""
            yield f"best test {self.output} = {self.value:g} at iteration {self.iteration}{where}"

    # ---- resuming

    def get_state(self):
        """Return what a solver state stores of this, for JSON."""
        return {name: getattr(self, name) for name in STATE}

    def check_state(self, state):
        """Raise DataError unless `set_state` can take what was read from a solver state: None, or the form of `get_state`."""
        if state is None:
            return
        found = state if isinstance(state, dict) else {}
        unset = found.get("value") is found.get("iteration") is None
        for name, kind in STATE.items():
            value = 0 if unset and name in ("value", "iteration") else found.get(name)
            if not isinstance(value, kind) or isinstance(value, bool) or not (isinstance(value, str | None) or abs(value) < 2**63):
                raise DataError("is not what minicaffe writes there; fetch the file again", field="resume_state")

    def set_state(self, state):
        """Take what `get_state` returned, None if the solver state has nothing of it; a warning says if it cannot be used."""
        if state is None:
            log.warning("The solver state has no best test, so the best one is that of the tests from here on")
            return
        if state["output"] != self.output:
            log.warning("The solver state has the best test %s, and this training measures %s: the best one is that of the tests "
                        "from here on", state["output"], self.output)
            return
        for name in STATE:
            setattr(self, name, state[name])
        if self.keep and self.value is not None and (self.path is None or not os.path.exists(self.path)):
            log.warning("The parameters of the best test so far, iteration %d, %s; the next better ones are kept", self.iteration,
                        "were not kept" if self.path is None else f"are no longer in {self.path}")


def _write(solver):
    """Write the model of `solver` as that of its best test, and return the path."""
    hdf5 = solver.param.snapshot_format == caffe_pb2.SolverParameter.HDF5
    path = f"{solver.param.snapshot_prefix}_best.caffemodel{'.h5' if hdf5 else ''}"
    solver.notify("before_snapshot", path)
    snapshot.write_model(solver, path)
    return path


def choose_metric(solver, label_counts):
    """Return the name of the metric that ranks tests, whether higher is better, and a function from a test's record to its value.

    If pictures have several labels, `label_counts` gets `count_labels` of each batch. Raises ConfigError if the first test net has
    neither an accuracy nor a loss.
    """
    net = solver.test_nets[0]
    if solver.param.eval_type == "detection":
        return net.output_blobs[0].name, True, _output(net.output_blobs[0].name)
    accuracies = [node for node in net.nodes if node.type == "Accuracy" and node.tops[0] in net.output_blobs]
    if accuracies:      # the last of those with the smallest top_k
        node = min(reversed(accuracies), key=lambda node: node.param.accuracy_param.top_k)
        return node.tops[0].name, True, _output(node.tops[0].name)
    losses = [node for node in net.nodes if compares_labels(net, node) and node.bottoms[0].num_axes > 1]
    if sum(node.bottoms[0].shape[1] for node in losses) > 1:

        def count(index):
            if net.nodes[index] is losses[-1]:      # each loss has run
                counts = [count_labels(*(blob.cpu_data for blob in node.bottoms[:2]), ignored(node.param.loss_param))
                          for node in losses]
                label_counts.append(np.concatenate(counts))

        net.add_hook(AFTER_FORWARD, count)
        return "mean F1", True, lambda record: mean_f1(sum(solver.group.gather(sum(label_counts))))
    if any(net.loss_weights[blob] for blob in net.output_blobs):
        return "loss", False, lambda record: sum(output["value"] * output["loss_weight"] for output in record["outputs"]
                                                 if output["loss_weight"])
    if solver.param.test_compute_loss:
        return "loss", False, lambda record: record["loss"]
    raise ConfigError("has neither an Accuracy nor a loss as output, so tests cannot be ranked; add one in phase TEST, or set "
                      "test_compute_loss in the solver", file=net.file)


def compares_labels(net, node):
    """Return whether a node compares scores with labels: a top of a source from which no scores are computed, or a view of it.

    Targets of an autoencoder are pixels, and an F1 of these ranks no tests.
    """
    if node.type != LABEL_LOSS:
        return False
    target, read = node.bottoms[1], {node.bottoms[0]}
    for maker in reversed(net.nodes[:net.nodes.index(node)]):
        read.update(maker.bottoms if read.intersection(maker.tops) else ())
        if target in maker.tops:
            if maker.type not in ("Split", "Slice", "Reshape", "Flatten"):
                return not maker.bottoms and target not in read
            target = maker.bottoms[0]
    return False


def count_labels(scores, labels, ignored_label):
    """Return for each label (axis 1) the numbers of right answers, answers and true labels; a score above 0 is an answer."""
    labels = labels.reshape(scores.shape)
    counted = labels != ignored_label if ignored_label is not None else True
    answers, truth = (scores > 0) & counted, (labels > 0.5) & counted
    return np.stack([array.reshape(*array.shape[:2], -1).sum(axis=(0, 2)) for array in (answers & truth, answers, truth)], axis=1)


def mean_f1(counts):
    """Return the mean of the F1 of labels, from `count_labels`, without labels that are never an answer and never true."""
    counts = counts[counts.any(axis=1)]
    return float((2 * counts[:, 0] / (counts[:, 1] + counts[:, 2])).mean()) if len(counts) else math.nan


def _output(name):
    return lambda record: next(output["value"] for output in record["outputs"] if output["name"] == name)
