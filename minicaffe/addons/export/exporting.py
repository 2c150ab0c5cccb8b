"""The common parts of the exports to ONNX and PyTorch: names, preprocessing, comparison of values."""

import logging
from typing import NamedTuple

import numpy as np

from minicaffe.errors import ConfigError, DataError

UNKNOWN_SIZES = "DetectionOutput", "Filter"     # types whose tops have a size that depends on values
log = logging.getLogger(__name__)


def registration(table):
    """Return the decorator with names as arguments that puts a function into a table by each name, in place of an earlier one."""
    def named(*names):
        def register(function):
            table.update(dict.fromkeys(names, function))
            return function
        return register
    return named


def unique(wanted, taken):
    """Return `wanted`, or this with a number behind it: a name that is not in `taken`, a dict of names to numbers; add it."""
    name = wanted
    while name in taken:
        taken[wanted] += 1
        name = f"{wanted}_{taken[wanted]}"
    taken[name] = 1
    return name


def unique_names(wanted):
    """Return the names, those that an earlier one equals with a number behind them, which makes none of the others."""
    first, taken = {name: i for i, name in reversed([*enumerate(wanted)])}, dict.fromkeys(wanted, 1)
    return [name if first[name] == i else unique(name, taken) for i, name in enumerate(wanted)]


def value_names(nodes):
    """Return (index of the layer, blob) -> name of the value: the blob's for its last value, or for an input, else BLOB/LAYER."""
    last = {blob.name: i for i, node in sorted(enumerate(nodes), key=lambda one: one[1].type == "Input") for blob in node.tops}
    taken = dict.fromkeys(last, 1)
    return {(i, blob.name): blob.name if last[blob.name] == i else unique(f"{blob.name}/{node.name}", taken)
            for i, node in enumerate(nodes) for blob in node.tops}


class Preprocessing(NamedTuple):
    """Preprocessing of an input: ``(x[:, order] - mean) * scale``.

    Parameters
    ----------
    mean : array_like, shape (), (C,) or (C, H, W), optional
        In the order of the net's channels.
    scale : float
    order : sequence of int, optional
        The channel of x for each channel of the net: (2, 1, 0) takes RGB to a net that was trained on BGR.
    """

    mean: object = None
    scale: float = 1.0
    order: tuple = ()


def checked_preprocessing(net, how):
    """Return the order of the channels, a list, and the mean, float32 to be broadcast against a record, of a Preprocessing.

    The list is empty if they stay as they are; the mean may be None. Raises ConfigError unless they fit the first input.
    """
    blob = net.input_blobs[0]
    channels = blob.shape[1] if blob.num_axes > 1 else 0
    if how.order and sorted(how.order) != list(range(channels)):
        raise ConfigError(f"must have each of the {channels} channels of input '{blob.name}' once, got {list(how.order)}",
                          field="preprocessing.order")
    if how.mean is None:
        return list(how.order), None
    mean = np.asarray(how.mean, np.float32)
    if mean.shape == (channels,) and channels > 1:
        mean = mean.reshape(channels, *[1] * (blob.num_axes - 2))
    elif mean.size != 1 and mean.shape != blob.shape[1:]:
        raise ConfigError(f"must be one number, one for each of {channels} channels, or of the shape {list(blob.shape[1:])}, "
                          f"got the shape {list(mean.shape)}", field="preprocessing.mean")
    return list(how.order), mean


# ---- the values of a net's blobs on given inputs, and how far others are from them

TOLERANCE = 1e-4    # of the greatest absolute value of an output


def classes(axis):
    return 1, lambda node: node.bottoms[0].shape[axis(node.param)]


INTEGERS = {        # type -> the bottom whose values are integers from 0 on, and how many values there are
    "Embed": (0, lambda node: node.param.embed_param.input_dim), "BatchReindex": (1, lambda node: node.bottoms[0].shape[0]),
    "LSTM": (1, lambda node: 2), "RNN": (1, lambda node: 2), "Filter": (-1, lambda node: 2), "ContrastiveLoss": (2, lambda node: 2),
    "SigmoidCrossEntropyLoss": (1, lambda node: 2), "Accuracy": classes(lambda param: param.accuracy_param.axis),
    "SoftmaxWithLoss": classes(lambda param: param.softmax_param.axis), "HingeLoss": classes(lambda param: 1),
    "InfogainLoss": classes(lambda param: param.infogain_loss_param.axis), "MultinomialLogisticLoss": classes(lambda param: 1)}


class Difference(NamedTuple):
    """Difference of the values of a blob from those of the model.

    Attributes
    ----------
    blob : str
    shape : tuple of int
    absolute : float
        Greatest absolute difference.
    relative : float
        That, divided by the greatest absolute value of the net's blob.
    """

    blob: str
    shape: tuple
    absolute: float
    relative: float

    def __str__(self):
        return (f"{self.blob} {' x '.join(map(str, self.shape))}: differs by at most {self.absolute:.2g}, "
                f"{self.relative:.1g} of the greatest value")


def random_inputs(net):
    """Return arrays of random numbers for the inputs of a net: integers where a layer needs them, else normal numbers.

    Parameters
    ----------
    net : minicaffe.net.net.Net

    Returns
    -------
    dict of str to ndarray
        float32, of the shapes of the inputs.
    """
    rng, made = np.random.default_rng(0), {}
    for blob in net.input_blobs:
        made[blob.name] = rng.normal(0, 1, blob.shape).astype(np.float32)
    origin = {name: name for name in made}
    for node in net.nodes:
        if node.type == "Split" and node.bottoms[0].name in origin:
            origin |= {blob.name: origin[node.bottoms[0].name] for blob in node.tops}
        for i, bottom in enumerate(node.bottoms):
            name = origin.get(bottom.name)
            if name is None:
                continue
            at, count = INTEGERS.get(node.type, (None, None))
            if at is not None and i == at % len(node.bottoms):
                made[name] = rng.integers(0, count(node), made[name].shape).astype(np.float32)
            elif node.type in ("Log", "Power", "MultinomialLogisticLoss"):
                made[name] = np.abs(made[name]) + np.float32(0.5)
    return made


def run_layers(net, inputs):
    """Return (index of the layer, blob) -> value, for all tops of a net; layer by layer, so that none is freed or left out."""
    net.feed(**inputs)
    made = {}
    for i, node in enumerate(net.nodes):
        net.forward_from_to(i, i)
        made.update(((i, blob.name), np.array(blob.data)) for blob in node.tops)
    return made


def run_net(net, inputs):
    """Return the values of all blobs of a net after a forward."""
    return {name: value for (_, name), value in run_layers(net, inputs).items()}


def difference(name, wanted, found):
    """Return the Difference of two arrays; infinite where their shapes or what is not finite differ."""
    finite = np.isfinite(wanted)
    if wanted.shape != found.shape or not np.array_equal(wanted[~finite], found[~finite], equal_nan=True):
        return Difference(name, found.shape, np.inf, np.inf)
    largest = float(np.abs(wanted[finite] - found[finite]).max(initial=0))
    scale = float(np.abs(wanted[finite]).max(initial=0))
    return Difference(name, found.shape, largest, largest / scale if scale else largest)


def compare(net, inputs, preprocessing, target, run):
    """Return the Difference of each output of a net and of its `target`, "model" or "module"; see `minicaffe.onnx.compare`.

    ``run(inputs)`` returns the outputs of the target by name. ``run(inputs, tops)``, with the values of all tops of the net by
    (index of the layer, blob), returns the target's tops by the same, all computed from bottoms that have the net's values.
    """
    names = [blob.name for blob in net.input_blobs]
    if inputs.keys() != set(names):
        raise ConfigError(f"must have an array for each input of the net, {names}, got {sorted(inputs)}", field="inputs")
    inputs = {name: np.array(inputs[name], np.float32, order="C") for name in names}
    given = inputs
    if preprocessing is not None:
        order, mean = checked_preprocessing(net, preprocessing)
        x = inputs[names[0]][:, order] if order else inputs[names[0]]
        given = inputs | {names[0]: (x if mean is None else x - mean) * np.float32(preprocessing.scale)}
    tops = run_layers(net, given)
    wanted = {name: value for (_, name), value in tops.items()}
    found = [difference(name, wanted[name], value) for name, value in run(inputs).items()]
    if all(one.relative <= TOLERANCE for one in found):
        return found
    computed = run(inputs, tops)
    for (i, name), wanted in tops.items():
        one, node = difference(name, wanted, computed.get((i, name), wanted)), net.nodes[i]
        if not one.relative <= TOLERANCE:
            sizes = f", shape {list(one.shape)} in place of {list(wanted.shape)}" if one.shape != wanted.shape else ""
            raise DataError(f"the {target} gives other numbers than the net: layer '{node.name}' ({node.type}) differs first, in "
                            f"'{name}' by {one.absolute:.3g} ({one.relative:.2g} of the greatest){sizes}", file=net.file)
    worst = max(found, key=lambda one: one.relative)
    log.warning("output '%s' of the %s differs by %.3g (%.2g of the greatest), though on equal bottoms each layer gives equal "
                "tops: rounding errors add up, or change what a layer selects", worst.blob, target, worst.absolute, worst.relative)
    return found
