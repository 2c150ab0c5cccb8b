"""Accuracy and the losses of BVLC Caffe as operations of ONNX, for nets whose labels are inputs."""

import math

import numpy as np
from onnx import TensorProto

from minicaffe.addons.export.exporting import LOSS, axis_of, ignored, normalization
from minicaffe.addons.export.onnx.graph import exporter
from minicaffe.addons.export.onnx.layers import affine, spatial
from minicaffe.proto.binary import read_blob

LEAST = 1e-20                       # Caffe's kLOG_THRESHOLD
LEAST_FLOAT = 1.17549435e-38        # FLT_MIN


def ints(graph, x):
    return graph.op("Cast", x, to=TensorProto.INT64)


def floats(graph, x):
    return graph.op("Cast", x, to=TensorProto.FLOAT)


def total(graph, x):
    """Return the sum of all elements, a scalar."""
    return graph.op("ReduceSum", x, keepdims=0)


class Labels:
    """The labels of the scores in bottom 0, with one axis of size 1 in place of that of the classes.

    Attributes
    ----------
    index : str
        int64, 0 where ignored.
    valid : str or None
        1 where a label counts, else 0; None if all count.
    """

    def __init__(self, graph, axis, ignored=None):
        self.graph, self.scores = graph, graph.shape()
        self.axis = axis_of(axis, self.scores)
        self.shape = [*self.scores[:self.axis], 1, *self.scores[self.axis + 1:]]
        self.index, self.valid = ints(graph, graph.reshape(graph.bottom(1), graph.shape(1), self.shape)), None
        if ignored is not None:
            skipped = graph.op("Equal", self.index, ignored)
            self.index = graph.op("Where", skipped, 0, self.index)
            self.valid = floats(graph, graph.op("Not", skipped))

    def pick(self, x):
        """Return the values of x, of the shape of the scores, at the labels."""
        return self.graph.op("GatherElements", x, self.index, axis=self.axis)

    def sum(self, x):
        """Return the sum of x, of the labels' shape, over the labels that count."""
        return total(self.graph, x if self.valid is None else self.graph.op("Mul", x, self.valid))

    def count(self):
        """Return how many labels count."""
        return total(self.graph, self.valid) if self.valid is not None else self.graph.constant(float(self.size()))

    def size(self):
        return math.prod(spatial(self.graph, self.shape, 0))


def normalized(graph, x, mode, outer, size, valid):
    """Divide a sum by the divisor of a normalisation, at least 1; `valid` is the name of the number of labels that count."""
    if mode == LOSS.VALID:
        return graph.op("Div", x, graph.op("Max", valid, 1.0))
    return affine(graph, x, 1 / max(1, {LOSS.FULL: size, LOSS.BATCH_SIZE: outer, LOSS.NONE: 1}[mode]), 0)


@exporter("Accuracy")
def accuracy(graph, node):
    p = node.param.accuracy_param
    labels, scores = Labels(graph, p.axis, ignored(p)), graph.bottom()
    # Another class with an equal score counts against; a NaN is not above any.
    reached = floats(graph, graph.op("Not", graph.op("Less", scores, labels.pick(scores))))
    rank = graph.reduce("ReduceSum", reached, [labels.axis])
    correct = floats(graph, graph.op("Less", rank, p.top_k + 0.5))
    tops = [graph.op("Div", labels.sum(correct), graph.op("Max", labels.count(), 1.0))]
    if len(node.tops) > 1:
        classes = graph.fixed(labels.scores[labels.axis], "the number of classes")
        sizes = [1] * len(labels.shape)
        sizes[labels.axis] = classes
        own = floats(graph, graph.op("Equal", labels.index, np.arange(classes).reshape(sizes)))
        own = own if labels.valid is None else graph.op("Mul", own, labels.valid)
        others = [axis for axis in range(len(sizes)) if axis != labels.axis]
        hits = graph.reduce("ReduceSum", graph.op("Mul", own, correct), others, keepdims=False)
        tops.append(graph.op("Div", hits, graph.op("Max", graph.reduce("ReduceSum", own, others, keepdims=False), 1.0)))
    return tops


@exporter("SoftmaxWithLoss")
def softmax_loss(graph, node):
    labels = Labels(graph, node.param.softmax_param.axis, ignored(node.param.loss_param))
    probability = graph.op("Softmax", graph.bottom(), axis=labels.axis)
    log = graph.op("Log", graph.op("Max", labels.pick(probability), LEAST_FLOAT))
    return class_loss(graph, node, labels, log, probability)


def class_loss(graph, node, labels, log, probability):
    """Return the tops of a loss of which each label adds -log, of the labels' shape."""
    outer = math.prod(spatial(graph, labels.scores[:labels.axis], 0))
    mode = normalization(node.param.loss_param, LOSS.VALID)
    loss = normalized(graph, labels.sum(graph.op("Neg", log)), mode, outer, labels.size(), labels.count())
    return [loss, probability][:len(node.tops)]


@exporter("InfogainLoss")
def infogain_loss(graph, node):
    p = node.param.infogain_loss_param
    labels = Labels(graph, p.axis, ignored(node.param.loss_param))
    classes = graph.fixed(labels.scores[labels.axis], "the number of classes")
    if len(node.bottoms) > 2:
        matrix = graph.op("Reshape", graph.bottom(2), [classes, classes])
    else:
        matrix = graph.constant(np.array(read_blob(p.source).data, np.float32).reshape(classes, classes))
    probability = graph.op("Softmax", graph.bottom(), axis=labels.axis)
    log = graph.op("Log", graph.op("Max", probability, LEAST))
    last = [*(i for i in range(len(labels.shape)) if i != labels.axis), labels.axis]     # classes behind the other axes
    rows = graph.op("Gather", matrix, graph.op("Squeeze", labels.index, [labels.axis]), axis=0)
    terms = graph.op("Mul", rows, graph.op("Transpose", log, perm=last))
    loss = graph.op("Unsqueeze", graph.reduce("ReduceSum", terms, [len(last) - 1], keepdims=False), [labels.axis])
    return class_loss(graph, node, labels, loss, probability)


def by_record(graph):
    """Return the scores (batch, classes) and the labels (batch, 1) of a loss that has no axis of classes, and the first shape."""
    given = graph.shape()
    flat = [graph.fixed(given[0], "the batch of a loss"), math.prod(spatial(graph, given, 1))]
    return graph.reshape(graph.bottom(), given, flat), ints(graph, graph.op("Reshape", graph.bottom(1), [flat[0], 1])), flat


@exporter("MultinomialLogisticLoss")
def logistic_loss(graph, node):
    x, index, (batch, _) = by_record(graph)
    picked = graph.op("GatherElements", x, index, axis=1)
    return [affine(graph, total(graph, graph.op("Log", graph.op("Max", picked, LEAST))), -1 / batch, 0)]


@exporter("HingeLoss")
def hinge_loss(graph, node):
    x, index, (batch, classes) = by_record(graph)
    own = graph.op("Equal", index, np.arange(classes).reshape(1, -1))
    margin = graph.op("Relu", affine(graph, graph.op("Where", own, graph.op("Neg", x), x), 1, 1))
    p = node.param.hinge_loss_param
    return [affine(graph, total(graph, graph.op("Mul", margin, margin) if p.norm == p.L2 else margin), 1 / batch, 0)]


@exporter("EuclideanLoss", "SmoothL1Loss")
def difference_loss(graph, node):
    batch = graph.fixed(graph.shape()[0], "the batch of a loss")
    difference = graph.op("Sub", graph.bottom(0), graph.reshape(graph.bottom(1), graph.shape(1), graph.shape(0)))
    if node.type == "EuclideanLoss":
        return [affine(graph, total(graph, graph.op("Mul", difference, difference)), 0.5 / batch, 0)]
    if len(node.bottoms) > 2:
        difference = graph.op("Mul", difference, graph.reshape(graph.bottom(2), graph.shape(2), graph.shape(0)))
    size = graph.op("Abs", difference)
    square = affine(graph, graph.op("Mul", difference, difference), 0.5, 0)
    terms = graph.op("Where", graph.op("Less", size, 1.0), square, affine(graph, size, 1, -0.5))
    return [affine(graph, total(graph, terms), 1 / batch, 0)]


@exporter("SigmoidCrossEntropyLoss")
def cross_entropy_loss(graph, node):
    p, given = node.param.loss_param, graph.shape()
    x, target = graph.bottom(), graph.reshape(graph.bottom(1), graph.shape(1), given)
    terms = graph.op("Sub", graph.op("Softplus", x), graph.op("Mul", x, target))
    size, valid = math.prod(spatial(graph, given, 0)), None
    if p.HasField("ignore_label"):
        valid = floats(graph, graph.op("Not", graph.op("Equal", ints(graph, target), p.ignore_label)))
        terms, valid = graph.op("Mul", terms, valid), total(graph, valid)
    batch, valid = graph.fixed(given[0], "the batch of a loss"), valid or graph.constant(float(size))
    return [normalized(graph, total(graph, terms), normalization(p, LOSS.BATCH_SIZE), batch, size, valid)]


@exporter("ContrastiveLoss")
def contrastive_loss(graph, node):
    p, given = node.param.contrastive_loss_param, graph.shape()
    batch = graph.fixed(given[0], "the batch of a loss")
    difference = graph.op("Sub", graph.bottom(0), graph.bottom(1))
    distance = graph.reduce("ReduceSum", graph.op("Mul", difference, difference), range(1, len(given)), keepdims=False)
    similar = graph.op("Not", graph.op("Equal", ints(graph, graph.op("Reshape", graph.bottom(2), [batch])), 0))
    far = graph.op("Relu", affine(graph, distance if p.legacy_version else graph.op("Sqrt", distance), -1, p.margin))
    far = far if p.legacy_version else graph.op("Mul", far, far)
    return [affine(graph, total(graph, graph.op("Where", similar, distance, far)), 0.5 / batch, 0)]
