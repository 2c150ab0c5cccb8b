"""The common parts of the exports to ONNX and PyTorch: reading of fields, preprocessing, layers without an exporter."""

import logging
import math
from typing import NamedTuple

import numpy as np

from minicaffe.common import TEST
from minicaffe.errors import ConfigError, DataError, Error
from minicaffe.layer import layer_class
from minicaffe.addons.export.comparison import TOLERANCE, run_net
from minicaffe.proto import caffe_pb2

# Types whose tops are no continuous function of the bottoms: a rounding error may change a top by any amount.
DISCONTINUOUS_TYPES = ("Accuracy", "ArgMax", "DetectionOutput", "Filter", "Threshold")
UNKNOWN_SIZES = ("DetectionOutput", "Filter")   # types whose tops have a size that depends on values
POOLING = caffe_pb2.PoolingParameter
LOSS = caffe_pb2.LossParameter
log = logging.getLogger(__name__)


def registration(table, names):
    """Return a decorator that puts a function into a table under each of the names, in place of an earlier one."""
    def register(function):
        table.update(dict.fromkeys(names, function))
        return function
    return register


def kind_of(node):
    """Return the type of a node's layer, or what a fork computes in place of it, such as "Normalize with normalize_param"."""
    registered = layer_class(node.type)
    made = registered.for_param(node.param)
    return node.type if made is registered else f"{node.type} with {made.message}"


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


def axis_of(axis, shape):
    """Return an axis counted from the front."""
    return axis + len(shape) if axis < 0 else axis


def older_axis(param, older):
    """Return `axis` of a layer's message, or what its older field gives."""
    return getattr(param, older) if param.HasField(older) else param.axis


def unit_axes(param, shape, own):
    """Return how many axes of size 1 come after a scale of the shape `own` that is broadcast from `param.axis` on."""
    return len(shape) - axis_of(param.axis, shape) - len(own) if own else 0


def permutation(node, count):
    """Return the order of all axes that a Permute gives."""
    order = list(node.param.permute_param.order)
    return order + [axis for axis in range(count) if axis not in order]


def repeats(node, count):
    """Return for each axis how often a Tile repeats it."""
    return [node.param.tile_param.tiles if i == node.param.tile_param.axis % count else 1 for i in range(count)]


def crop_starts(node):
    """Return the first axis that a Crop crops, and the first index along each axis from there on."""
    p, shape = node.param.crop_param, node.bottoms[0].shape
    axis = axis_of(p.axis, shape)
    count = len(shape) - axis
    return axis, list(p.offset) * (count if len(p.offset) == 1 else 1) or [0] * count


def log_of(base):
    """Return the natural logarithm of the base of an Exp or Log layer; -1 means e."""
    return 1 if base == -1 else math.log(base)


def constant_power(p):
    """Return the value of the top of a Power whose bottom does not count; None if it does."""
    if p.power == 0:
        return 1.0
    return float(np.float32(p.shift) ** np.float32(p.power)) if p.scale == 0 else None


def batch_statistics(mean, variance, weight):
    """Return mean and variance of a BatchNorm, which Caffe stores as sums with the sum of their weights."""
    factor = 1 / float(weight.item()) if weight.item() else 0.0
    return np.float64(mean) * factor, np.float64(variance) * factor


def check_dummy(node):
    """Raise ConfigError for a DummyData whose tops are not the same in each run."""
    if any(filler.type != "constant" for filler in node.param.dummy_data_param.data_filler):
        raise ConfigError("fills its tops with random numbers in each run; write an Input layer in its place",
                          field="dummy_data_param")


def normalization(p, default):
    """Return the normalization of a LossParameter."""
    if p.HasField("normalization"):
        return p.normalization
    return (LOSS.VALID if p.normalize else LOSS.BATCH_SIZE) if p.HasField("normalize") else default


def ignored(p):
    """Return the label that an AccuracyParameter or LossParameter leaves out, or None."""
    return p.ignore_label if p.HasField("ignore_label") else None


def convolution_windows(node, shape):
    """Return the axis of the channels of a convolution of a bottom, its `windows`, and the number of its groups."""
    param = node.param.convolution_param
    axis = axis_of(param.axis, shape)
    return axis, windows(param, len(shape) - axis - 1), shape[axis] if node.type == "ConvolutionDepthwise" else param.group


def windows(param, count):
    """Return kernel, stride, pad and dilation of a ConvolutionParameter, each a list with one number for each of `count` axes."""
    def each(name, default):
        if count == 2 and (param.HasField(f"{name}_h") or param.HasField(f"{name}_w")):
            return [getattr(param, f"{name}_h"), getattr(param, f"{name}_w")]
        given = list(getattr(param, "kernel_size" if name == "kernel" else name)) or [default]
        return given * count if len(given) == 1 else given
    dilation = list(param.dilation) or [1]
    return each("kernel", 0), each("stride", 1), each("pad", 0), dilation * count if len(dilation) == 1 else dilation


def pads(sizes, results, kernel, stride, pad, dilation=None):
    """Return ONNX's `pads` (begins, then ends) for planes of the sizes `results`, if the number of windows is rounded down."""
    begin, end = list(pad), []
    for i, (size, result) in enumerate(zip(sizes, results, strict=True)):
        reach = (kernel[i] - 1) * (dilation[i] if dilation else 1) + 1
        end.append(max(0, (result - 1) * stride[i] + reach - size - pad[i]))
    return begin + end


def pool_windows(param, sizes):
    """Return kernel, stride and pad of a PoolingParameter for planes of two `sizes`, each a list of two numbers."""
    def each(name, value):
        return [getattr(param, f"{name}_h"), getattr(param, f"{name}_w")] if param.HasField(f"{name}_h") else [value, value]
    kernel = list(sizes) if param.global_pooling else each("kernel", param.kernel_size)
    return kernel, each("stride", param.stride), each("pad", param.pad)


def pyramid_windows(param, sizes):
    """Yield (pooling method, sizes of its top, kernel, pad) for each level of an SPPParameter; the stride is the kernel."""
    method = {param.MAX: POOLING.MAX, param.AVE: POOLING.AVE, param.STOCHASTIC: POOLING.STOCHASTIC}[param.pool]
    for level in range(param.pyramid_height):
        bins = 2 ** level
        kernel = [-(-size // bins) for size in sizes]
        pad = [(k * bins - size + 1) // 2 for k, size in zip(kernel, sizes)]
        results = []
        for size, k, begin in zip(sizes, kernel, pad):
            count = -(-(size + 2 * begin - k) // k) + 1
            results.append(count - 1 if any(pad) and (count - 1) * k >= size + begin else count)
        yield method, results, kernel, pad


class Preprocessing(NamedTuple):
    """How an input is preprocessed: ``(x[:, order] - mean) * scale``.

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
    check_types([(node.name, kind_of(node), node.line) for node in net.nodes], net.file, known, target, register)
    outputs = [blob for blob in net.output_blobs if blob not in net.input_blobs]
    for blob in net.output_blobs:
        if blob in net.input_blobs:
            log.warning("no layer reads the last value of input '%s', which is no output of %s", blob.name, target)
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


def run_on(net, inputs, preprocessing):
    """Return the inputs of what a net was exported to, as float32, those of the net, and the values of its blobs on them.

    Raises ConfigError unless there is an array for each input. `preprocessing` is a Preprocessing of the first, or None.
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
    return inputs, given, run_net(net, given)


def check_layers(net, found, layers, target):
    """Raise DataError for outputs that differ, unless only rounding errors before a layer of `DISCONTINUOUS_TYPES` are the reason.

    Parameters
    ----------
    net : Net
    found : list of Difference
        Of the outputs.
    layers : iterable of tuple
        Node and Difference of each top of each layer, computed from bottoms that have the net's values.
    target : str
        "model" or "module", for the message.
    """
    for node, one in layers:
        if not one.relative <= TOLERANCE:
            wanted = next(blob.shape for blob in node.tops if blob.name == one.blob)
            sizes = f", shape {list(one.shape)} in place of {list(wanted)}" if one.shape != wanted else ""
            raise DataError(f"the {target} gives other numbers than the net: layer '{node.name}' ({node.type}) differs first, in "
                            f"'{one.blob}' by {one.absolute:.3g} ({one.relative:.2g} of the greatest){sizes}", file=net.file)
    first, affected = None, set()   # the first layer of such a type, and the blobs that depend on such layers
    for node in net.nodes:
        if node.type in DISCONTINUOUS_TYPES or affected & {blob.name for blob in node.bottoms}:
            first = first or node
            affected |= {blob.name for blob in node.tops}
    worst = max(found, key=lambda one: one.relative)
    if any(not one.relative <= TOLERANCE and one.blob not in affected for one in found):
        raise DataError(f"output '{worst.blob}' of the {target} differs by {worst.absolute:.3g} ({worst.relative:.2g} of the "
                        "greatest), though each layer gives equal tops on equal bottoms: rounding errors add up; --no-check writes "
                        f"the {target} without the comparison", file=net.file)
    log.warning("the outputs after layer '%s' (%s) differ, as rounding errors decide what it selects; on equal bottoms each layer "
                "gives equal tops", first.name, first.type)


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
