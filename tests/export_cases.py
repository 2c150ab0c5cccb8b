"""Nets of one layer or a few in Caffe's special cases, and the deploy nets of models/, for the tests of what nets are exported to."""

from pathlib import Path

import numpy as np
import pytest

from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.proto.upgrade import upgrade_net

MODELS = Path(__file__).resolve().parent.parent / "models"
DEPLOY = sorted(path.relative_to(MODELS).as_posix() for path in MODELS.glob("*/deploy*.prototxt"))
BIG = ("vgg16/", "fcn/", "alexnet/", "caffenet/")   # seconds of filling and reading hundreds of MB


def net_of(text, *shapes, phase=caffe_pb2.TEST):
    """A net of layers behind inputs x0, x1, ... with parameters that are not trivial."""
    inputs = "".join(f'layer {{ name: "in{i}" type: "Input" top: "x{i}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape)} }} }} }}\n'
                     for i, shape in enumerate(shapes))
    param = parse_text(f'name: "t"\n{inputs}{text}', caffe_pb2.NetParameter, keep_layer_fields=True)[0]
    param.state.phase = phase
    return filled(Net(upgrade_net(param)[0]))


def filled(net, seed=3):
    """Random parameters, with variances above 0 and a factor of the running sums that is not 1."""
    rng = np.random.default_rng(seed)
    for node in net.nodes:
        for blob in node.layer.blobs:
            blob.data[...] = rng.normal(0, 0.5 / max(1, np.prod(blob.shape[1:])) ** 0.5, blob.shape)
        if node.type == "BN" and len(node.layer.blobs) == 4:
            node.layer.blobs[3].data[...] = np.abs(node.layer.blobs[3].data) + 1
        if node.type == "BatchNorm":
            node.layer.blobs[1].data[...] = np.abs(node.layer.blobs[1].data) + 1
            node.layer.blobs[2].data[...] = 2
    return net


# ssd has pictures of a fixed number, lstm steps of one sequence.
of_models = pytest.mark.parametrize("file, batch", [
    pytest.param(file, batch, marks=[pytest.mark.slow(5)] * file.startswith(("resnet50", "ssd", "googlenet", "mobilenet", "squeezenet/deploy_v1")))
    for file in DEPLOY if not file.startswith(BIG) for batch in (1, 3) if batch == 1 or not file.startswith(("ssd", "lstm"))])


def net_of_model(file, batch):
    """A net of models/ with random parameters, so that its softmaxes are not even."""
    param, positions = read_net(str(MODELS / file), caffe_pb2.TEST)
    net = filled(Net(param, file=file, positions=positions))
    for blob in net.input_blobs:
        blob.reshape(batch, *blob.shape[1:])
    net.reshape_all()
    return net


def layer(kind, fields="", bottoms="x0", tops="y", name="l"):
    return (f'layer {{ name: "{name}" type: "{kind}" {" ".join(f"""bottom: "{name}" """ for name in bottoms.split())}'
            f'{" ".join(f"""top: "{name}" """ for name in tops.split())} {fields} }}\n')


# A layer whose rounding errors another layer makes to other numbers: x0 of 1 is at the threshold.
THRESHOLD_OF_1 = layer("ReLU", tops="a", name="r") + layer("Threshold", "threshold_param { threshold: 1 }", "a", "b", name="t")
AT_THRESHOLD = {"x0": np.array([0.5, 1, 2], np.float32)}
X = (2, 4, 7, 6)
CASES = {
    "conv": (layer("Convolution", "convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 pad_h: 1 pad_w: 0 stride_h: 2 stride_w: 1 group: 2 }"), X),
    "conv dilated": (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 3 dilation: 2 pad: 2 bias_term: false }"), X),
    "conv of a small picture": (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 4 stride: 3 }"), (1, 2, 3, 3)),
    "conv of a small picture of two sizes": (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 4 stride: 3 }"), (1, 2, 2, 3)),
    "conv of 3 axes": (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 2 kernel_size: 1 kernel_size: 3 stride: 2 }"), (2, 2, 4, 3, 5)),
    "conv of no axis": (layer("Convolution", "convolution_param { num_output: 3 }"), (2, 5)),
    "conv from axis 2": (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 2 axis: 2 }"), (2, 3, 4, 5, 5)),
    "conv of two": (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 2 }", "x0 x1", "y z"), X, X),
    "depthwise": (layer("DepthwiseConvolution", "convolution_param { num_output: 4 group: 4 kernel_size: 3 }"), X),
    "convolution depthwise": (layer("ConvolutionDepthwise", "convolution_param { num_output: 1 kernel_size: 3 pad: 1 stride: 2 }"), X),
    "deconv": (layer("Deconvolution", "convolution_param { num_output: 6 kernel_size: 4 stride: 2 pad: 1 group: 2 }"), X),
    "deconv dilated": (layer("Deconvolution", "convolution_param { num_output: 3 kernel_size: 3 dilation: 2 pad: 3 bias_term: false }"), X),
    "im2col": (layer("Im2col", "convolution_param { kernel_size: 3 stride: 2 pad: 1 dilation: 2 }"), (2, 3, 9, 8)),
    "max": (layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }"), X),
    "max padded": (layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 1 }"), X),
    "max clipped": (layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 pad: 1 }"), (1, 2, 7, 7)),
    "max rounded down": (layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 round_mode: FLOOR }"), X),
    "max and mask": (layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 1 }", tops="y m"), X),
    "max of all": (layer("Pooling", "pooling_param { global_pooling: true }"), X),
    "average": (layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }"), (2, 3, 8, 8)),
    "average padded": (layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }"), (2, 3, 8, 7)),
    "average beyond the padding": (layer("Pooling", "pooling_param { pool: AVE kernel_size: 4 stride: 3 pad: 1 }"), (1, 2, 8, 9)),
    "average of all": (layer("Pooling", "pooling_param { pool: AVE global_pooling: true }"), X),
    "stochastic": (layer("AbsVal", tops="a") + layer("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }", "a", name="p"), X),
    "pyramid": (layer("SPP", "spp_param { pyramid_height: 3 pool: AVE }"), (2, 3, 11, 14)),
    "pyramid of one": (layer("SPP", "spp_param { pyramid_height: 1 pool: MAX }"), X),
    "inner product": (layer("InnerProduct", "inner_product_param { num_output: 5 }"), X),
    "inner product transposed": (layer("InnerProduct", "inner_product_param { num_output: 5 transpose: true bias_term: false }"), X),
    "inner product from axis 2": (layer("InnerProduct", "inner_product_param { num_output: 5 axis: -2 }"), X),
    "inner product of all": (layer("InnerProduct", "inner_product_param { num_output: 5 axis: 0 }"), (3, 2)),
    "embed": (layer("Embed", "embed_param { num_output: 5 input_dim: 7 }"), (3, 2)),
    "abs": (layer("AbsVal"), X), "bnll": (layer("BNLL"), X), "sigmoid": (layer("Sigmoid"), X), "tanh": (layer("TanH"), X), "relu": (layer("ReLU"), X),
    "leaky": (layer("ReLU", "relu_param { negative_slope: 0.1 }"), X),
    "prelu": (layer("PReLU"), X), "prelu shared": (layer("PReLU", "prelu_param { channel_shared: true }"), X), "prelu of 2 axes": (layer("PReLU"), (3, 4)),
    "elu": (layer("ELU", "elu_param { alpha: 0.7 }"), X), "swish": (layer("Swish", "swish_param { beta: 1.5 }"), X),
    "clip": (layer("Clip", "clip_param { min: -0.5 max: 0.7 }"), X), "threshold": (layer("Threshold", "threshold_param { threshold: 0.3 }"), X),
    "exp": (layer("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }"), X), "exp of e": (layer("Exp", "exp_param { shift: -1 }"), X),
    "log": (layer("Log", "log_param { base: 10 scale: 2 shift: 3 }"), X), "power": (layer("Power", "power_param { power: 2.5 scale: 2 shift: 0.1 }"), X),
    "square": (layer("Power", "power_param { power: 2 shift: 1 }"), X), "power of 0": (layer("Power", "power_param { power: 0 }"), X),
    "constant power": (layer("Power", "power_param { power: 2 scale: 0 shift: 3 }"), X), "dropout": (layer("Dropout"), X),
    "sum": (layer("Eltwise", "eltwise_param { coeff: 1 coeff: -2 coeff: 0.5 }", "x0 x1 x2"), X, X, X),
    "product": (layer("Eltwise", "eltwise_param { operation: PROD }", "x0 x1 x2"), X, X, X),
    "maximum": (layer("Eltwise", "eltwise_param { operation: MAX }", "x0 x1"), X, X),
    "softmax": (layer("Softmax", "softmax_param { axis: 2 }"), X),
    "scale": (layer("Scale", "scale_param { bias_term: true }"), X), "scale of two axes": (layer("Scale", "scale_param { axis: 2 num_axes: 2 }"), X),
    "scale of a number": (layer("Scale", "scale_param { num_axes: 0 bias_term: true }"), X),
    "scale of two": (layer("Scale", "scale_param { axis: 0 bias_term: true }", "x0 x1"), X, (2, 4)),
    "bias": (layer("Bias", "bias_param { axis: -1 }"), X), "bias of two": (layer("Bias", "bias_param { axis: 1 }", "x0 x1"), X, (4, 7)),
    "batch norm whose statistics are asked for": (layer("BatchNorm", "batch_norm_param { use_global_stats: true }"), X),
    "batch norm": (layer("BatchNorm", "batch_norm_param { eps: 0.01 }"), X),
    "batch norm of the batch": (layer("BatchNorm", "batch_norm_param { use_global_stats: false }"), X),
    "mvn": (layer("MVN", "mvn_param { eps: 0.1 }"), X), "mvn across": (layer("MVN", "mvn_param { across_channels: true normalize_variance: false }"), X),
    "lrn": (layer("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 }"), X),
    "lrn within": (layer("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 norm_region: WITHIN_CHANNEL }"), X),
    **{f"reduction {how}": (layer("Reduction", f"reduction_param {{ operation: {how} axis: {axis} coeff: 2 }}"), X)
       for how, axis in (("SUM", 1), ("ASUM", 2), ("SUMSQ", 0), ("MEAN", -1))},
    "normalize": (layer("Normalize", "norm_param { across_spatial: false channel_shared: false }"), X),
    "normalize all": (layer("Normalize", "norm_param { eps: 0.1 }"), X),
    "flatten": (layer("Flatten"), X), "flatten two": (layer("Flatten", "flatten_param { axis: 1 end_axis: 2 }"), X),
    "flatten none": (layer("Flatten", "flatten_param { axis: 2 end_axis: 1 }"), X),
    "reshape": (layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 2 } }"), X),
    "reshape in the middle": (layer("Reshape", "reshape_param { axis: 1 num_axes: 2 shape { dim: 2 dim: -1 } }"), X),
    "concat": (layer("Concat", "concat_param { axis: -1 }", "x0 x1"), X, X), "concat one": (layer("Concat"), X),
    "slice": (layer("Slice", "slice_param { slice_point: 1 slice_point: 3 }", tops="a b c"), X),
    "slice evenly": (layer("Slice", "slice_param { axis: 3 }", tops="a b"), X),
    "permute": (layer("Permute", "permute_param { order: 0 order: 2 }"), X), "tile": (layer("Tile", "tile_param { axis: 2 tiles: 3 }"), X),
    "crop": (layer("Crop", "crop_param { axis: 2 offset: 1 offset: 2 }", "x0 x1"), X, (1, 1, 4, 3)),
    "reindex": (layer("BatchReindex", "", "x0 x1"), X, (5,)), "filter": (layer("Filter", "", "x0 x1 x2", "y z"), (4, 3), (4, 2), (4,)),
    "argmax": (layer("ArgMax", "argmax_param { top_k: 3 out_max_val: true }"), (2, 5)),
    "argmax of ties": (layer("Threshold", tops="t") + layer("ArgMax", "argmax_param { top_k: 4 axis: 1 }", "t", name="a"), (3, 6, 2)),
    "largest": (layer("ArgMax", "argmax_param { axis: -1 top_k: 2 out_max_val: true }"), X),
    "parameter": (layer("Parameter", "parameter_param { shape { dim: 2 dim: 3 } }", "", "w") + layer("Eltwise", "", "x0 w", name="e"), (2, 3)),
    "dummy": (layer("DummyData", "dummy_data_param { shape { dim: 2 dim: 3 } data_filler { value: 3 } }", "", "d")
              + layer("Eltwise", "", "x0 d", name="e"), (2, 3)),
    "silence": (layer("Slice", tops="a b") + layer("Silence", "", "a", "", name="s"), X),
    "lstm": (layer("LSTM", "recurrent_param { num_output: 3 }", "x0 x1"), (5, 2, 4), (5, 2)),
    "lstm of more axes": (layer("LSTM", "recurrent_param { num_output: 3 }", "x0 x1 x2"), (4, 2, 2, 2), (4, 2), (2, 3)),
    "lstm with its state": (layer("LSTM", "recurrent_param { num_output: 3 expose_hidden: true }", "x0 x1 x2 x3", "y h c"), (4, 2, 2), (4, 2), (1, 2, 3), (1, 2, 3)),
    "rnn": (layer("RNN", "recurrent_param { num_output: 3 }", "x0 x1 x2"), (4, 2, 2), (4, 2), (2, 3)),
    "rnn with its state": (layer("RNN", "recurrent_param { num_output: 3 expose_hidden: true }", "x0 x1 x2", "y h"), (4, 2, 2), (4, 2), (1, 2, 3)),
    "lstm unit": (layer("LSTMUnit", "", "x0 x1 x2", "c h"), (1, 2, 3), (1, 2, 12), (1, 2)),
    "accuracy": (layer("Accuracy", "accuracy_param { top_k: 2 ignore_label: 1 }", "x0 x1", "a b"), (6, 4), (6,)),
    "accuracy of pictures": (layer("Accuracy", "", "x0 x1", "a b"), X, (2, 1, 7, 6)),
    "accuracy of one record": (layer("Accuracy", "accuracy_param { axis: 0 }", "x0 x1", "a b"), (4,), (1,)),
    "softmax loss": (layer("SoftmaxWithLoss", "loss_weight: 1 loss_weight: 0", "x0 x1", "y p"), X, (2, 7, 6)),
    **{f"softmax loss {mode}": (layer("SoftmaxWithLoss", f"loss_param {{ normalization: {mode} ignore_label: 2 }}", "x0 x1"), X, (2, 7, 6))
       for mode in ("FULL", "VALID", "BATCH_SIZE", "NONE")},
    "infogain": (layer("InfogainLoss", "", "x0 x1 x2"), (3, 4, 2), (3, 2), (4, 4)),
    "logistic loss": (layer("Softmax", tops="p") + layer("MultinomialLogisticLoss", "", "p x1", name="m"), (3, 4), (3,)),
    "hinge": (layer("HingeLoss", "", "x0 x1"), (3, 4), (3,)), "hinge L2": (layer("HingeLoss", "hinge_loss_param { norm: L2 }", "x0 x1"), (3, 4), (3,)),
    "euclidean": (layer("EuclideanLoss", "", "x0 x1"), (3, 4), (3, 2, 2)), "smooth L1": (layer("SmoothL1Loss", "", "x0 x1 x2"), X, X, X),
    "smooth L1 of all": (layer("SmoothL1Loss", "", "x0 x1"), X, X),
    "cross entropy": (layer("SigmoidCrossEntropyLoss", "loss_param { ignore_label: 1 normalization: VALID }", "x0 x1"), (3, 4), (3, 4)),
    "contrastive": (layer("ContrastiveLoss", "contrastive_loss_param { margin: 3 }", "x0 x1 x2"), (5, 2), (5, 2), (5,)),
    "contrastive of old": (layer("ContrastiveLoss", "contrastive_loss_param { margin: 3 legacy_version: true }", "x0 x1 x2"), (5, 2), (5, 2), (5,)),
}
OF_DATA = {"Data", "ImageData", "HDF5Data", "MemoryData", "WindowData", "AnnotatedData", "VideoData", "HDF5Output", "DetectionEvaluate", "MultiBoxLoss", "Python",
           "Input"}


# ---- boxes

PRIOR = layer("PriorBox", "prior_box_param { min_size: 3 max_size: 6 aspect_ratio: 2 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }", "x2 x3", "p")


def detection(fields, images=2, classes=3, shared=True):
    boxes = 3 * 3 * 4
    text = PRIOR + layer("DetectionOutput", f"detection_output_param {{ num_classes: {classes} share_location: {str(shared).lower()} {fields} }}",
                         "x0 x1 p", name="d")
    return net_of(text, (images, boxes * (1 if shared else classes) * 4), (images, boxes * classes), (images, 4, 3, 3), (images, 3, 12, 12))


BOXES = [
    "code_type: CENTER_SIZE nms_param { nms_threshold: 0.4 top_k: 9 } keep_top_k: 7 confidence_threshold: 0.2", "nms_param { top_k: 999 } keep_top_k: 5", "nms_param { top_k: 4 }",
    "code_type: CORNER_SIZE background_label_id: 1 confidence_threshold: 0.5", "variance_encoded_in_target: true background_label_id: -1",
    "confidence_threshold: 90 keep_top_k: 3", "nms_param { top_k: 0 }", "keep_top_k: 0"]


def detection_at_limits(fields):
    """Return a net and inputs: box 1 overlaps box 0 by exactly 1/2, and the score of box 2 is 1/2; and the rows without these two."""
    net = net_of(layer("DetectionOutput", f"detection_output_param {{ num_classes: 2 confidence_threshold: 0.5 {fields} }}", "x0 x1 x2"),
                 (1, 12), (1, 6), (1, 2, 12))
    boxes = np.array([[0, 0, 1, 1], [0, 0, 0.5, 1], [2, 2, 3, 3]], np.float32)
    scores = np.array([[0.25, 0.75], [0.375, 0.625], [0.5, 0.5]], np.float32)
    inputs = {"x0": np.zeros((1, 12)), "x1": scores.reshape(1, 6), "x2": np.stack([boxes.ravel(), np.ones(12)])[None]}
    return net, inputs, [[0, 1, 0.75, *boxes[0]], [0, 1, 0.625, *boxes[1]]]


# ---- layers in place, which share parameters

IN_PLACE = (layer("InnerProduct", 'inner_product_param { num_output: 4 } param { name: "w" } param { name: "b" }', tops="h") + layer("ReLU", "", "h", "h", name="r")
            + layer("InnerProduct", 'inner_product_param { num_output: 4 } param { name: "w" } param { name: "b" }', "h", "z", name="again")
            + layer("Dropout", "", "z", "z", name="drop") + layer("Softmax", "", "z", "out", name="s"))
