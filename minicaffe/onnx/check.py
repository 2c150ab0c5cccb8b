"""A net and its model of ONNX on the same inputs: the differences of their outputs, and the first layer that differs."""

import logging
from typing import NamedTuple

import numpy as np

from minicaffe.errors import ConfigError, DataError, DependencyError
from minicaffe.onnx.graph import onnx, value_info

log = logging.getLogger(__name__)

TOLERANCE = 1e-4    # of the greatest absolute value of an output
JUMPS = ("Accuracy", "ArgMax", "DetectionOutput", "Filter", "Threshold")    # types whose tops are no continuous function
INDICES = {"Embed": 0, "BatchReindex": 1}   # type -> the bottom that has indices

LABELLED = {        # type -> the axis of the classes in its first bottom
    "Accuracy": lambda param: param.accuracy_param.axis, "SoftmaxWithLoss": lambda param: param.softmax_param.axis,
    "InfogainLoss": lambda param: param.infogain_loss_param.axis, "HingeLoss": lambda param: 1,
    "MultinomialLogisticLoss": lambda param: 1}


class Difference(NamedTuple):
    """How far the values of a blob are from those of the model.

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


def random_inputs(net, seed=0):
    """Return arrays of random numbers for the inputs of a net: indices where a layer needs them, else normal numbers.

    Parameters
    ----------
    net : minicaffe.net.net.Net
    seed : int

    Returns
    -------
    dict of str to ndarray
        float32, of the shapes of the inputs.
    """
    dice, made = np.random.default_rng(seed), {}
    for blob in net.input_blobs:
        made[blob.name] = dice.normal(0, 1, blob.shape).astype(np.float32)
    origin = {name: name for name in made}
    for node in net.nodes:
        if node.type == "Split" and node.bottoms[0].name in origin:
            origin |= {blob.name: origin[node.bottoms[0].name] for blob in node.tops}
        for i, bottom in enumerate(node.bottoms):
            name = origin.get(bottom.name)
            if name is None:
                continue
            shape = made[name].shape
            if INDICES.get(node.type) == i:
                count = node.param.embed_param.input_dim if node.type == "Embed" else node.bottoms[0].shape[0]
                made[name] = dice.integers(0, count, shape).astype(np.float32)
            elif node.type in ("LSTM", "RNN") and i == 1:
                made[name] = (np.arange(len(made[name]))[:, None] % 3 > 0).astype(np.float32) * np.ones(shape, np.float32)
            elif node.type == "Filter" and i == len(node.bottoms) - 1:
                made[name] = (np.arange(made[name].size) % 2 == 0).astype(np.float32).reshape(shape)
            elif i == 1 and node.type in LABELLED:
                classes = node.bottoms[0].shape[LABELLED[node.type](node.param)]
                made[name] = dice.integers(0, classes, shape).astype(np.float32)
            elif node.type == "ContrastiveLoss" and i == 2 or node.type == "SigmoidCrossEntropyLoss" and i == 1:
                made[name] = dice.integers(0, 2, shape).astype(np.float32)
            elif node.type in ("Log", "Power", "MultinomialLogisticLoss"):
                made[name] = np.abs(made[name]) + np.float32(0.5)
    return made


def compare(net, model, inputs, preprocessing=None):
    """Run a net and its model on the same inputs; return the Difference of each output.

    Parameters
    ----------
    net : minicaffe.net.net.Net
    model : onnx.ModelProto
    inputs : dict of str to array_like
        Of the model; the net gets the first after `preprocessing`.
    preprocessing : Preprocessing, optional

    Raises
    ------
    DataError
        If an output differs by more than 1e-4 of its greatest absolute value, or has another shape. Behind a layer that selects
        (`JUMPS`), layers are compared one by one instead, on equal bottoms.
    DependencyError
        Without onnxruntime.
    """
    names = [blob.name for blob in net.input_blobs]
    if inputs.keys() != set(names):
        raise ConfigError(f"must have an array for each input of the net, {names}, got {sorted(inputs)}", field="inputs")
    inputs = {name: np.ascontiguousarray(value, np.float32) for name, value in inputs.items()}
    given = dict(inputs)
    if preprocessing is not None:
        first = net.input_blobs[0].name
        given[first] = preprocessed(inputs[first], preprocessing)
    wanted = run_net(net, given)
    names = [output.name for output in model.graph.output]
    found = [difference(name, wanted[name], value) for name, value in zip(names, run_model(model, inputs), strict=True)]
    if any(not one.relative <= TOLERANCE for one in found):
        node, one = first_difference(net, model, inputs, wanted)
        if node is not None and node.type in JUMPS:
            _check_alone(net, model, wanted, node)
        else:
            _raise(net, node, one, wanted)
    return found


def _raise(net, node, one, wanted):
    """Raise DataError: the first layer that differs, and how far."""
    if node is None:
        raise DataError("the model gives other numbers than the net in an output alone", file=net.file)
    sizes = f", shape {list(one.shape)} in place of {list(wanted[one.blob].shape)}" if one.shape != wanted[one.blob].shape else ""
    raise DataError(f"the model gives other numbers than the net: layer '{node.name}' ({node.type}) differs first, in '{one.blob}' "
                    f"by {one.absolute:.3g} ({one.relative:.2g} of the greatest){sizes}", file=net.file)


def _check_alone(net, model, wanted, first):
    """Compare each layer from `first` on with bottoms that have the net's values: its rounding errors may decide otherwise."""
    extractor = onnx.utils.Extractor(model)
    known = {info.name for info in model.graph.input} | {value for node in model.graph.node for value in node.output}
    for node in net.nodes[net.layer_names.index(first.name):]:
        names = [blob.name for blob in node.tops if blob.name in known]
        given = {blob.name: wanted[blob.name] for blob in node.bottoms if blob.name in known}
        if not names or names == list(given):
            continue
        for one in _compared(extractor.extract_model(list(given), names), names, given, wanted):
            if not one.relative <= TOLERANCE:
                _raise(net, node, one, wanted)
    log.warning("the outputs behind layer '%s' (%s) differ, as rounding errors decide what it selects; on equal bottoms each layer "
                "gives equal tops", first.name, first.type)


def _compared(model, names, inputs, wanted):
    return [difference(name, wanted[name], value) for name, value in zip(names, run_model(model, inputs, names), strict=True)]


def preprocessed(x, how):
    """Return what `Preprocessing` computes of an input."""
    x = x[:, list(how.order)] if how.order else x
    if how.mean is not None:
        mean = np.asarray(how.mean, np.float32)
        x = x - (mean.reshape(-1, *[1] * (x.ndim - 2)) if mean.ndim == 1 and mean.size > 1 else mean)
    return x * np.float32(how.scale)


def run_net(net, inputs):
    """Return the values of all blobs of a net after a forward, layer by layer so that none is freed or left out."""
    net.feed(**inputs)
    made = {}
    for i, node in enumerate(net.nodes):
        net.forward_from_to(i, i)
        made.update((blob.name, np.array(blob.data)) for blob in node.tops)
    return made


def run_model(model, inputs, outputs=None):
    """Return the outputs of a model by onnxruntime."""
    try:
        import onnxruntime
    except ImportError as error:
        raise DependencyError(f"onnxruntime is needed to compare ({error}); pip install \"minicaffe[onnx]\", or leave the "
                              "comparison out (--no-check)") from error
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return session.run(outputs, {info.name: inputs[info.name] for info in session.get_inputs()})


def difference(name, wanted, found):
    """Return the Difference of two arrays; infinite where their shapes or what is not finite differ."""
    if wanted.shape != found.shape:
        return Difference(name, found.shape, np.inf, np.inf)
    if not wanted.size:
        return Difference(name, found.shape, 0.0, 0.0)
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], found[~finite], equal_nan=True):
        return Difference(name, found.shape, np.inf, np.inf)
    apart = float(np.abs(wanted - found, where=finite, out=np.zeros_like(wanted)).max())
    scale = float(np.abs(wanted, where=finite, out=np.zeros_like(wanted)).max())
    return Difference(name, found.shape, apart, apart / scale if scale else apart)


def first_difference(net, model, inputs, wanted):
    """Return the first layer of which a top differs, and its Difference; (None, None) if none does."""
    made = {output for node in model.graph.node for output in node.output}
    names = list(dict.fromkeys(blob.name for node in net.nodes for blob in node.tops if blob.name in made))
    probe = type(model)()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(value_info(name, None) for name in names)
    for one in _compared(probe, names, inputs, wanted):
        if not one.relative <= TOLERANCE:
            return [node for node in net.nodes if any(blob.name == one.blob for blob in node.tops)][-1], one
    return None, None
