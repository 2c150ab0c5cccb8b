"""Nets whose convolutions compute with channels last, compared with the same nets in plain order (test_channels_last.py).

``python channels_last_cases.py layers`` computes each of LAYERS in both layouts and prints how far results are apart and what was
reordered; ``trainings`` does the same for each of TRAININGS, ``forwards`` compares CUDA graphs of FORWARDS with single launches. They
run in a process of their own, as cuDNN is opened once.
"""

import json
import os
import sys
import tempfile
import traceback

import numpy as np
from training import make_solver

import minicaffe
from minicaffe import memory
from minicaffe.blob import Blob, Dtype
from minicaffe.common import TEST, TRAIN
from minicaffe.layers.python import Layer
from minicaffe.memory.registry import registry
from minicaffe.net import recorded
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

LAYOUT = "MINICAFFE_CUDNN_LAYOUT"
SHAPE = 2, 3, 7, 6


def layer(type, bottoms="c", tops="y", param="", name="l"):
    names = [f'bottom: "{blob}"' for blob in bottoms.split()] + [f'top: "{blob}"' for blob in tops.split()]
    return f'layer {{ name: "{name}" type: "{type}" {" ".join(names)} {param} }}\n'


def conv(bottom="x", top="c", outputs=8, fields="kernel_size: 3 pad: 1", type="Convolution"):
    return layer(type, bottom, top, f"convolution_param {{ num_output: {outputs} {fields} weight_filler {{ type: 'xavier' }} "
                 "bias_filler { type: 'gaussian' std: 0.3 } }", f"conv_{top}")


FIRST, LAST = conv(), conv("y", "z", 4)


def after(*arguments, keeps=True, tail=LAST, first=FIRST, **rest):
    """A layer between two convolutions; `keeps`: nothing is reordered there."""
    return {"net": first + layer(*arguments) + tail, "keeps": keeps, **rest}


def neuron(type, param="", **rest):
    return {type.lower(): after(type, "c", "y", param, **rest), f"{type.lower()} at the end": after(type, "c", "y", param, tail="", **rest)}


def norm(top, param="", more="", **rest):
    text = layer("BatchNorm", "c", top, param, "bn") + more.format(top)
    return {"net": FIRST + text + (conv(top, "z", 4)), "keeps": True, **rest}


SCALE_RELU = ("layer {{ name: 'sc' type: 'Scale' bottom: '{0}' top: '{0}' scale_param {{ bias_term: true filler {{ type: 'uniform' min: 0.5 max: 1.5 }} "
              "bias_filler {{ type: 'uniform' }} }} }}\nlayer {{ name: 're' type: 'ReLU' bottom: '{0}' top: '{0}' }}\n")
DROPPED = "dropout_param { dropout_ratio: 0.4 }"
IP = "inner_product_param { num_output: 3 weight_filler { type: 'xavier' } }"
OTHER_SHAPE = "shape { dim: 0 dim: 4 dim: -1 dim: 6 }"
GLOBAL = "batch_norm_param { use_global_stats: true }"
# name: the net after its inputs `x`, `other` of c's shape and `t`, labels of c's pixels, where the text names them
LAYERS = {
    "convolutions": {"net": FIRST + conv("c", "y", 6) + LAST, "keeps": True},
    **{f"pooling {name}": after("Pooling", "c", "y", f"pooling_param {{ {fields} }}", keeps=keeps) for name, fields, keeps in (
        ("max", "kernel_size: 3 stride: 2", True), ("max padded", "kernel_size: 3 stride: 2 pad: 1", True),
        ("ave", "pool: AVE kernel_size: 3 stride: 2 pad: 1", True), ("stochastic", "pool: STOCHASTIC kernel_size: 2 stride: 2", False))},
    **{f"pooling {name} global": after("Pooling", "c", "y", f"pooling_param {{ pool: {name.upper()} global_pooling: true }}",
                                       tail=conv("y", "z", 4, "kernel_size: 1")) for name in ("max", "ave")},
    "pooling stochastic test": after("Pooling", "c", "y", "pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }", keeps=False,
                                     phase=TEST, backward=False),
    "pooling max of 5 channels": after("Pooling", "c", "y", "pooling_param { kernel_size: 2 stride: 2 }", first=conv("x", "c", 5)),
    "pooling ave of 5 channels": after("Pooling", "c", "y", "pooling_param { pool: AVE kernel_size: 2 stride: 2 }", first=conv("x", "c", 5)),
    "pooling with mask": after("Pooling", "c", "y m", "pooling_param { kernel_size: 3 stride: 2 }"),
    "pooling with mask at the end": after("Pooling", "c", "y m", "pooling_param { kernel_size: 3 stride: 2 }", tail=""),
    "pooling global with mask": after("Pooling", "c", "y m", "pooling_param { global_pooling: true }", tail=""),
    "lrn": after("LRN", "c", "y", "lrn_param { local_size: 5 alpha: 0.5 }"),
    "lrn of 5 channels": after("LRN", "c", "y", "lrn_param { local_size: 3 alpha: 0.5 k: 2 }", first=conv("x", "c", 5)),
    "lrn wider than the channels": after("LRN", "c", "y", "lrn_param { local_size: 21 alpha: 0.5 }"),
    "lrn within channels": after("LRN", "c", "y", "lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }", keeps=False),
    **neuron("ReLU"), **neuron("Sigmoid"), **neuron("TanH"), **neuron("ELU", "elu_param { alpha: 0.7 }"), **neuron("AbsVal"), **neuron("BNLL"),
    **neuron("Power", "power_param { power: 2 scale: 0.5 shift: 0.3 }"), **neuron("Exp", "exp_param { shift: 0.1 }"),
    **neuron("Log", "log_param { shift: 9 }"), **neuron("Clip", "clip_param { min: -0.3 max: 0.4 }"), **neuron("Swish", "swish_param { beta: 1.5 }", keeps=False),
    "threshold": after("Threshold", "c", "y", "threshold_param { threshold: 0.1 }", tail="", backward=False),
    "leaky relu in place": after("ReLU", "c", "c", "relu_param { negative_slope: 0.2 }", tail=conv("c", "z", 4)),
    "sigmoid in place": after("Sigmoid", "c", "c", "", tail=conv("c", "z", 4)),
    "prelu": after("PReLU", "c", "y", "prelu_param { filler { type: 'uniform' } }"),
    "prelu in place": after("PReLU", "c", "c", "prelu_param { filler { type: 'uniform' } }", tail=conv("c", "z", 4)),
    "prelu shared": after("PReLU", "c", "y", "prelu_param { channel_shared: true }"),
    "batch norm": norm("y"), "batch norm in place": norm("c"), "batch norm test": norm("y", phase=TEST),
    "batch norm global": norm("y", GLOBAL), "batch norm global in place": norm("c", GLOBAL),
    "batch norm scale": norm("y", more=SCALE_RELU.split("\n")[0] + "\n"), "batch norm scale relu": norm("y", more=SCALE_RELU),
    "batch norm scale relu in place": norm("c", more=SCALE_RELU), "batch norm scale relu test": norm("c", more=SCALE_RELU, phase=TEST),
    "batch norm scale relu global": norm("y", GLOBAL, SCALE_RELU),
    "scale": after("Scale", "c", "y", "scale_param { filler { type: 'uniform' } }"),
    "scale in place with bias": after("Scale", "c", "c", "scale_param { bias_term: true filler { type: 'uniform' } }", tail=conv("c", "z", 4)),
    "scale of all axes": after("Scale", "c", "y", "scale_param { axis: 0 num_axes: -1 filler { type: 'uniform' } }", keeps=False),
    "scale by a scalar": after("Scale", "c", "y", "scale_param { num_axes: 0 filler { type: 'uniform' } }"),
    "scale by a bottom": after("Scale", "c s", "y", "scale_param { axis: 0 }"),
    "scale of 5 channels by a bottom in place": after("Scale", "c s5", "c", "scale_param { axis: 0 }", first=conv("x", "c", 5), tail=conv("c", "z", 4)),
    "bias by a bottom's images": after("Bias", "c i2", "y", "bias_param { axis: 0 }"),
    "scale by pixels": after("Scale", "c other", "y", "scale_param { axis: 0 }", keeps=False),
    "scale by a bottom's channels": after("Scale", "c v", "y", "scale_param { axis: 1 }"),
    "bias": after("Bias", "c", "y", "bias_param { filler { type: 'uniform' } }"),
    "bias by a bottom": after("Bias", "c v", "y", "bias_param { axis: 1 }"),
    "bias by pixels": after("Bias", "c other", "y", "bias_param { axis: 0 }", keeps=False),
    **{f"eltwise {name}": after("Eltwise", bottoms, "y", f"eltwise_param {{ {fields} }}", keeps=False)
       for name, bottoms, fields in (
           ("sum with a plain one", "c other", "operation: SUM coeff: 0.5 coeff: 2"), ("sum of a plain one", "other c", "operation: SUM"),
           ("product", "c other", "operation: PROD"), ("product unstable", "other c", "operation: PROD stable_prod_grad: false"),
           ("maximum", "c other", "operation: MAX"), ("maximum of plain", "other c", "operation: MAX"))},
    "eltwise residual": {"net": FIRST + conv("c", "b") + layer("Eltwise", "c b", "y") + layer("ReLU", "y", "y", name="r") + LAST, "keeps": True},
    "eltwise three": {"net": FIRST + conv("x", "b") + conv("c", "a") + layer("Eltwise", "a b c", "y", "eltwise_param { operation: MAX }") + LAST},
    **{f"concat {name}": {"net": FIRST + conv("x", "b", outputs) + layer("Concat", bottoms, "y", f"concat_param {{ axis: {axis} }}") + LAST,
                          "keeps": keeps} for name, outputs, bottoms, axis, keeps in (
        ("channels", 8, "c b", 1, True), ("odd channels", 5, "b c", 1, True), ("images", 8, "c b", 0, False), ("rows", 8, "c b", 2, False),
        ("columns", 8, "c b", 3, False), ("with one channel", 1, "b c", 1, False), ("with plain ones", 5, "other b", 1, False))},
    "concat after relu": {"net": FIRST + conv("x", "b", 5) + layer("ReLU", "c", "c", name="r1") + layer("ReLU", "b", "b", name="r2")
                          + layer("Concat", "c b", "y") + LAST, "keeps": True},
    "concat one": {"net": FIRST + layer("Concat", "c", "y") + LAST, "keeps": True},
    **{f"slice {name}": {"net": FIRST + layer("Slice", "c", tops, f"slice_param {{ axis: {axis} {points} }}") + conv("y", "z", 4), "keeps": keeps}
       for name, tops, axis, points, keeps in (
           ("channels", "y b", 1, "", True), ("odd channels", "b y", 1, "slice_point: 3", True), ("images", "y b", 0, "", False),
           ("rows", "y b", 2, "slice_point: 3", False), ("one channel", "b y", 1, "slice_point: 1", False))},
    "split": {"net": FIRST + conv("c", "y") + conv("c", "b", 5) + LAST, "keeps": True},
    "split with a reader of plain order": {"net": FIRST + conv("c", "y") + layer("InnerProduct", "c", "b", IP) + LAST, "keeps": True},
    "dropout": after("Dropout", "c", "c", DROPPED, tail=conv("c", "z", 4)), "dropout not in place": after("Dropout", "c", "y", DROPPED),
    "dropout of 5 channels": after("Dropout", "c", "c", DROPPED, first=conv("x", "c", 5), tail=conv("c", "z", 4)),
    "softmax": after("Softmax", "c", "y"),
    "softmax rows": after("Softmax", "c", "y", "softmax_param { axis: 2 }", keeps=False),
    "softmax loss": after("SoftmaxWithLoss", "c t", "y", "loss_param { ignore_label: 1 }", tail="", keeps=False),
    "accuracy": after("Accuracy", "c t", "y", "accuracy_param { top_k: 2 }", tail="", backward=False, keeps=False),
    "accuracy of classes": after("Accuracy", "c t", "y p", "", tail="", backward=False, keeps=False),
    "euclidean loss": after("EuclideanLoss", "c other", "y", tail="", keeps=False),
    "sigmoid loss": after("SigmoidCrossEntropyLoss", "c t8", "y", tail="", keeps=False),
    **{f"flatten{name}": {"net": FIRST + layer("Flatten", "c", "y") + between + layer("InnerProduct", last, "z", IP, "ip"), "keeps": True}
       for name, between, last in (("", "", "y"), (" relu", layer("ReLU", "y", "y", name="r"), "y"), (" relu not in place", layer("ReLU", "y", "b", name="r"), "b"),
                                   (" dropout", layer("Dropout", "y", "b", DROPPED, "d"), "b"))},
    "reshape": {"net": FIRST + layer("Reshape", "c", "y", f"reshape_param {{ {OTHER_SHAPE} }}") + LAST},
    **{f"reshape {name}": {"net": FIRST + layer("Reshape", "c", "b", f"reshape_param {{ {OTHER_SHAPE} }}") + layer(type, "b", "y", param, "p") + LAST}
       for name, type, param in (("pooling", "Pooling", "pooling_param { kernel_size: 2 }"), ("batch norm", "BatchNorm", ""), ("softmax", "Softmax", ""))},
    **{f"inner product{name}": {"net": FIRST + layer("InnerProduct", "c", "y", IP.replace("num_output: 3", f"num_output: 3 {fields}")), "keeps": keeps}
       for name, fields, keeps in (("", "", True), (" without bias", "bias_term: false", True), (" transposed", "transpose: true", False),
                                   (" of rows", "axis: 2", False))},
    "inner products of one blob": {"net": FIRST + layer("InnerProduct", "c", "y", IP) + layer("InnerProduct", "c", "z", IP, "m"), "keeps": True},
    "inner products with the same weights": {"net": FIRST + conv("x", "b") + "".join(layer("InnerProduct", bottom, top, "param { name: 'w' } param { name: 'b' } " + IP, top)
                                             for bottom, top in (("c", "y"), ("other", "z"))) + layer("InnerProduct", "b", "v2", "param { name: 'w' } param { name: 'b' } " + IP, "q")},
    "inner product of pooled": {"net": FIRST + layer("Pooling", "c", "y", "pooling_param { pool: AVE global_pooling: true }") + layer("InnerProduct", "y", "z", IP, "ip"), "keeps": True},
    **{f"crop {name}": {"net": FIRST + conv("x", "b", outputs, "kernel_size: 3") + layer("Crop", "c b", "y", f"crop_param {{ {fields} }}")
                        + conv("y", "z", 4), "keeps": True} for name, outputs, fields in (
        ("pixels", 8, "axis: 2 offset: 1"), ("pixels apart", 3, "axis: 2 offset: 2 offset: 0"), ("columns", 8, "axis: 3 offset: 2"),
        ("channels", 5, "axis: 1 offset: 3 offset: 0 offset: 2"))},
    "crop to one channel": {"net": FIRST + conv("x", "b", 1, "kernel_size: 3") + layer("Crop", "c b", "y", "crop_param { axis: 1 }") + LAST},
    "crop volumes": {"net": conv("x", "c", 8, "kernel_size: 3 pad: 1") + conv("x", "b", 8, "kernel_size: 3") + layer("Crop", "c b", "y", "crop_param { axis: 2 offset: 1 }")
                     + conv("y", "z", 4, "kernel_size: 2"), "shape": (2, 3, 4, 5, 4), "keeps": True},
    **{f"deconvolution {name}": {"net": FIRST + conv("c", "y", 6, fields, "Deconvolution") + LAST, "keeps": True} for name, fields in (
        ("", "kernel_size: 4 stride: 2 pad: 1"), ("grouped", "kernel_size: 3 stride: 2 group: 2"))},
    "deconvolution depthwise": {"net": FIRST + conv("c", "y", 8, "kernel_size: 4 stride: 2 pad: 1 group: 8", "Deconvolution") + LAST, "keeps": True},
    **{f"convolution {name}": {"net": FIRST + conv("c", "y", outputs, fields) + LAST, "keeps": True} for name, outputs, fields in (
        ("grouped", 6, "kernel_size: 3 group: 2"), ("depthwise", 8, "kernel_size: 3 pad: 1 group: 8"), ("dilated", 5, "kernel_size: 3 dilation: 2 pad: 2"),
        ("of points", 5, "kernel_size: 1"), ("strided", 4, "kernel_size: 2 stride: 3"), ("without bias", 4, "kernel_size: 2 bias_term: false"))},
    "convolution of one channel": {"net": FIRST, "shape": (2, 1, 7, 6)},
    "convolution to one channel": {"net": FIRST + conv("c", "y", 1) + layer("Sigmoid", "y", "y", name="s") + LAST},
    "convolution to one pixel": {"net": FIRST + conv("c", "y", 4, "kernel_h: 7 kernel_w: 6") + layer("ReLU", "y", "y", name="s") + conv("y", "z", 4, "kernel_size: 1"), "keeps": True},
    "convolution on two bottoms": {"net": "layer { name: 'two' type: 'Convolution' bottom: 'x' bottom: 'x2' top: 'c' top: 'b' convolution_param { num_output: 8 "
                                   "kernel_size: 3 weight_filler { type: 'xavier' } } }" + layer("Eltwise", "c b", "y") + LAST, "keeps": True},
    "convolution of rows": {"net": conv("x", "c", 8, "kernel_size: 3") + layer("ReLU", "c", "c") + conv("c", "y", 5, "kernel_size: 2 stride: 2"),
                            "shape": (2, 3, 11), "keeps": True},
    "convolution of volumes": {"net": conv("x", "c", 8, "kernel_size: 3") + layer("ReLU", "c", "c") + layer("BatchNorm", "c", "b", name="n")
                               + conv("b", "y", 5, "kernel_size: 2 stride: 2"), "shape": (2, 3, 5, 6, 4), "keeps": True},
    "volumes joined": {"net": conv("x", "c", 8, "kernel_size: 3") + conv("x", "b", 3, "kernel_size: 3") + layer("Concat", "c b", "y")
                       + layer("Softmax", "y", "z", name="s"), "shape": (2, 3, 5, 6, 4)},
    "convolution along axis 2": {"net": conv("x", "c", 4, "kernel_size: 2 axis: 2") + layer("ReLU", "c", "c") + layer("Softmax", "c", "y", name="s"),
                                 "shape": (2, 3, 2, 5, 4)},
    "slice after a convolution along axis 2": {"net": conv("x", "c", 4, "kernel_size: 2 axis: 2") + layer("Slice", "c", "y b", "slice_param { slice_point: 1 }"),
                                               "shape": (2, 3, 2, 5, 4)},
    "batch norm after a convolution along axis 2": {"net": conv("x", "c", 4, "kernel_size: 2 axis: 2") + layer("BatchNorm", "c", "y"), "shape": (2, 3, 2, 5, 4)},
    "engine caffe between": {"net": FIRST + conv("c", "y", 6, "kernel_size: 3 engine: CAFFE") + LAST},
    **{f"mvn {name}": after("MVN", "c", "y", f"mvn_param {{ {fields} }}") for name, fields in (
        ("", ""), ("across", "across_channels: true"), ("without variance", "normalize_variance: false"),
        ("across without variance", "across_channels: true normalize_variance: false"))},
    "mvn in place": after("MVN", "c", "c", tail=conv("c", "z", 4)),
    "mvn of 5 channels": after("MVN", "c", "y", first=conv("x", "c", 5)), "mvn of 3 channels": after("MVN", "c", "y", first=conv("x", "c", 3)),
    "mvn of one image": {**after("MVN", "c", "y"), "shape": (1, 3, 7, 6)},
    "mvn of large images": {**after("MVN", "c", "y", first=conv("x", "c", 36)), "shape": (3, 3, 20, 17)},
    **{f"reduction {operation.lower()} of {name}": after("Reduction", "c", "y", f"reduction_param {{ axis: {axis} operation: {operation} coeff: 0.5 }}",
                                                         tail="", keeps=axis < 3)
       for axis, name in enumerate(("all", "images", "pixels", "columns")) for operation in ("SUM", "ASUM", "SUMSQ", "MEAN")},
    "reduction of 5 channels": after("Reduction", "c", "y", "reduction_param { axis: 2 operation: SUMSQ }", first=conv("x", "c", 5), tail=""),
    "argmax": after("ArgMax", "c", "y", "argmax_param { axis: 1 top_k: 2 }", tail="", backward=False, keeps=False),
    "python": after("Python", "c", "y", "python_param { module: '__main__' layer: 'Doubles' }", keeps=False),
    "python in place": after("Python", "c", "c", "python_param { module: '__main__' layer: 'Doubles' }", tail=conv("c", "z", 4), keeps=False),
    **{f"permute {name}": after("Permute", "c", "y", "permute_param { " + " ".join(f"order: {axis}" for axis in order) + " }", keeps=False)
       for name, order in (("to last", (0, 2, 3, 1)), ("other", (1, 0, 3, 2)), ("identity", (0, 1, 2, 3)))},
    "permute to last at the end": after("Permute", "c", "y", "permute_param { order: 0 order: 2 order: 3 order: 1 }", tail=""),
    "permute of 5 channels at the end": after("Permute", "c", "y", "permute_param { order: 1 order: 0 order: 3 order: 2 }", tail="", first=conv("x", "c", 5)),
    **{f"normalize{' across' if across else ''}{' shared' if shared else ''} of {outputs} channels": after(
        "Normalize", "c", "y", f"norm_param {{ across_spatial: {str(across).lower()} channel_shared: {str(shared).lower()} eps: 0.1 "
        "scale_filler { type: 'uniform' min: 0.5 max: 2 } }", first=conv("x", "c", outputs))
       for across in (False, True) for shared in (False, True) for outputs in (8, 5)},
    "normalize in place": after("Normalize", "c", "c", "norm_param { across_spatial: false }", tail=conv("c", "z", 4)),
    "normalize of many pixels": {**after("Normalize", "c", "y", "norm_param { channel_shared: false scale_filler { type: 'uniform' } }"), "shape": (1, 3, 40, 30)},
    "prior box": after("PriorBox", "c x", "y", "prior_box_param { min_size: 2 aspect_ratio: 2 }", tail="", backward=False, keeps=False),
    "parameter": {"net": layer("Parameter", "", "x3", "parameter_param { shape { dim: 2 dim: 3 dim: 7 dim: 6 } }", "p") + conv("x3", "c") + conv("c", "y")},
    "silence": {"net": FIRST + conv("c", "y") + layer("Silence", "y", "")},
    "shared weights": {"net": conv("x", "c", 3).replace("convolution_param", "param { name: 'w' } param { name: 'b' } convolution_param")
                       + conv("c", "y", 3).replace("convolution_param", "param { name: 'w' } param { name: 'b' } convolution_param"), "keeps": True},
    **{f"interp {name}": after("Interp", "c", "y", f"interp_param {{ {fields} }}", first=conv("x", "c", outputs)) for name, outputs, fields in (
        ("larger", 8, "zoom_factor: 2"), ("smaller", 8, "shrink_factor: 2"), ("of 5 channels", 5, "height: 9 width: 4"), ("cut", 8, "height: 8 width: 8 pad_beg: -1 pad_end: -2"),
        ("of the same size", 8, "height: 7 width: 6"))},
    "interp to one pixel": after("Interp", "c", "y", "interp_param { height: 1 width: 1 }", tail=conv("y", "z", 4, "kernel_size: 1")),
    "interp to the size of a blob": after("Interp", "c other", "y", "interp_param { use_blob_size: true pad_beg: -1 }"),
    "double interp": {**after("Interp", "c", "y", "interp_param { zoom_factor: 3 }"), "dtype": Dtype.DOUBLE},
    "double inner product": {"net": FIRST + layer("InnerProduct", "c", "y", IP), "dtype": Dtype.DOUBLE, "keeps": True},
    "double": {"net": FIRST + layer("BatchNorm", "c", "b", name="n") + layer("Pooling", "b", "y", "pooling_param { kernel_size: 2 }") + LAST,
               "dtype": Dtype.DOUBLE, "keeps": True},
    "double softmax": {**after("Softmax", "c", "y"), "dtype": Dtype.DOUBLE},
    "softmax of images": after("Softmax", "c", "y", "softmax_param { axis: 0 }"),
    **{f"double {name}": {**after(type, "c", "y", param), "dtype": Dtype.DOUBLE} for name, type, param in (
        ("mvn", "MVN", ""), ("normalize", "Normalize", "norm_param { across_spatial: false }"))},
    "double crop": {"net": FIRST + conv("x", "b", 6, "kernel_size: 3") + layer("Crop", "c b", "y", "crop_param { axis: 1 offset: 1 }") + conv("y", "z", 4),
                    "dtype": Dtype.DOUBLE, "keeps": True},
}


class Doubles(Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = 2 * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 2 * top[0].diff


def inputs_of(text, shape, rng):
    """The arrays of the inputs that a net names."""
    c = shape[0], 8, *shape[2:]
    arrays = {"x": rng.standard_normal(shape), "x2": rng.standard_normal(shape), "other": rng.standard_normal(c), "s": rng.uniform(0.5, 2, c[:2]),
              "s5": rng.uniform(0.5, 2, (c[0], 5)), "i2": rng.uniform(0.5, 2, c[:1]), "v": rng.uniform(0.5, 2, c[1:2]), "t": rng.integers(0, 8, (c[0], *c[2:])), "t8": rng.integers(0, 2, c),
              "i": np.array([1, 0, 1]), "k": np.array([1, 1]).reshape(2, 1, 1, 1)}
    return {name: array for name, array in arrays.items() if f"'{name}'" in text.replace('"', "'").replace("top: 'x'", "").replace("name: 'p'", "")}


def net_of(text, inputs, phase=TRAIN, dtype=Dtype.FLOAT):
    head = "force_backward: true\n" + "".join(
        layer("Input", "", name, "input_param { shape { " + " ".join(f"dim: {size}" for size in array.shape) + " } }", f"in_{name}")
        for name, array in inputs.items())
    param, _ = parse_text(head + text, caffe_pb2.NetParameter, "case.prototxt", keep_layer_fields=True)
    param.state.phase = phase
    minicaffe.set_random_seed(5)
    return Net(param, dtype, file="case.prototxt")


def run_case(case, layout):
    """Return the results by name, and of the third pass which blobs were reordered, and how many to channels last."""
    os.environ[LAYOUT] = layout
    rng = np.random.default_rng(0)
    inputs = inputs_of(case["net"], case.get("shape", SHAPE), rng)
    net = net_of(case["net"], inputs, case.get("phase", TRAIN), case.get("dtype", Dtype.FLOAT))
    for node in net.nodes:
        if node.type == "BatchNorm":    # statistics of some earlier training
            for blob, low in zip(node.layer.blobs, (-0.2, 0.5, 1)):
                blob.data[...] = rng.uniform(low, 1, blob.shape)
    last, backward, seeds = len(net.nodes) - 1, case.get("backward", True), {}
    for _ in range(3):
        minicaffe.set_random_seed(6)
        for name, array in inputs.items():
            net.blob_by_name(name).data[...] = array
        with memory.record() as events:
            net.forward_from_to(0, last)
        for blob in net.output_blobs:
            seed = seeds.setdefault(blob.name, rng.standard_normal(blob.shape))
            if not any(blob is top for node in net.nodes if node.layer.has_loss for top in node.tops):
                blob.diff[...] = seed
        net.clear_param_diffs()
        if backward:
            with memory.record() as seen:
                net.backward_from_to(last, 0)
            events += seen
    given = {f"{name} data" for name in inputs} | {f"{blob.name} diff" for blob in net.output_blobs}
    reorders = [event for event in events if event.kind == "reorder"]
    found = {}
    for blob in net.blob_list:
        found[f"{blob.name} data"] = np.array(blob.cpu_data)
        if backward:
            found[f"{blob.name} diff"] = np.array(blob.cpu_diff)
    for i, blob in enumerate(net.param_table.params):
        found[f"parameter {i}"], found[f"gradient {i}"] = np.array(blob.cpu_data), np.array(blob.cpu_diff)
    return (found, [f"{event.name}: {event.detail}" for event in reorders if event.name not in given],
            sum("channels last" in event.detail for event in reorders))


def apart(a, b):
    """The largest difference, relative to the largest value of its blob or to 1, and its name."""
    assert a.keys() == b.keys()
    worst = 0.0, ""
    for name in a:
        assert a[name].shape == b[name].shape, name
        if a[name].size:
            difference = np.abs(a[name] - b[name]).max() / max(np.abs(a[name]).max(), 1)
            worst = max(worst, (float(difference) if np.isfinite(difference) else 1e9, name))
    return worst


def layers(names):
    for name in names or LAYERS:
        case, result = LAYERS[name], {"name": name}
        try:
            plain, none, zero = run_case(case, "nchw")
            last, reordered, converted = run_case(case, "nhwc")
            result.update(apart=apart(plain, last), reordered=reordered, plain_reordered=bool(none or zero), converted=converted)
        except Exception:
            result["error"] = traceback.format_exc()
        print("RESULT", json.dumps(result), flush=True)


# LRN computes in both orders of its bottom, with other bits. It reads `x`, or a view of it, before a convolution has converted it.
VIEW = "reshape_param { shape { dim: 0 dim: 0 dim: 7 dim: 6 } }"
NORMED = layer("LRN", "v", "n", name="n") + conv("v", "c") + conv("n", "y", 4)
FORWARDS = {
    "input": NORMED.replace('"v"', '"x"'),
    "view of an input": layer("Reshape", "x", "v", VIEW, "view") + NORMED,
    "view of a view": layer("Reshape", "x", "u", VIEW, "first") + layer("Reshape", "u", "v", VIEW, "view") + NORMED,
    "split": layer("Split", "x", "v w", name="split") + NORMED + conv("w", "z"),
}


def forwards(names):
    os.environ[LAYOUT] = "nhwc"
    for name in names or FORWARDS:
        found, Graph.replayed = [], 0
        for graphs in (True, False):
            net = net_of(FORWARDS[name], {"x": np.empty(SHAPE)}, TEST)
            net.use_graphs = graphs
            found.append([])
            for seed in range(5):
                net.blob_by_name("x").data[...] = np.random.default_rng(seed).standard_normal(SHAPE)
                net.forward_from_to(0, len(net.nodes) - 1)
                found[-1] += [np.array(blob.cpu_data) for blob in net.output_blobs]
        same = [bool(np.array_equal(*arrays)) for arrays in zip(*found, strict=True)]
        print("RESULT", json.dumps({"name": name, "same": same, "replayed": Graph.replayed}), flush=True)


DATA = """layer {{ name: "data" type: "{0}" top: "x" top: "t" {1} {{ shape {{ dim: 4 dim: 3 dim: 8 dim: 8 }} shape {{ dim: 4 }} {2} }} }}
"""
DUMMY = DATA.format("DummyData", "dummy_data_param", "data_filler { type: 'gaussian' std: 1 } data_filler { type: 'constant' value: 2 }")
INPUT = DATA.format("Input", "input_param", "")


def loss(bottom):
    return (layer("InnerProduct", bottom, "score", "inner_product_param { num_output: 5 weight_filler { type: 'xavier' } }", "ip")
            + layer("SoftmaxWithLoss", "score t", "loss", name="loss") + layer("Accuracy", "score t", "accuracy", "include { phase: TEST }", name="acc"))


def block(bottom, top):
    """Convolution, BatchNorm, Scale in place."""
    return (conv(bottom, top, 8, "kernel_size: 3 pad: 1 bias_term: false") + layer("BatchNorm", top, top, name=f"bn_{top}")
            + layer("Scale", top, top, "scale_param { bias_term: true }", f"scale_{top}"))


RESIDUAL = (block("x", "a") + layer("ReLU", "a", "a", name="relu_a") + block("a", "b") + layer("ReLU", "b", "b", name="relu_b") + block("b", "c")
            + layer("Eltwise", "a c", "d", name="sum") + layer("ReLU", "d", "d", name="relu_d")
            + layer("Pooling", "d", "e", "pooling_param { pool: AVE global_pooling: true }", "pool") + loss("e"))
LENET = (conv("x", "a", 6, "kernel_size: 3") + layer("Pooling", "a", "b", "pooling_param { kernel_size: 2 stride: 2 }", "p1")
         + conv("b", "c", 8, "kernel_size: 2") + layer("Pooling", "c", "d", "pooling_param { kernel_size: 2 stride: 2 }", "p2")
         + layer("ReLU", "d", "d", name="r") + loss("d"))
# A concatenation, LRN, dropout of no values, and a second reader of what is normalised apart.
MIXED = (conv("x", "a") + conv("x", "b", 5) + layer("Concat", "a b", "c", name="join") + layer("LRN", "c", "n", "lrn_param { local_size: 3 }", "norm")
         + layer("BatchNorm", "n", "m", name="bn") + layer("Dropout", "m", "m", "dropout_param { dropout_ratio: 0 }", "drop")
         + layer("PReLU", "m", "m", name="prelu") + conv("m", "d", 4) + layer("Slice", "d", "e f", name="cut")
         + layer("Eltwise", "e f", "g", "eltwise_param { operation: MAX }", "max") + loss("g"))
# What keeps the layout besides: sums of rows and of planes, interpolation, a box, another order; their tables and scratch memory.
PLANES = (conv("x", "a") + layer("Normalize", "a", "n", "norm_param { across_spatial: false channel_shared: false }", "norm")
          + layer("Interp", "n", "i", "interp_param { zoom_factor: 2 }", "up") + layer("MVN", "i", "m", name="mvn") + conv("x", "r", 8, "kernel_size: 1")
          + layer("Crop", "m r", "k", "crop_param { axis: 2 offset: 3 }", "cut") + layer("Reduction", "r", "s", "reduction_param { axis: 2 operation: MEAN }", "mean")
          + layer("Scale", "k s", "q", "scale_param { axis: 0 }", "scale") + layer("Permute", "q", "p", "permute_param { order: 0 order: 2 order: 3 order: 1 }", "turn")
          + loss("p"))


class Graph(recorded.cuda.Graph):
    """Counts how many CUDA graphs of nets were recorded, and replayed."""

    recorded = replayed = 0

    def __init__(self, device):
        super().__init__(device)
        Graph.recorded += 1

    def replay(self, rate, drawn):
        Graph.replayed += 1
        super().replay(rate, drawn)


def blob(solver, name):
    return solver.net.blob_by_name(name)


def weights(solver):
    groups = {"": solver.net.param_table.params, "history ": solver.history}
    return {f"{group}{i}": np.array(blob.cpu_data) for group, blobs in groups.items() for i, blob in enumerate(blobs)}


def steps(solver, between):
    """Train after each value of a generator; return what is not None of them, the losses and the weights."""
    found = {}
    for number, seen in enumerate(between):
        if seen is not None:
            found[f"seen {number}"] = np.array(seen)
        solver.step(1)
        found[f"loss {number}"] = np.array(solver.smoothed_loss)
    return {**found, **weights(solver)}


# What is done before each iteration: generators for `steps`.


def plain_steps(solver, plan):
    """Nothing; a replay needs no reorder that is not in the graph."""
    counts = []
    for _ in range(8):
        yield
        blobs = [*solver.net.blob_list, *solver.net.param_table.params, *solver.history]
        counts.append(sum(each.reorders for blob in blobs for each in (blob.data_memory, blob.diff_memory)))
    assert solver.training_step.recorded.graph is None or counts[-1] == counts[-2], counts


def read(solver, plan):
    """Blobs, gradients and parameters are read."""
    names, params = ("x", "t") if plan else [blob.name for blob in solver.net.blob_list], solver.net.learnable_params
    yield
    for _ in range(5):
        seen = [blob(solver, name).cpu_data.ravel() for name in names]
        if not plan:
            seen += [blob(solver, name).cpu_diff.ravel() for name in names if name not in ("x", "t", "accuracy")]
            seen += [param.cpu_diff.ravel() for param in params]
        yield np.concatenate(seen + [param.cpu_data.ravel() for param in params])


def read_now_and_then(solver, plan):
    for number in range(8):
        yield solver.net.learnable_params[0].cpu_data.copy() if number % 2 else None


def write(solver, plan):
    """Parameters and blobs are written, on the host and on the device, copied there, and updated by calls of their own."""
    net, weight, other = solver.net, solver.net.learnable_params[0], Blob(solver.net.learnable_params[0].shape)
    for number in range(12):
        if number in (1, 4):
            weight.data[...] *= 0.5
        if number in (2, 5):
            weight.scale_data(1.5)
            other.copy_from(weight)
        if number in (6, 7):
            weight.copy_from(other)
        if number == 3 and not plan:
            for array in blob(solver, "a").data, blob(solver, "a").diff, weight.diff:
                array[...] = 7
        if number > 8:
            net.clear_param_diffs()
            net.forward_backward()
            for param in net.learnable_params:
                param.scale_diff(0.01)
            net.update()
        yield other.cpu_data.copy()


def restored(solver, plan):
    """Four iterations after a snapshot are computed twice."""
    with tempfile.TemporaryDirectory() as folder:
        solver.param.snapshot_prefix = os.path.join(folder, "s")
        for number in range(12):
            if number == 4:
                _, state = solver.snapshot()
            if number == 8:
                solver.restore(state)
            yield


def settings_changed(solver, plan):
    """The mode, the precision (the fake's products are exact in both), and what the net holds."""
    changes = {3: minicaffe.set_mode_cpu, 5: minicaffe.set_mode_gpu, 8: lambda: minicaffe.set_precision("tf32"),
               11: lambda: minicaffe.set_precision("float32"), 14: solver.net.release}
    for number in range(17):
        changes.get(number, lambda: None)()
        yield


def views(solver, plan):
    """What a view on the device shows is what was computed last."""
    (weight, bias, *_), held = solver.net.learnable_params, []
    blobs = [] if plan else [blob(solver, name) for name in ("a", "c", "d")]

    def content(array):
        out = np.empty(array.shape, np.float32)
        minicaffe.cuda.current().synchronize()
        registry.device_side(memory.CUDAPlace(0)).copy_to_host(out.ctypes.data, array.address, out.nbytes)
        return out.ravel()

    for number in range(9):
        seen = [content(array) for array in held]
        if number == 1:
            held = [weight.gpu_data, bias.mutable_gpu_data, *[each.gpu_data for each in blobs], *[each.gpu_diff for each in blobs], weight.gpu_diff]
        if number == 7:
            held = []
        yield np.concatenate(seen) if seen else None


def partly(solver, plan):
    """Parts of the net, and the whole, are run; the mode may change between forward and backward."""
    net, last = solver.net, len(solver.net.nodes) - 1
    for number in range(9):
        if number in (2, 4):
            net.forward_from_to(0, last)
            if not plan:    # which frees what the parts read
                net.forward_from_to(2, 4)
        if number in (3, 5, 6, 7):
            net.clear_param_diffs()
            net.forward_from_to(0, last)
            if not plan and number > 5:     # a plan frees what the other mode would need
                minicaffe.set_mode_cpu()
            net.backward_from_to(last, 0)
            minicaffe.set_mode_gpu()
        yield np.concatenate([param.cpu_diff.ravel() for param in net.learnable_params]) if number in (3, 5, 6, 7) else None


def tested(solver, plan):
    """A test net with the same weights runs, and is read."""
    test = solver.test_nets[0]
    for _ in range(8):
        minicaffe.set_random_seed(9)
        test.forward_from_to(0, len(test.nodes) - 1)
        yield np.concatenate([test.blob_by_name(name).cpu_data.ravel() for name in ("loss", "accuracy")])


def other_batches(solver, plan):
    """Inputs are written; the batch gets smaller, and larger again."""
    rng, x, t = np.random.default_rng(8), blob(solver, "x"), blob(solver, "t")
    for number in range(9):
        images = 2 if 3 <= number < 7 else 4
        x.reshape(images, 3, 8, 8)
        t.reshape(images)
        x.data[...] = rng.standard_normal((images, 3, 8, 8))
        t.data[...] = rng.integers(0, 5, images)
        yield


def fed(solver, plan):
    rng = np.random.default_rng(8)
    for _ in range(8):
        solver.net.feed(x=rng.standard_normal((4, 3, 8, 8), np.float32), t=rng.integers(0, 5, 4).astype(np.float32))
        yield


def sums(solver, plan):
    """Norms of blobs that the device has, in each mode."""
    blobs = [*solver.net.learnable_params, *([] if plan else solver.net.blob_list)]
    yield
    for number in range(1, 6):
        if number % 2:
            minicaffe.set_mode_cpu()
        found = [value for each in blobs for value in (each.asum_data(), each.sumsq_data(), each.asum_diff())]
        minicaffe.set_mode_gpu()
        yield np.array(found)


# name: net, what is done, fields of the solver
TRAININGS = {
    **{name: (DUMMY + net, plain_steps, {}) for name, net in (("residual", RESIDUAL), ("lenet", LENET), ("mixed", MIXED), ("planes", PLANES))},
    **{f"{name} read": (DUMMY + net, read, {}) for name, net in (("residual", RESIDUAL), ("mixed", MIXED), ("planes", PLANES))},
    **{f"{name} settings": (DUMMY + net, settings_changed, {}) for name, net in (("residual", RESIDUAL), ("planes", PLANES))},
    **{f"{name} {work.__name__}": (DUMMY + net, work, {}) for name, net in (("residual", RESIDUAL), ("lenet", LENET)) for work in (write, views)},
    **{f"{name} partly": (DUMMY + net, partly, {}) for name, net in (("residual", RESIDUAL), ("mixed", MIXED))},
    **{work.__name__: (DUMMY + RESIDUAL, work, {}) for work in (restored, sums)},
    "test net": (DUMMY + RESIDUAL, tested, {"test_iter": [1], "test_interval": 3}),
    "batches": (INPUT + RESIDUAL, other_batches, {}), "mixed batches": (INPUT + MIXED, other_batches, {}), "feed": (INPUT + LENET, fed, {}),
    "read now and then": (DUMMY + LENET, read_now_and_then, {}), "two passes": (DUMMY + RESIDUAL, plain_steps, {"iter_size": 2}),
    "lenet two passes": (DUMMY + LENET, read_now_and_then, {"iter_size": 2}),
    **{name: (DUMMY + LENET, plain_steps, fields) for name, fields in (
        ("debug info", {"debug_info": True}), ("clipped", {"clip_gradients": 0.5}), ("Nesterov", {"type": "Nesterov", "momentum": 0.9}),
        ("AdaGrad", {"type": "AdaGrad"}), ("RMSProp", {"type": "RMSProp", "rms_decay": 0.9}),
        ("AdaDelta", {"type": "AdaDelta", "momentum": 0.9, "delta": 1e-6, "base_lr": 1}), ("Adam", {"type": "Adam", "momentum": 0.9, "base_lr": 0.01}))},
}


def variants(name):
    """The plan, and whether a CUDA graph is replayed, which two iterations by single launches precede."""
    every = name in ("residual", "lenet", "mixed", "mixed read")
    return [(None, True), ("memory", True), *([(None, False), ("memory", False)] if every else [])]


def trainings(names):
    for name in names or TRAININGS:
        text, work, fields = TRAININGS[name]
        for plan, replays in variants(name):
            result, found = {"name": name, "plan": plan, "graph": replays}, []
            try:
                for layout in "nchw", "nhwc":
                    os.environ[LAYOUT] = layout
                    Graph.recorded = Graph.replayed = 0
                    minicaffe.set_mode_gpu()
                    minicaffe.set_precision("float32")
                    minicaffe.set_random_seed(3)
                    solver = make_solver(text, plan, weight_decay=0.01, random_seed=3, **fields)
                    solver.use_graphs = replays and layout == "nhwc"
                    found.append(steps(solver, work(solver, plan)))
                result.update(apart=apart(*found), recorded=Graph.recorded, replayed=Graph.replayed)
            except Exception:
                result["error"] = traceback.format_exc()
            print("RESULT", json.dumps(result), flush=True)


def peers(_):
    """What GPU 0 has with channels last, looked at while GPU 1 is the current one."""
    os.environ[LAYOUT] = "nhwc"
    net = net_of(FIRST + LAST.replace('"y"', '"c"'), {"x": np.empty(SHAPE)})
    first = net.blob_by_name("c")

    def computed():
        minicaffe.set_device(0)
        net.blob_by_name("x").data[...] = 1
        net.forward_from_to(0, len(net.nodes) - 1)
        assert first.layout_of_data() is not None
        minicaffe.set_device(1)
        return first

    expected = computed().cpu_data.copy()        # a copy to the host needs no peer access
    other = Blob(first.shape)
    other.copy_from(computed())
    np.testing.assert_array_equal(other.cpu_data, expected)
    computed()
    refused = False
    try:
        first.gpu_data  # noqa: B018
    except minicaffe.errors.WrongDeviceError:
        refused = True
    minicaffe.cuda.enable_peer_access(1, 0)
    Blob(first.shape).share_data(computed())
    np.testing.assert_allclose(first.asum_data(), np.abs(expected).sum(), rtol=1e-5)
    computed().scale_data(2)
    np.testing.assert_array_equal(first.cpu_data, 2 * expected)
    minicaffe.set_device(0)
    print("RESULT", json.dumps({"refused": refused}))


if __name__ == "__main__":
    minicaffe.set_mode_gpu()
    recorded.cuda.Graph = Graph
    {"layers": layers, "trainings": trainings, "forwards": forwards, "peers": peers}[sys.argv[1]](json.loads(sys.argv[2]))
