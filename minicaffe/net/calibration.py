"""Ranges of a net's activations, and of its weights, for toolchains that compute in int8 (net/activation_range.py).

The data are run twice: the first pass finds the ranges, the second fills the histograms. The net runs layer by layer, and a blob
is measured right after each layer that writes it. So a blob that a ReLU overwrites in place has two values: what the convolution
wrote, ``conv1/conv1``, and what the ReLU left, ``conv1``. The last has the blob's name, as in models of ONNX (onnx/graph.py). The
input of a quantized layer is what its bottom holds when the layer runs.

Memory, besides the net and a batch: 16 KiB for each value, and some 40 MiB while one is measured.

What this does not do: it computes nothing in int8, and it changes no weights.
"""

import numbers
from typing import NamedTuple

import numpy as np

from minicaffe.common import TEST
from minicaffe.errors import ConfigError, DataError, ShapeError, WrongTypeError, check_type, float_of, shown
from minicaffe.net.activation_range import Value
from minicaffe.net.comparison import INDICES, LABELLED
from minicaffe.net.fold import PRODUCTS
from minicaffe.net.net import Net
from minicaffe.net.weights import listed

PERCENTILE = 99.99
SHOWN = 6           # names in a note
WORSE = 6           # dB by which KL's range may be worse than the whole range without a note
RESULTS = ("Accuracy", "ArgMax", "DetectionOutput", "DetectionEvaluate", "PriorBox")    # types whose tops are no activations


class QuantizedLayer(NamedTuple):
    """A layer whose input and weights a toolchain quantizes.

    Attributes
    ----------
    name, type : str
    input : Value
        What its first bottom holds when it runs.
    inputs : int
        How many bottoms it has.
    groups : int
        Of a convolution; 1 for an inner product.
    small_window : bool
        Whether it is a convolution with one group, of 3 x 3 with stride and dilation 1; ncnn quantizes its weights to 6 bits.
    low, high : ndarray of float32, shape (M,)
        The least and greatest weight of each of M output channels.
    """

    name: str
    type: str
    input: Value
    inputs: int
    groups: int
    small_window: bool
    low: np.ndarray
    high: np.ndarray

    @property
    def absmax(self):
        """ndarray, shape (M,): the greatest absolute weight of each output channel."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


class Calibration(NamedTuple):
    """What `calibrate` returns.

    Attributes
    ----------
    values : dict of str to Value
        All values of the net by name, in the order in which they are written.
    layers : list of QuantizedLayer
    batches : int
    percentile : float
    notes : list of str
        What is special about values and layers, and what was done, a line for each kind.
    """

    values: dict
    layers: list
    batches: int
    percentile: float
    notes: list


def calibrate(net, batches, percentile=PERCENTILE, report=None):
    """Measure the activations of a net, and the weights of its convolutions and inner products, for int8.

    Parameters
    ----------
    net : minicaffe.net.net.Net
        In phase TEST, with trained weights. All layers run, one by one.
    batches : iterable of dict of str to array_like, or int
        The inputs by name, of the shapes of the net's inputs; the first axis may be any. It is run through twice, so an iterator
        is an error. Of a net that reads its own data the number of batches; the second pass begins at the same record.
    percentile : float
        Above 0, at most 100.
    report : callable, optional
        Called after each batch with the name of the pass, how many batches it has run, and of how many (0: not known).

    Returns
    -------
    Calibration

    Raises
    ------
    ConfigError
        For a net in phase TRAIN, without a layer to quantize, or with inputs for which there are no data; for no batch.
    ShapeError
        For an array that has another shape than the input.
    DataError
        For weights that are not finite.
    """
    check_type(net, Net, "net", "a net, such as minicaffe.Net(file, minicaffe.TEST)")
    percentile = float_of(percentile, "percentile")
    if not 0 < percentile <= 100:
        raise ConfigError(f"must be above 0 and at most 100, got {percentile:g}", field="percentile")
    if net.phase != TEST:
        raise ConfigError("the net is in phase TRAIN; build it for TEST", file=net.file)
    if isinstance(batches, numbers.Integral) and not isinstance(batches, bool):
        batches = int(batches)
    _check_batches(net, batches)
    written, layers = _plan(net)
    shapes = [blob.shape for blob in net.input_blobs]
    states = [(layer, state) for layer in net.layers if (state := layer.get_state()) is not None]
    try:
        count = _run(net, batches, written, Value.add_range, report, "range")
        for layer, state in states:     # sources begin at the same record, recurrent layers with the same state
            layer.set_state(state)
        again = _run(net, batches, written, Value.add_histogram, report, "histogram")
        if again != count:
            raise ConfigError(f"gave {again} batches in the second pass, {count} in the first; give a list", field="batches")
    finally:
        for blob, shape in zip(net.input_blobs, shapes):
            if blob.shape != shape:
                blob.reshape(*shape)
    values = {value.name: value for some in written for value in some}
    for value in values.values():
        if value.role == "activation":
            value.find_thresholds(percentile)
    return Calibration(values, layers, count, percentile, _notes(list(values.values()), layers))


def _run(net, batches, written, measure, report, name):
    """Run a net on all batches and apply `measure` to each Value when it is there; return how many batches there were."""
    own, done = isinstance(batches, int), 0
    total = batches if own else len(batches) if hasattr(batches, "__len__") else 0
    for batch in range(batches) if own else batches:
        if not own:
            _feed(net, batch)
        for i, node in enumerate(net.nodes):
            net.forward_from_to(i, i)
            for value, blob in zip(written[i], node.tops):
                measure(value, blob.cpu_data)
        done += 1
        if report is not None:
            report(name, done, total)
    if not done:
        raise ConfigError("there are none; give at least one", field="batches")
    return done


def _check_batches(net, batches):
    """Raise an Error if `batches` do not fit the net's way to get its data."""
    if isinstance(batches, int) and not isinstance(batches, bool):
        if net.input_blobs:
            raise ConfigError(f"is a number, and nothing fills the input '{net.input_blobs[0].name}'; give arrays for the inputs",
                              file=net.file, field="batches")
        if batches < 1:
            raise ConfigError(f"must be at least 1, got {batches}", field="batches")
        return
    if not hasattr(batches, "__iter__") or isinstance(batches, (str, bytes, dict)) or hasattr(batches, "__next__"):
        raise WrongTypeError("must be a list of dicts of arrays, or another object that can be run through twice, or of a net with "
                             f"its own data the number of batches, got {shown(batches)}", field="batches")
    if not net.input_blobs:
        raise ConfigError("the net reads its data itself; give the number of batches", file=net.file, field="batches")


def _feed(net, batch):
    """Copy a batch to the inputs, which get the length of its first axis."""
    check_type(batch, dict, "batches", "dicts of arrays by the names of the inputs")
    names = [blob.name for blob in net.input_blobs]
    if set(batch) != set(names):
        raise ConfigError(f"each must have the inputs {', '.join(names)}, got {', '.join(map(str, batch)) or 'none'}",
                          field="batches")
    for blob in net.input_blobs:
        shape = np.shape(batch[blob.name])
        if len(shape) != len(blob.shape) or shape[1:] != blob.shape[1:] or not shape[:1] != (0,):
            raise ShapeError(f"must be (any, {', '.join(map(str, blob.shape[1:]))}) as the input, got {shape}", file=net.file,
                             field=blob.name)
        if shape != blob.shape:
            blob.reshape(*shape)
    net.feed(**batch)


def _plan(net):
    """Return the Values that each node writes, and the quantized layers."""
    last = {blob.name: node for node in net.nodes for blob in node.tops}
    present, readers, written, layers, taken = {}, {}, [], [], set(last)
    for node in net.nodes:
        for i, bottom in enumerate(node.bottoms if node.type not in ("Split", "Silence") else ()):
            if bottom.name in present:
                readers[present[bottom.name]].append((node, i))
        if node.type in PRODUCTS:
            layers.append((node, present[node.bottoms[0].name]))
        some = []
        for blob in node.tops:
            if node.type == "Split":
                present[blob.name] = present[node.bottoms[0].name]
                continue
            name = blob.name if last[blob.name] is node else f"{blob.name}/{node.name}"
            while name in taken and name != blob.name:
                name += "_"
            taken.add(name)
            present[blob.name] = value = Value(name, node, "activation")
            readers[value] = []
            some.append(value)
        written.append(some)
    if not layers:
        raise ConfigError(f"has no layer to quantize, which are {', '.join(PRODUCTS)}", file=net.file)
    for node, some in zip(net.nodes, written):
        for i, value in enumerate(some):
            if node.type in RESULTS or node.type.endswith("Loss"):
                value.role = "result"
            elif not node.bottoms and (all(_is_label(*one) for one in readers[value]) if readers[value] else i):
                value.role = "label"
    return written, [_layer(node, value, net.file) for node, value in layers]


def _is_label(node, bottom):
    """Whether a layer takes a bottom as labels, indices or sequence indicators."""
    return (INDICES.get(node.type) == bottom or bottom and (node.type.endswith("Loss") or node.type in LABELLED)
            or node.type in ("LSTM", "RNN", "DetectionEvaluate") and bottom == 1
            or node.type == "Filter" and bottom == len(node.bottoms) - 1)


def _layer(node, value, file):
    """Return the QuantizedLayer of a node."""
    param, weight = node.param.convolution_param, node.layer.blobs[0].cpu_data
    if not np.isfinite(weight).all():
        raise DataError(f"has {int(weight.size - np.isfinite(weight).sum())} values that are not finite; train the net again",
                        file=file, layer=node.name, layer_type=node.type, field="blobs[0]")
    groups, small = 1, False
    if node.type == "InnerProduct":
        rows = weight.T if node.param.inner_product_param.transpose else weight
    elif node.type == "Deconvolution":      # (inputs, outputs / groups, ...)
        groups = param.group
        rows = np.moveaxis(weight.reshape(groups, len(weight) // groups, weight.shape[1], -1), 2, 1)
        rows = rows.reshape(groups * weight.shape[1], -1)
    else:
        groups = param.group if node.type == "Convolution" else len(weight)
        rows = weight.reshape(len(weight), -1)
        steps = {*param.stride, *param.dilation, param.stride_h or 1, param.stride_w or 1}
        small = node.type == "Convolution" and groups == 1 and weight.shape[2:] == (3, 3) and steps == {1}
    return QuantizedLayer(node.name, node.type, value, len(node.bottoms), groups, small, rows.min(1), rows.max(1))


def _notes(values, layers):
    """Return the lines about values that are special, one for each kind."""
    active = [value for value in values if value.role == "activation"]
    several = [layer for layer in layers if layer.inputs > 1]
    inputs = {layer.input.name: layer.input for layer in layers if layer.input.thresholds}
    ratios = {name: (value.snr("kl"), value.snr("max")) for name, value in inputs.items() if value.absmax}
    empty = [(layer.name, count) for layer in layers if (count := int((layer.absmax == 0).sum()))]
    kinds = {
        "no activations, so not quantized": [
            f"{value.name} ({'label or index' if value.role == 'label' else value.layer_type}"
            + (f", {value.min:g} to {value.max:g})" if value.count else ")") for value in values if value.role != "activation"],
        "values that are not finite, which are left out of the range": [
            f"{value.name} ({value.nan} NaN, {value.infinite} infinite)" for value in active
            if value.count and value.nan + value.infinite],
        "without any finite value, so without a line in the tables, which leaves the layers in float": [
            value.name for value in active if not value.count],
        "always zero, so the range is taken as 1": [value.name for value in active if value.count and not value.absmax],
        f"KL's range cuts off so much that the expected ratio is more than {WORSE} dB worse than that of the whole range; method "
        "max or percentile may be better": [f"{name} ({kl:.1f} dB, {whole:.1f} dB)" for name, (kl, whole) in ratios.items()
                                        if kl < whole - WORSE],
        "several bottoms, of which the range is that of the first": [f"layer {layer.name}" for layer in several],
        "output channels whose weights are all zero, so the range is taken as 1": [f"{count} of {name}" for name, count in empty]}
    return [f"{text}: {listed(names, shown=SHOWN)}" for text, names in kinds.items() if names]
