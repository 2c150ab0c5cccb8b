"""Writers of Accuracy, BVLC Caffe's losses and SSD's DetectionOutput: calls of helpers. The labels are inputs of the net."""

import numpy as np

from minicaffe.errors import ConfigError
from minicaffe.addons.export.exporting import LOSS, axis_of, ignored, normalization
from minicaffe.proto import caffe_pb2
from minicaffe.proto.binary import read_blob
from minicaffe.addons.export.pytorch.source import number, writer


def mode_of(p, default):
    """Return the normalisation of a LossParameter as the text of a str."""
    return f'"{LOSS.NormalizationMode.Name(normalization(p, default))}"'


def one_or_both(source, helper, *more):
    """Return a call of a helper with all bottoms, which gives two values; for a layer of one top, the first value."""
    text = source.call(helper, *source.bottoms(), *more)
    return text if len(source.node.tops) > 1 else [f"{text}[0]"]


@writer("Accuracy")
def accuracy(source, node):
    p = node.param.accuracy_param
    return one_or_both(source, "caffe_accuracy", axis_of(p.axis, source.shape()), p.top_k, ignored(p))


@writer("SoftmaxWithLoss")
def softmax_loss(source, node):
    p, axis = node.param.loss_param, axis_of(node.param.softmax_param.axis, source.shape())
    return one_or_both(source, "caffe_softmax_loss", axis, ignored(p), mode_of(p, LOSS.VALID))


@writer("InfogainLoss")
def infogain_loss(source, node):
    p, more = node.param.loss_param, []
    axis = axis_of(node.param.infogain_loss_param.axis, source.shape())
    if len(node.bottoms) < 3:
        more = [source.buffer(np.array(read_blob(node.param.infogain_loss_param.source).data, np.float32))]
    return one_or_both(source, "caffe_infogain_loss", *more, axis, ignored(p), mode_of(p, LOSS.VALID))


@writer("MultinomialLogisticLoss")
def logistic_loss(source, node):
    return [source.call("caffe_logistic_loss", *source.bottoms())]


@writer("HingeLoss")
def hinge_loss(source, node):
    p = node.param.hinge_loss_param
    return [source.call("caffe_hinge_loss", *source.bottoms(), f'"{p.Norm.Name(p.norm)}"')]


@writer("EuclideanLoss")
def euclidean_loss(source, node):
    a, b = source.bottoms()
    other = b if source.shape(1) == source.shape() else f"{b}.reshape({a}.shape)"
    return [f"(({a} - {other}) ** 2).sum() / len({a}) / 2"]


@writer("SmoothL1Loss")
def smooth_l1_loss(source, node):
    return [source.call("caffe_smooth_l1_loss", *source.bottoms())]


@writer("SigmoidCrossEntropyLoss")
def cross_entropy_loss(source, node):
    p = node.param.loss_param
    return [source.call("caffe_cross_entropy_loss", *source.bottoms(), ignored(p), mode_of(p, LOSS.BATCH_SIZE))]


@writer("ContrastiveLoss")
def contrastive_loss(source, node):
    p = node.param.contrastive_loss_param
    return [source.call("caffe_contrastive_loss", *source.bottoms(), number(p.margin), p.legacy_version)]


@writer("DetectionOutput")
def detection_output(source, node):
    p, nms = node.param.detection_output_param, node.param.detection_output_param.nms_param
    for field, given in (("save_output_param.output_directory", p.save_output_param.output_directory), ("visualize", p.visualize)):
        if given:
            raise ConfigError("the module writes no files and shows no pictures; remove the field",
                              field=f"detection_output_param.{field}")
    source.remark("DetectionOutput: has no gradient. Its rows are (picture, label, score, xmin, ymin, xmax, ymax).")
    code = caffe_pb2.PriorBoxParameter.CodeType.Name(p.code_type)
    return [source.call("caffe_detection_output", *source.bottoms()[:3],    # the fourth has pictures to show
                        classes=p.num_classes, share_location=p.share_location, background=p.background_label_id,
                        code_type=f'"{code}"', variance_in_target=p.variance_encoded_in_target,
                        threshold=number(p.confidence_threshold if p.HasField("confidence_threshold") else -np.inf),
                        nms_threshold=number(nms.nms_threshold), eta=number(nms.eta),
                        top_k=nms.top_k if nms.HasField("top_k") else -1, keep_top_k=p.keep_top_k)]
