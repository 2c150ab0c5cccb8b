"""The common parts of the exports to ONNX and PyTorch: windows, preprocessing, errors for layers that cannot be exported."""

from typing import NamedTuple

import numpy as np

from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2

# Types whose tops are no continuous function of the bottoms: a rounding error may change a top by any amount.
DISCONTINUOUS_TYPES = ("Accuracy", "ArgMax", "DetectionOutput", "Filter", "Threshold")
POOLING = caffe_pb2.PoolingParameter


def kind_of(node):
    """Return the name by which exporters of a node's layer are registered: its type, or "Normalize with normalize_param"."""
    return getattr(node.layer, "variant", node.type)


def axis_of(axis, shape):
    """Return an axis counted from the front."""
    return axis + len(shape) if axis < 0 else axis


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


def preprocessed(x, how):
    """Return the input x, preprocessed as `how`, a `Preprocessing`, defines."""
    x = x[:, list(how.order)] if how.order else x
    if how.mean is not None:
        mean = np.asarray(how.mean, np.float32)
        x = x - (mean.reshape(-1, *[1] * (x.ndim - 2)) if mean.ndim == 1 and mean.size > 1 else mean)
    return x * np.float32(how.scale)


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
