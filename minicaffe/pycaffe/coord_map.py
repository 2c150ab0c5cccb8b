"""Where a pixel of one Top lies in another: crops for fully convolutional nets (pycaffe ``caffe.coord_map``).

A map is ``(axis, a, b)``: coordinate ``x`` of a layer's bottom is ``a x + b`` of its top, on the axes after `axis`; None means any
axis. `a` and `b` are numbers, or arrays with one entry or one per spatial axis.
"""

import numpy as np

from minicaffe.errors import ConfigError
from minicaffe.pycaffe.net_spec import layers as L

TWO_SIDED = {"pad_h", "pad_w", "kernel_h", "kernel_w", "stride_h", "stride_w"}
IDENTITY = (None, 1, 0)

PASS_THROUGH_LAYERS = ["AbsVal", "BatchNorm", "Bias", "BNLL", "Dropout", "Eltwise", "ELU", "Log", "LRN", "Exp", "MVN", "Power",
                       "ReLU", "PReLU", "Scale", "Sigmoid", "Split", "TanH", "Threshold"]


def window_map(kind, stride, extent, pad):
    """Return scale and shift (a, b) of a layer with windows: of Fractions exactly, of pycaffe's arrays in float64.

    `extent` is the kernel's with dilation. `coord_map` calls this with arrays; Fractions show
    whether an offset is whole.
    """
    middle = (extent - 1) / 2
    return (stride, middle - pad) if kind == "Deconvolution" else (1 / stride, (pad - middle) / stride)


class UndefinedMapException(ConfigError):
    """Raised for a layer whose coordinates have no such map, such as InnerProduct."""


class AxisMismatchException(ConfigError):
    """Raised for two maps that begin at different axes."""


class UnconnectedError(ConfigError, RuntimeError):
    """Raised for two Tops without a common ancestor through layers that have maps."""


class CropError(ConfigError, AssertionError):
    """Raised for a map that no crop can undo, or sizes that are not given for all axes alike (pycaffe asserts there)."""


def conv_params(fn):
    """Return axis, stride, extent of the kernel with its dilation, and pad of a Convolution-like Function.

    Raises CropError if there is no kernel_size, or sizes are given by ``_h`` and ``_w``.
    """
    params = fn.params.get("convolution_param", fn.params)
    given = TWO_SIDED & {*fn.params, *params}
    if given:
        raise CropError(f"give kernel_size, stride and pad as lists instead of {', '.join(sorted(given))}", layer_type=fn.type_name)
    if "kernel_size" not in params:
        raise CropError("has no kernel_size, so its coordinates have no map", layer_type=fn.type_name)
    kernel, dilation, stride, pad = (np.array(params.get(name, default), ndmin=1)
                                     for name, default in (("kernel_size", 0), ("dilation", 1), ("stride", 1), ("pad", 0)))
    return params.get("axis", 1), stride, (kernel - 1) * dilation + 1, pad


def crop_params(fn):
    """Return the first axis that a Crop Function crops, and its offset, an array with one entry or one per axis."""
    params = fn.params.get("crop_param", fn.params)
    return params.get("axis", 2), np.array(params.get("offset", 0), ndmin=1)


def coord_map(fn):
    """Return the map of a Function, from its bottom to its top; raise UndefinedMapException if its type has none."""
    if fn.type_name in ("Convolution", "Pooling", "Im2col", "ConvolutionDepthwise", "DepthwiseConvolution", "Deconvolution"):
        axis, *window = conv_params(fn)
        return axis, *window_map(fn.type_name, *window)
    if fn.type_name in PASS_THROUGH_LAYERS:
        return IDENTITY
    if fn.type_name == "Crop":
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset
    raise UndefinedMapException("the coordinates of this type of layer have no map", layer_type=fn.type_name)


def compose(base_map, next_map):
    """Return the map ``base_map(next_map(x))``; raise AxisMismatchException if both name an axis, and not the same."""
    axis, a, b = base_map
    other, a2, b2 = next_map
    if axis is not None and other is not None and axis != other:
        raise AxisMismatchException(f"maps from axis {axis} and from axis {other} cannot be composed")
    return axis if axis is not None else other, a * a2, a * b2 + b


def inverse(coord_map):
    """Return the map in the other direction, from a top to the bottom."""
    axis, a, b = coord_map
    return axis, 1 / a, -b / a


def _walk_back(top):
    """Yield (Top, map to `top`) of `top` and its ancestors through layers with maps: `coord_map_from_to` finds a common one.

    Of a Crop only the first bottom counts: the second gives a size.
    """
    maps, frontier = {top: IDENTITY}, [top]
    while frontier:
        here = frontier.pop()
        yield here, maps[here]
        fn = here.fn
        try:
            step = coord_map(fn)
        except UndefinedMapException:
            continue
        for bottom in fn.inputs[:1] if fn.type_name == "Crop" else fn.inputs:
            if bottom not in maps:
                maps[bottom] = compose(maps[here], step)
                frontier.append(bottom)


def coord_map_from_to(top_from, top_to):
    """Return the map from coordinates of `top_from` to those of `top_to`, over a common ancestor.

    Raises UnconnectedError, which is a RuntimeError, if there is none.
    """
    from_maps = dict(_walk_back(top_from))
    for top, to_map in _walk_back(top_to):
        if top in from_maps:
            return compose(to_map, inverse(from_maps[top]))
    raise UnconnectedError("the two Tops have no common ancestor through layers whose coordinates have maps; an InnerProduct, "
                           "for one, has none")


def crop(top_from, top_to):
    """Return the Top of a Crop layer, which cuts `top_from` to the size of `top_to` so that they agree pixel by pixel.

    Raises CropError, which is an AssertionError, if the scales differ, or the offset is negative or no whole number.
    """
    axis, a, b = coord_map_from_to(top_from, top_to)
    a, b = np.atleast_1d(a), np.atleast_1d(b)
    if (a != 1).any():
        raise CropError(f"scale mismatch on crop (a = {a}): up- or downsample one of the two first")
    if (b > 0).any():
        raise CropError(f"cannot crop negative offset (b = {b}): pad the layers before")
    if (np.round(b) != b).any():
        raise CropError(f"cannot crop noninteger offset (b = {b})")
    offset = [int(-x) for x in b]
    return L.Crop(top_from, top_to, crop_param={"axis": 2 if axis is None else axis + 1, "offset": offset})
