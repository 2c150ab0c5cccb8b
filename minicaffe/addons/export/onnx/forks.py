"""Layer types of forks (minicaffe/addons/forks), and DetectionOutput of SSD, as operations of ONNX."""

import numpy as np
from onnx import TensorProto

from minicaffe.addons.export.onnx.graph import exporter
from minicaffe.addons.export.onnx.layers import BACKWARD, standardized
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2

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


# ---- DetectionOutput: decoded boxes, NonMaxSuppression, the best boxes of each picture

CORNER, CENTER_SIZE = caffe_pb2.PriorBoxParameter.CORNER, caffe_pb2.PriorBoxParameter.CENTER_SIZE
LOWEST, LOW = -3.4e38, -3e38    # the score of a box that is not to be selected; a threshold above it


def corners(graph, x):
    """Return two columns each of boxes (..., 4): both corners, or centre and size."""
    return graph.op("Split", x, np.array([2, 2], np.int64), count=2, axis=-1)


def decode(graph, p, codes, priors):
    """Return the boxes (..., 4) of the codes (..., 4) for prior boxes and variances (2, P, 1, 4)."""
    boxes = graph.op("Gather", priors, 0, axis=0)
    if not p.variance_encoded_in_target:
        codes = graph.op("Mul", codes, graph.op("Gather", priors, 1, axis=0))
    if p.code_type == CORNER:
        return graph.op("Add", boxes, codes)
    low, high = corners(graph, boxes)
    sizes = graph.op("Sub", high, low)
    if p.code_type != CENTER_SIZE:
        return graph.op("Add", boxes, graph.op("Mul", codes, graph.op("Concat", sizes, sizes, axis=-1)))
    shifts, factors = corners(graph, codes)
    centres = graph.op("Add", graph.op("Mul", shifts, sizes), graph.op("Mul", graph.op("Add", low, high), 0.5))
    halves = graph.op("Mul", graph.op("Mul", graph.op("Exp", factors), sizes), 0.5)
    return graph.op("Concat", graph.op("Sub", centres, halves), graph.op("Add", centres, halves), axis=-1)


def candidates(graph, p, scores, images, classes, priors):
    """Return the scores (N, classes, P), `LOWEST` for the background and all but the `top_k` of a class; and the threshold."""
    threshold = p.confidence_threshold if p.HasField("confidence_threshold") else LOW
    if p.background_label_id >= 0:
        background = np.arange(classes).reshape(1, classes, 1) == p.background_label_id
        scores = graph.op("Where", background, LOWEST, scores)
    if p.nms_param.HasField("top_k") and 0 <= p.nms_param.top_k < priors:
        best, where = graph.op("TopK", scores, [p.nms_param.top_k], count=2, axis=2)
        scores = graph.op("ScatterElements", np.full((images, classes, priors), LOWEST, np.float32), where, best, axis=2)
    return scores, threshold


@exporter("DetectionOutput")
def detection_output(graph, node):
    """Decode the boxes, suppress overlapping boxes of each class, keep the best `keep_top_k` of each picture.

    The top (1, 1, boxes, 7) has the columns picture, class, score and the four sides of the box, as in Caffe.
    """
    p = node.param.detection_output_param
    if p.nms_param.eta < 1 and p.nms_param.nms_threshold > 0.5:
        raise ConfigError("an adaptive threshold has no operation in ONNX; set it to 1",
                          field="detection_output_param.nms_param.eta")
    images = graph.fixed(graph.shape()[0], "the number of pictures of a DetectionOutput")
    classes, shared = p.num_classes, p.share_location
    priors = graph.shape(2)[2] // 4
    prior = graph.op("Reshape", graph.bottom(2), [2, priors, 1, 4])
    codes = graph.op("Reshape", graph.bottom(0), [images, priors, 1 if shared else classes, 4])
    boxes = decode(graph, p, codes, prior)
    scores = graph.op("Transpose", graph.op("Reshape", graph.bottom(1), [images, priors, classes]), perm=[0, 2, 1])
    scores, threshold = candidates(graph, p, scores, images, classes, priors)
    # Each class with boxes of its own is a picture of one class to NonMaxSuppression.
    boxes = graph.op("Reshape", graph.op("Transpose", boxes, perm=[0, 2, 1, 3]), [-1, priors, 4])
    low, high = corners(graph, boxes)
    areas = graph.op("Concat", low, graph.op("Max", low, high), axis=-1)    # sides that are exchanged: no area, which overlaps none
    chosen = graph.op("NonMaxSuppression", areas, scores if shared else graph.op("Reshape", scores, [-1, 1, priors]),
                      [priors], [float(p.nms_param.nms_threshold)], [float(threshold)])
    if shared:
        image, label, box = (graph.op("Gather", chosen, column, axis=1) for column in range(3))
    else:
        both, box = (graph.op("Gather", chosen, column, axis=1) for column in (0, 2))
        image, label = graph.op("Div", both, classes), graph.op("Mod", both, classes)
    columns = [graph.op("Unsqueeze", column, [1]) for column in (image, label, box)]
    score = graph.op("GatherND", scores, graph.op("Concat", *columns, axis=1))
    owner = columns[0] if shared else graph.op("Unsqueeze", both, [1])
    sides = graph.op("GatherND", boxes, graph.op("Concat", owner, columns[2], axis=1))
    rows = graph.op("Concat", *[graph.op("Cast", column, to=TensorProto.FLOAT) for column in columns[:2]],
                    graph.op("Unsqueeze", score, [1]), sides, axis=1)
    if p.keep_top_k >= 0:
        rows = best_of_each(graph, rows, images, p.keep_top_k)
    rows = with_placeholders(graph, rows, images)
    return [graph.op("Unsqueeze", rows, [0, 1])]


def best_of_each(graph, rows, images, count):
    """Return the `count` rows of each picture that have the highest scores, in the order of `rows`."""
    kept = []
    for image in range(images):
        image_rows = rows
        if images > 1:
            number = graph.op("Gather", rows, 0, axis=1)
            image_rows = graph.op("Compress", rows, graph.op("Equal", number, float(image)), axis=0)
        score = graph.op("Gather", image_rows, 2, axis=1)
        least = graph.op("Min", graph.op("Shape", score), [count])
        _, where = graph.op("TopK", score, least, count=2, axis=0)
        where, _ = graph.op("TopK", where, least, count=2, axis=0, largest=0)
        kept.append(graph.op("Gather", image_rows, where, axis=0))
    return graph.op("Concat", *kept, axis=0) if len(kept) > 1 else kept[0]


def with_placeholders(graph, rows, images):
    """Return `rows`; if there are none, a row for each picture with its number and -1 in the other columns, as in Caffe."""
    nothing = np.full((images, 7), -1, np.float32)
    nothing[:, 0] = range(images)
    count = graph.op("Slice", graph.op("Shape", rows), [0], [1])
    wanted = graph.op("Where", graph.op("Equal", count, 0), images, [0])
    return graph.op("Concat", rows, graph.op("Slice", nothing, [0], wanted, [0]), axis=0)
