"""Layer types of forks (minicaffe/addons/forks) as operations of ONNX."""

import numpy as np
from onnx import TensorProto

from minicaffe.addons.export.onnx.graph import exporter
from minicaffe.addons.export.onnx.layers import BACKWARD, standardized
from minicaffe.errors import ConfigError

EPS = 1e-6      # of Normalize with normalize_param: added to the sum of squares, or of absolute values


@exporter("Reverse", "Flip")
def reverse(graph, node):
    """Put the values along axes into reverse order."""
    axes = node.layer.axes()
    count = len(axes)
    return [graph.op("Slice", graph.bottom(), [-1] * count, [BACKWARD] * count, axes, [-1] * count)]


@exporter("ShuffleChannel", "Reorg", "Rearrange")
def rearranged(graph, node):
    """Cut the axes of the bottom into parts, and put these into another order."""
    wanted, (parts, order) = graph.known_top_shape(), node.layer.parts(graph.shape())
    x = graph.op("Transpose", graph.reshape(graph.bottom(), list(graph.shape()), parts), perm=order)
    return [graph.reshape(x, [parts[axis] for axis in order], wanted)]


# ---- pixels

def resized(graph, x, sizes, **how):
    """Return x with the height and width `sizes`, by Resize."""
    whole = graph.op("Concat", graph.op("Slice", graph.op("Shape", x), [0], [2]), np.array(sizes, np.int64), axis=0)
    return graph.op("Resize", x, "", "", whole, **how)


@exporter("Interp")
def interp(graph, node):
    first, last = node.layer.values["pad_beg"], node.layer.values["pad_end"]
    x, given, wanted = graph.bottom(), graph.shape()[2:], graph.known_top_shape()[2:]
    if first or last:
        x = graph.op("Slice", x, [-first] * 2, [size + last for size in given], [2, 3])
    return [resized(graph, x, wanted, mode="linear", coordinate_transformation_mode="align_corners")]


@exporter("Upsample")
def upsample(graph, node):
    given, wanted = list(graph.shape()), graph.known_top_shape()
    if len(node.bottoms) == 1:
        return [resized(graph, graph.bottom(), wanted[2:], mode="nearest", coordinate_transformation_mode="asymmetric",
                        nearest_mode="floor")]
    planes, flat = [*given[:2], given[2] * given[3]], [*wanted[:2], wanted[2] * wanted[3]]
    x, mask = (graph.reshape(graph.bottom(i), given, planes) for i in range(2))
    zeros = graph.op("Expand", 0.0, graph.op("Concat", graph.op("Slice", graph.op("Shape", x), [0], [2]), flat[2:], axis=0))
    y = graph.op("ScatterElements", zeros, graph.op("Cast", mask, to=TensorProto.INT64), x, axis=2)
    return [graph.reshape(y, flat, wanted)]


# ---- functions of elements and channels

@exporter("ReLU6", "ReLUX")
def relu_x(graph, node):
    slope, bound = node.layer.slope, node.layer.bound
    if not slope:
        return [graph.op("Clip", graph.bottom(), 0.0, bound)]
    return [graph.op("Min", graph.op("LeakyRelu", graph.bottom(), alpha=slope), bound)]


# ---- regions

@exporter("ROIPooling")
def roi_pooling(graph, node):
    values = node.layer.values
    if values["pad_ratio"]:
        raise ConfigError("ONNX has no operation for ROIs whose sides move out; set it to 0", field="roi_pooling_param.pad_ratio")
    rois = graph.reshape(graph.bottom(1), list(graph.shape(1)), list(graph.shape(1))[:2])
    return [graph.op("MaxRoiPool", graph.bottom(0), rois, pooled_shape=list(node.tops[0].shape[2:]),
                     spatial_scale=values["spatial_scale"])]


# ---- normalisation and sequences

@exporter("BN")
def bn(graph, node):
    layer, x = node.layer, graph.bottom()
    axes, statistics = len(graph.shape()), []
    if not layer.uses_batch_statistics and not layer.inference:
        parameters = [graph.parameter(i, [blob.count]) for i, blob in enumerate(layer.blobs)]
        return [graph.op("BatchNormalization", x, *parameters, epsilon=layer.eps)]
    if layer.uses_batch_statistics:
        x, *statistics = standardized(graph, x, [0, *range(2, axes)], layer.eps)
    scale, shift = (graph.parameter(i, [layer.blobs[i].count, *[1] * (axes - 2)]) for i in range(2))
    statistics = [graph.op("Reshape", one, [1, -1, 1, 1]) for one, _ in zip(statistics, node.tops[1:])]
    return [graph.op("Add", graph.op("Mul", x, scale), shift), *statistics]


@exporter("ChannelNormalize")
def normalize(graph, node):
    x, squared = graph.bottom(), node.layer.squared
    norm = graph.op("Add", graph.reduce("ReduceSumSquare" if squared else "ReduceL1", x, [1]), EPS)
    norm = graph.op("Sqrt", norm) if squared else norm
    return [graph.op("Div", x, norm), norm][:len(node.tops)]


@exporter("Lstm")
def lstm(graph, node):
    if len(node.bottoms) > 1:
        raise ConfigError("ONNX's LSTM has no sequence indicators: all sequences begin at the first step; remove the bottom",
                          field="bottom[1]")
    layer = node.layer
    x, size = graph.bottom(), layer.values["num_output"]
    if not layer.has_sequence_axis:
        sequences = layer.values["batch_size"]
        x = graph.op("Reshape", x, [-1, sequences, layer.blobs[0].shape[1]])
    order = np.concatenate([np.arange(size) + part * size for part in (0, 2, 1, 3)])    # i, f, o, g to ONNX's i, o, f, c
    w_x, w_h, bias = (np.array(blob.data, np.float32)[order][None] for blob in layer.blobs)
    y, _, _ = graph.op("LSTM", x, w_x, w_h, np.concatenate([bias, np.zeros_like(bias)], axis=1), count=3, hidden_size=size)
    y = graph.op("Squeeze", y, [1])     # the directions
    return [y if layer.has_sequence_axis else graph.op("Reshape", y, [-1, size])]


@exporter("ContinuationIndicator")
def continuation_indicator(graph, node):
    marks = np.ones(node.tops[0].shape, np.float32)
    marks[0] = 0
    return [graph.op("Identity", marks)]
