"""Gradients that backward computes against differences of what forward computes (Caffe's GradientChecker).

Each layer is checked by itself, on the outputs of the layers before it: the sum of its tops, each element times a random weight,
is differentiated along elements of its parameters and bottoms; or, on request, the loss of the whole net along its parameters.
Different from Caffe (test_gradient_check_util.hpp): all is computed in float64, with a smaller step; where gradients are small
everywhere the error is relative to them, too; of a large array some elements are drawn; and an element that differs is tried with
smaller steps, since a ReLU or a maximum may have a kink there.
"""

import os
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from minicaffe.blob import Dtype
from minicaffe.common import TRAIN, caffe
from minicaffe.errors import ConfigError, Error, float_of, int_of
from minicaffe.net import weights as weights_files
from minicaffe.net.net import Net, read_net

STEP, THRESHOLD, SEED, ELEMENTS = 1e-4, 1e-5, 1701, 50
SMALLER_STEPS = (0.1, 0.01)       # of the step, for elements near a kink
GRADIENT_FLOOR = 1e-9                # gradients below it are rounding, as of a bias in front of BatchNorm
ROUNDING = 8 * np.finfo(np.float64).eps
# Choice and comparison of elements; see `gradcheck`.
Rule = namedtuple("Rule", "step threshold elements seed")
POISON, INITIAL_PARAM_DIFF = 1e9, 0.5  # diffs before backward: a layer overwrites those of bottoms, adds to those of parameters


@dataclass
class Comparison:
    """Result of the check of one array: `what` is ``blobs[0]`` for a parameter, ``bottom[0] 'data'`` for a bottom.

    `checked` elements were compared; `kinks` of them, or besides, are at or near a kink of the function. The worst one has `index`,
    None if there is none, its `analytic` and `numerical` gradient, and their `relative` difference, which may be `threshold`.
    """

    layer: str
    layer_type: str
    what: str
    shape: tuple
    threshold: float
    checked: int = 0
    kinks: int = 0
    index: tuple | None = None
    analytic: float = 0.0
    numerical: float = 0.0
    relative: float = 0.0

    @property
    def ok(self):
        """Whether no element differs by more than the threshold."""
        return self.relative <= self.threshold

    def __str__(self):
        return (f"layer '{self.layer}' ({self.layer_type}): {self.what}: element {list(self.index or ())}: backward says "
                f"{self.analytic:.9g}, differences say {self.numerical:.9g}, relative difference {self.relative:.2g}")


@dataclass
class Report:
    """Result of `gradcheck`: `comparisons`, and as (layer, type, what, reason) what was `not_checked`."""

    comparisons: list = field(default_factory=list)
    not_checked: list = field(default_factory=list)

    @property
    def failed(self):
        """The comparisons that are beyond their threshold."""
        return [comparison for comparison in self.comparisons if not comparison.ok]

    @property
    def ok(self):
        """Whether something was compared and all of it agrees."""
        return any(c.checked or c.kinks for c in self.comparisons) and not self.failed

    def __str__(self):
        lines = [f"{'ok  ' if c.ok else 'FAIL'} {c}" for c in self.comparisons]
        return "\n".join(lines + [f"--   layer '{layer}' ({kind}): {what or 'not checked'}: {reason}"
                                  for layer, kind, what, reason in self.not_checked])


def gradcheck(net, *, whole=False, layers=None, step=STEP, threshold=THRESHOLD, elements=ELEMENTS, seed=SEED):
    """Compare the gradients of a net with central differences, ``(f(x + step) - f(x - step)) / (2 step)``, in float64.

    Parameters
    ----------
    net : Net, NetParameter or str
        A net in float64 (``minicaffe.net.net.Net(param, Dtype.DOUBLE)``) whose Input layers the caller has filled; or what
        `double_net` takes. The net runs forward once on its own data; afterwards its parameters are as before.
    whole : bool
        Differentiate the net's loss along its learnable parameters, and not each layer by itself.
    layers : str or iterable of str, optional
        Names of the layers to check; all by default.
    step, threshold : float
        Half the difference, and the error allowed, relative to the larger of both gradients and of the root mean square of the
        array's gradient, at most 1. An element whose one-sided derivatives differ and that backward gives one of them, or one in
        between, counts as a kink, not as an error.
    elements : int or None
        How many elements of each array are compared, drawn with `seed`; 0 or None: all.
    seed : int
        Of the random numbers, of the layers too: Dropout drops the same elements in every run.

    Returns
    -------
    Report
        `print` shows it; `report.ok`, `report.failed`.

    Raises
    ------
    ConfigError
        If the net is not in float64 or has no such layer; and whatever building and running the net raises.

    Examples
    --------
    >>> report = minicaffe.gradcheck("models/lenet/net.prototxt")    # doctest: +SKIP
    """
    for name, value in (("step", step), ("threshold", threshold)):
        if not 0 < float_of(value, name, field=name) < np.inf:
            raise ConfigError(f"must be a finite number above 0, got {value}", field=name)
    if elements is not None and int_of(elements, "elements", field="elements") < 0:
        raise ConfigError(f"must be at least 0, which means all, got {elements}", field="elements")
    if not isinstance(net, Net):
        net = double_net(net, seed=seed)
    if net.dtype != Dtype.DOUBLE:
        raise ConfigError("the net computes in float32, where differences have two or three digits; build it with "
                          "minicaffe.net.net.Net(param, Dtype.DOUBLE), or give gradcheck its file", field="net")
    rule, report = Rule(step, threshold, elements, seed), Report()
    if layers is not None:
        layers = {layers} if isinstance(layers, str) else set(layers)
    for name in layers or ():
        net.layer_index(name)
    with net.lock, preserved(net.param_table.params):
        if whole:
            check_loss(net, rule, report, layers)
        else:
            for index, node in enumerate(net.nodes):
                if layers is None or node.name in layers:
                    check_layer(net, index, rule, report)
                else:
                    net.forward_from_to(index, index)
    return report


def double_net(net, phase=TRAIN, *, level=None, stages=(), weights=None, seed=SEED, prepare=None, **options):
    """Return a net in float64 for `gradcheck`: of a file or a NetParameter, with weights from files, its inputs filled.

    `phase`, `level` and `stages` are those of `minicaffe.net.net.read_net`, `options` those of its `Net`. `seed` is that of fillers
    and of the normal random numbers that Input layers get; what only layers without a gradient for it read, such as labels, stays
    0. `prepare` is called with the NetParameter before the net is built, with a copy if `net` is one.
    """
    definition = read_net(os.fsdecode(net) if isinstance(net, bytes) else net, phase, level, stages,
                          options.get("skip_unknown_fields", False))
    if prepare is not None:
        prepare(definition.param)
    with preserved(()):
        caffe.seed(seed)
        net = Net(definition, Dtype.DOUBLE, **options)
    for path in weights or ():
        weights_files.load(net, path).log_summary()
    random = np.random.default_rng(seed)
    for blob in net.input_blobs:
        if takes_gradient(net, blob):
            blob.data[...] = random.standard_normal(blob.shape)
    return net


def takes_gradient(net, blob):
    """Whether a layer that reads `blob`, behind splits, has a gradient for it."""
    return any(any(takes_gradient(net, top) for top in node.tops) if node.type == "Split" else node.layer.allow_force_backward(i)
               and node.type != "Accuracy" for node in net.nodes for i, bottom in enumerate(node.bottoms) if bottom is blob)


@contextmanager
def preserved(blobs):
    """Leave the data of blobs, and the random numbers of the thread, as they were."""
    generator = caffe.generator
    values, state = [blob.cpu_data.copy() for blob in blobs], (generator.seed, generator.offset)
    try:
        yield
    finally:
        for blob, data in zip(blobs, values):
            blob.data[...] = data
        generator.seed, generator.offset = state


class RepeatableRun:
    """Layers of a net that run repeatedly on the same inputs and random numbers, after the layers before them have run.

    The seed of `rule` gives those, and the weights of the tops that are not losses. With `only_losses` only tops with a loss weight
    count.
    """

    def __init__(self, net, indices, rule, only_losses=False):
        self.net, self.indices, self.seed = net, indices, rule.seed
        nodes = [net.nodes[i] for i in indices]
        tops = {top for node in nodes for top in node.tops}
        made = set()
        self.overwritten = {}  # inputs that layers in place overwrite, as they were
        for node in nodes:
            for blob in node.bottoms:
                if blob in tops and blob not in made and (blob not in self.overwritten):
                    self.overwritten[blob] = blob.cpu_data.copy()
            made.update(node.tops)
        self.run()
        random = np.random.default_rng(rule.seed)
        left_out = {top for node in nodes if node.type == "Split" for top in node.layer.without_gradient or ()}
        self.tops = [(top, top.cpu_diff.copy() if weight else random.standard_normal(top.shape))
                     for node in nodes for top, weight in zip(node.tops, node.loss_weights)
                     if (weight or not only_losses) and top not in left_out]
        self.base = self.values()

    def run(self):
        """Compute the tops again."""
        caffe.seed(self.seed)
        for blob, values in self.overwritten.items():
            blob.data[...] = values
        for index in self.indices:
            self.net.forward_from_to(index, index)

    def values(self):
        """Return copies of the tops that count."""
        return [top.cpu_data.copy() for top, _ in self.tops]

    def is_repeatable(self):
        """Whether another run gives the same."""
        self.run()
        return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(self.base, self.values()))

    def set_element(self, blob, i, value):
        """Set element `i`; through `data` each time, which marks a device's copy as old."""
        if blob in self.overwritten:
            self.overwritten[blob].reshape(-1)[i] = value
        else:
            blob.data.reshape(-1)[i] = value

    def derivatives(self, blob, i, step):
        """Return the central derivative along element `i`, the lowest and highest that is one, and their rounding error.

        At a kink each element of the tops may have the derivative from its left or from its right, or one in between: a value that
        is the largest of several windows of a pooling, all with a second one like it, may be chosen in some of them.
        """
        value, moved_values = float(self.overwritten.get(blob, blob.cpu_data).reshape(-1)[i]), []
        try:
            for change in (step, -step):
                self.set_element(blob, i, value + change)
                self.run()
                moved_values.append(self.values())
        finally:
            self.set_element(blob, i, value)
        total = noise = low = high = 0.0
        for (_, weight), here, a, b in zip(self.tops, self.base, *moved_values):
            moved = a != b      # unchanged elements add neither value nor error
            total += float((weight[moved] * (a[moved] - b[moved])).sum())
            noise += ROUNDING * float((np.abs(weight[moved]) * (np.abs(a[moved]) + np.abs(b[moved]))).sum())
            left, right = weight * (here - b), weight * (a - here)
            low += float(np.minimum(left, right).sum())
            high += float(np.maximum(left, right).sum())
        return total / (2 * step), low / step, high / step, 2 * noise / step


def compare(section, node, what, blob, gradient, rule):
    """Compare `gradient` of `blob`, as backward gave it, with differences; return a Comparison with the worst element."""
    comparison = Comparison(node.name, node.type, what, blob.shape, rule.threshold)
    flat = gradient.reshape(-1)
    floor = min(1.0, max(GRADIENT_FLOOR, float(np.sqrt(np.mean(np.square(flat)))))) if flat.size else 1.0

    def relative(analytic, numerical, noise):
        difference = abs(analytic - numerical)
        return difference / max(abs(analytic), abs(numerical), floor, noise / rule.threshold) if difference else difference

    chosen = range(flat.size)
    if rule.elements and flat.size > rule.elements:
        chosen = sorted(np.random.default_rng(rule.seed).choice(flat.size, rule.elements, replace=False).tolist())
    for i in chosen:
        analytic = float(flat[i])
        numerical, low, high, noise = section.derivatives(blob, i, rule.step)
        worst = relative(analytic, numerical, noise)
        if worst > rule.threshold:
            for part in SMALLER_STEPS:
                closer, low, high, noise = section.derivatives(blob, i, rule.step * part)
                if relative(analytic, closer, noise) <= rule.threshold:
                    comparison.kinks += 1
                    numerical, worst = closer, relative(analytic, closer, noise)
                    break
            else:
                nearest = min(max(analytic, low), high)
                if relative(low, high, noise) > rule.threshold and relative(analytic, nearest, noise) <= rule.threshold:
                    comparison.kinks += 1
                    continue
        comparison.checked += 1
        if not worst <= comparison.relative or comparison.index is None:    # NaN is the worst of all
            comparison.index = tuple(map(int, np.unravel_index(i, blob.shape)))
            comparison.analytic, comparison.numerical = analytic, numerical
            comparison.relative = worst if np.isfinite(worst) else np.inf
    return comparison


def check_layer(net, index, rule, report):
    """Run layer `index` of a net, whose layers before it have run, and compare its gradients; `report` gets what was found."""
    node = net.nodes[index]
    layer = node.layer

    def leave_out(what, reason):
        report.not_checked.append((node.name, node.type, what, reason))

    reads = node.bottoms or node.blobs
    if not reads or not node.tops:
        net.forward_from_to(index, index)
        return leave_out(None, "it has no top" if reads else "it reads nothing, so there is nothing to differentiate along")
    section = RepeatableRun(net, [index], rule)
    if not section.is_repeatable():
        by_cudnn = any(found["layer"] == node.name and "CUDNN" in (found["engine"] or "") for found in net.engines())
        return leave_out(None, "it computes something else each time it runs on the same data" + (
            "; with MINICAFFE_DETERMINISTIC=1 cuDNN takes algorithms that repeat their results" if by_cudnn else ""))
    bottoms = [i for i in range(len(node.bottoms))
               if i not in layer.no_gradient and (node.bottom_needs[i] or layer.allow_force_backward(i))]
    for i in sorted({*range(len(node.bottoms))} - {*bottoms}):
        leave_out(f"bottom[{i}] '{node.bottoms[i].name}'", "the layer has no gradient for it")
    for i, learns in enumerate(layer.param_propagate_down):
        if not learns:
            leave_out(f"blobs[{i}]", "it is not learned: its lr_mult is 0")
    try:
        gradients = backward(net, index, section, bottoms)
    except Error as error:
        needed = [i for i in bottoms if node.bottom_needs[i]]
        if needed == bottoms or not (needed or any(layer.param_propagate_down)):
            section.run()
            return leave_out(None, error.message)
        for i in sorted({*bottoms} - {*needed}):
            leave_out(f"bottom[{i}] '{node.bottoms[i].name}'", error.message)
        gradients = backward(net, index, section, needed)
    for what, blob, gradient, needed in gradients:
        if not needed and (gradient == POISON).all() and gradient.size:
            leave_out(what, "backward leaves it as it is, and the net does not need it")
        else:
            report.comparisons.append(compare(section, node, what, blob, gradient, rule))
    return section.run()


def backward(net, index, section, bottoms):
    """Run the backward of a layer; return (what, blob, gradient, whether the net needs it) of these bottoms and its parameters."""
    node = net.nodes[index]
    before = list(node.bottom_needs)
    for i in bottoms:
        node.bottoms[i].diff[...] = POISON
    for blob in node.blobs:
        blob.diff[...] = INITIAL_PARAM_DIFF
    for top, weight in section.tops:    # last: in place they are the bottoms' diffs
        top.diff[...] = weight
    node.bottom_needs = [i in bottoms for i in range(len(node.bottoms))]
    try:
        net.backward_layer(index)
    finally:
        node.bottom_needs = before
    found = {}      # memory of a bottom's data -> what is compared
    for i in bottoms:
        blob, what, needed = node.bottoms[i], f"bottom[{i}] '{node.bottoms[i].name}'", before[i]
        gradient = blob.cpu_diff.copy()
        memory = i if (gradient == POISON).all() else id(blob.data_memory)
        if memory in found:     # tops of one Split: a difference changes all of them
            first = found[memory]
            what, blob, gradient, needed = f"{first[0]} and {what}", first[1], first[2] + gradient, first[3] or needed
        found[memory] = what, blob, gradient, needed
    return [*found.values()] + [(f"blobs[{i}]", blob, blob.cpu_diff - INITIAL_PARAM_DIFF, True)
                                for i, blob in enumerate(node.blobs) if node.layer.param_propagate_down[i]]


def check_loss(net, rule, report, layers=None):
    """Compare the gradients of the net's loss along its learnable parameters, those of `layers` or all."""
    last = len(net.nodes) - 1
    net.forward_from_to(0, last)
    if not any(net.loss_weights.values()):
        raise ConfigError("the net has no loss to differentiate; check its layers one by one, or give a layer a loss_weight",
                          field="whole", file=net.file)
    read = [i for i, node in enumerate(net.nodes) if node.bottoms or node.blobs]
    for i in sorted({*range(last + 1)} - {*read}):   # what layers in place have made of their tops would be made of it again
        net.forward_from_to(i, i)
    section = RepeatableRun(net, read, rule, only_losses=True)
    if not section.is_repeatable():
        raise ConfigError("the net computes another loss each time it runs on the same data; check its layers one by one, which "
                          "names the one", field="whole", file=net.file)
    net.clear_param_diffs()
    net.backward_from_to(last, 0)
    table = net.param_table
    gradients = {i: table.params[i].cpu_diff.copy() for i in table.learnable}
    places = [(node, i, blob) for node in net.nodes for i, blob in enumerate(node.blobs)]   # in the order of the table
    for position, (node, i, blob) in enumerate(places):
        if layers is not None and node.name not in layers or position not in gradients:
            continue
        if not node.layer.param_propagate_down[i] or not node.needs_backward:
            reason = "its lr_mult is 0" if not node.layer.param_propagate_down[i] else "no loss depends on it"
            report.not_checked.append((node.name, node.type, f"blobs[{i}]", f"it is not learned: {reason}"))
            continue
        report.comparisons.append(compare(section, node, f"blobs[{i}]", blob, gradients[position], rule))
    section.run()
