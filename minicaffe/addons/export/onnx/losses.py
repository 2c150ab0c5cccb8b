"""Accuracy and the losses of BVLC Caffe as operations of ONNX, for nets whose labels are inputs."""

import math

import numpy as np
from onnx import TensorProto

from minicaffe.addons.export.onnx.graph import operator
from minicaffe.addons.export.onnx.layers import affine, cast, spatial

LEAST = 1e-20                       # Caffe's kLOG_THRESHOLD
LEAST_FLOAT = 1.17549435e-38        # FLT_MIN
NO_LABEL = np.iinfo(np.int64).min   # what no label is


def to_int64(graph, x):
    return cast(graph, x, TensorProto.INT64)


def total(graph, x):
    """Return the sum of all elements, a scalar."""
    return graph.op("ReduceSum", x, keepdims=0)


def batch_mean(graph, terms, factor=1):
    """Return the sum of all terms, times a factor, divided by the size of the batch."""
    return affine(graph, total(graph, terms), factor / graph.fixed(graph.shape()[0], "the batch of a loss"), 0)


def counted(graph, labels, ignored):
    """Return a bool for each of the labels, int64: whether it is not the ignored one."""
    return graph.op("Not", graph.op("Equal", labels, NO_LABEL if ignored is None else ignored))


def labels_of(graph, labels, axis, ignored):
    """Return the labels of the scores in bottom 0 as int64, 0 where ignored, and 1.0 for each that counts, else 0.0.

    Both have the shape of the scores with size 1 for `axis`, that of the classes.
    """
    scores = graph.shape()
    given = to_int64(graph, graph.reshape(labels, graph.shape(1), [*scores[:axis], 1, *scores[axis + 1:]]))
    counts = counted(graph, given, ignored)
    return graph.op("Where", counts, given, 0), cast(graph, counts)


def class_count(graph, axis):
    """Return the number of classes, the size of an axis of bottom 0."""
    return graph.fixed(graph.shape()[axis], "the number of classes")


def normalized(graph, x, mode, outer, size, valid):
    """Divide a sum by the divisor of a normalisation, at least 1; `valid` is the name of the number of labels that count."""
    if mode == "VALID":
        return graph.op("Div", x, graph.op("Max", valid, 1.0))
    return affine(graph, x, 1 / max(1, {"FULL": size, "BATCH_SIZE": outer, "NONE": 1}[mode]), 0)


@operator("accuracy")
def accuracy(graph, scores, labels, axis, top_k, ignored):
    index, valid = labels_of(graph, labels, axis, ignored)
    # Another class with an equal score counts against; a NaN is not above any.
    reached = cast(graph, graph.op("Not", graph.op("Less", scores, graph.op("GatherElements", scores, index, axis=axis))))
    correct = cast(graph, graph.op("Less", graph.reduce("ReduceSum", reached, [axis]), top_k + 0.5))
    tops = [graph.op("Div", total(graph, graph.op("Mul", correct, valid)), graph.op("Max", total(graph, valid), 1.0))]
    if len(graph.node.tops) > 1:
        count, others = class_count(graph, axis), [other for other in range(len(graph.shape())) if other != axis]
        one_hot = cast(graph, graph.op("Equal", index, np.expand_dims(np.arange(count), others)))
        one_hot = graph.op("Mul", one_hot, valid)
        hits = graph.reduce("ReduceSum", graph.op("Mul", one_hot, correct), others, keepdims=False)
        tops.append(graph.op("Div", hits, graph.op("Max", graph.reduce("ReduceSum", one_hot, others, keepdims=False), 1.0)))
    return tops


@operator("softmax_loss")
def softmax_loss(graph, scores, labels, axis, ignored, mode):
    index, valid = labels_of(graph, labels, axis, ignored)
    probability = graph.op("Softmax", scores, axis=axis)
    log = graph.op("Log", graph.op("Max", graph.op("GatherElements", probability, index, axis=axis), LEAST_FLOAT))
    return class_loss(graph, axis, valid, mode, log, probability)


def class_loss(graph, axis, valid, mode, log, probability):
    """Return the tops of a loss of which each label adds -log, of the labels' shape."""
    outer, inner = (math.prod(spatial(graph, sizes, 0)) for sizes in (graph.shape()[:axis], graph.shape()[axis + 1:]))
    loss = total(graph, graph.op("Mul", graph.op("Neg", log), valid))
    loss = normalized(graph, loss, mode, outer, outer * inner, total(graph, valid))
    return [loss, probability][:len(graph.node.tops)]


@operator("infogain_loss")
def infogain_loss(graph, scores, labels, matrix, axis, ignored, mode):
    index, valid = labels_of(graph, labels, axis, ignored)
    matrix = graph.op("Reshape", matrix, [class_count(graph, axis)] * 2)
    probability = graph.op("Softmax", scores, axis=axis)
    log = graph.op("Log", graph.op("Max", probability, LEAST))
    last = [*(i for i in range(len(graph.shape())) if i != axis), axis]      # classes behind the other axes
    rows = graph.op("Gather", matrix, graph.op("Squeeze", index, [axis]), axis=0)
    terms = graph.op("Mul", rows, graph.op("Transpose", log, perm=last))
    loss = graph.op("Unsqueeze", graph.reduce("ReduceSum", terms, [len(last) - 1], keepdims=False), [axis])
    return class_loss(graph, axis, valid, mode, loss, probability)


def by_record(graph, scores, labels):
    """Return the scores (batch, classes) and the labels (batch, 1) of a loss that has no axis of classes, and the classes."""
    given = graph.shape()
    flat = [graph.fixed(given[0], "the batch of a loss"), math.prod(spatial(graph, given, 1))]
    return graph.reshape(scores, given, flat), to_int64(graph, graph.op("Reshape", labels, [flat[0], 1])), flat[1]


@operator("logistic_loss")
def logistic_loss(graph, probabilities, labels):
    x, index, _ = by_record(graph, probabilities, labels)
    return batch_mean(graph, graph.op("Log", graph.op("Max", graph.op("GatherElements", x, index, axis=1), LEAST)), -1)


@operator("hinge_loss")
def hinge_loss(graph, scores, labels, norm):
    x, index, classes = by_record(graph, scores, labels)
    one_hot = graph.op("Equal", index, np.arange(classes).reshape(1, -1))
    margin = graph.op("Relu", affine(graph, graph.op("Where", one_hot, graph.op("Neg", x), x), 1, 1))
    return batch_mean(graph, graph.op("Mul", margin, margin) if norm == "L2" else margin)


@operator("euclidean_loss")
def euclidean_loss(graph, a, b):
    difference = graph.op("Sub", a, graph.reshape(b, graph.shape(1), graph.shape()))
    return batch_mean(graph, graph.op("Mul", difference, difference), 0.5)


@operator("smooth_l1_loss")
def smooth_l1_loss(graph, a, b, weight=None):
    difference = graph.op("Sub", a, graph.reshape(b, graph.shape(1), graph.shape()))
    if weight is not None:
        difference = graph.op("Mul", difference, graph.reshape(weight, graph.shape(2), graph.shape()))
    size, square = graph.op("Abs", difference), affine(graph, graph.op("Mul", difference, difference), 0.5, 0)
    return batch_mean(graph, graph.op("Where", graph.op("Less", size, 1.0), square, affine(graph, size, 1, -0.5)))


@operator("cross_entropy_loss")
def cross_entropy_loss(graph, x, target, ignored, mode):
    given = graph.shape()
    target = graph.reshape(target, graph.shape(1), given)
    terms, size = graph.op("Sub", graph.op("Softplus", x), graph.op("Mul", x, target)), math.prod(spatial(graph, given, 0))
    valid = cast(graph, counted(graph, to_int64(graph, target), ignored))
    return normalized(graph, total(graph, graph.op("Mul", terms, valid)), mode, given[0], size, total(graph, valid))


@operator("contrastive_loss")
def contrastive_loss(graph, a, b, similar, margin, legacy):
    given, difference = graph.shape(), graph.op("Sub", a, b)
    distance = graph.reduce("ReduceSum", graph.op("Mul", difference, difference), range(1, len(given)), keepdims=False)
    batch = graph.fixed(given[0], "the batch of a loss")
    similar = graph.op("Not", graph.op("Equal", to_int64(graph, graph.op("Reshape", similar, [batch])), 0))
    far = graph.op("Relu", affine(graph, distance if legacy else graph.op("Sqrt", distance), -1, margin))
    far = far if legacy else graph.op("Mul", far, far)
    return batch_mean(graph, graph.op("Where", similar, distance, far), 0.5)
