"""The common parts of the exports to ONNX and PyTorch: reading of fields, preprocessing, layers without an exporter."""

import logging
from typing import NamedTuple

import numpy as np

from minicaffe.addons.export.comparison import TOLERANCE, difference, run_layers
from minicaffe.common import TEST
from minicaffe.errors import ConfigError, DataError, Error

UNKNOWN_SIZES = ("DetectionOutput", "Filter")   # types whose tops have a size that depends on values
log = logging.getLogger(__name__)


def registration(table, names):
    """Return a decorator that puts a function into a table under each of the names, in place of an earlier one."""
    def register(function):
        table.update(dict.fromkeys(names, function))
        return function
    return register


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


def check_net(net, known, target, register):
    """Return the output blobs of a net; raise ConfigError if it has none, is in phase TRAIN, or has types without an exporter.

    Parameters are those of `check_types`.
    """
    if net.phase != TEST:
        raise ConfigError("the net is in phase TRAIN; build it for TEST", file=net.file)
    check_types([(node.name, node.type, node.line) for node in net.nodes], net.file, known, target, register)
    outputs = [blob for blob in net.output_blobs if blob not in net.input_blobs]
    for blob in net.output_blobs:
        if blob in net.input_blobs:
            log.warning("no layer reads the last value of input '%s', which is not an output of %s", blob.name, target)
    if not outputs:
        raise ConfigError("the net has no output: its layers have no top that is left for one", file=net.file)
    return outputs


def export_layers(net, values, add):
    """Call ``add(index, node)`` for each layer; raise the first error, with the text of all others.

    `values` gets a name for the tops of a layer that cannot be exported, so that later layers are checked, too.
    """
    errors = []
    for index, node in enumerate(net.nodes):
        if node.type == "Input":
            continue
        try:
            if node.type in ("PriorBox", "PriorBoxClustered", "DummyData"):
                net.forward_from_to(index, index)
            add(index, node)
        except Error as error:
            errors.append(error.at(file=net.file, line=node.line, layer=node.name, layer_type=node.type))
            for blob in node.tops:
                values.setdefault(blob.name, "unknown")
    if errors:
        errors[0].message += "".join(f"\n{error}" for error in errors[1:])
        raise errors[0]


def compare(net, inputs, preprocessing, target, run):
    """Return the Difference of each output of a net and of what it was exported to; it raises what `minicaffe.onnx.compare` does.

    Parameters
    ----------
    net, inputs, preprocessing
        As of `minicaffe.addons.export.onnx.compare`.
    target : str
        "model" or "module", for messages.
    run : callable
        Called with the inputs of the target, returns its outputs by name. Called with the values of all tops of the net, too, by
        (index of the layer, blob): returns the target's tops by the same, all computed from bottoms that have the net's values.
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


def check_types(nodes, file, known, target, register):
    """Raise ConfigError if layers have a type without an exporter; the error names all of them.

    Parameters
    ----------
    nodes : iterable of tuple
        Name, type and line of each layer.
    file : str or None
    known : container of str
        Types that have an exporter.
    target : str
        What the net is exported to, for the message: "a model of ONNX".
    register : str
        The function that registers a type.
    """
    found = [node for node in nodes if node[1] != "Input" and node[1] not in known]
    if not found:
        return
    name, kind, line = found[0]
    if kind == "Python":
        why = (f"{target} cannot call a Python layer; write its formula with other layers, or register a function that exports it "
               f"({register}('Python'))")
    elif kind.endswith("Data"):
        why = f"{target} reads no data; make the deploy net (minicaffe deploy), whose inputs are Input layers"
    else:
        why = f"there is no exporter for this type; register one with {register}('{kind}')"
    others = "".join(f"; also '{other}' ({of})" for other, of, _ in found[1:])
    raise ConfigError(why + others, file=file, line=line, layer=name, layer_type=kind)


def checked_preprocessing(net, how):
    """Return the order and the mean of a Preprocessing of the first input, checked.

    Returns
    -------
    order : list of int
        Empty if the channels stay as they are.
    mean : ndarray or None
        float32, in a shape that is broadcast against a record.

    Raises
    ------
    ConfigError
        If they do not fit the input.
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
