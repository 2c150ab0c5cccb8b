"""ONNX of layer types of forks: each gives what onnxruntime computes, or is refused by name."""

import re

import numpy as np
import pytest
from export_cases import X, layer, net_of

from minicaffe import errors
from minicaffe.layer import layer_types

pytest.importorskip("onnx", reason="the package onnx is not installed")
pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")

from minicaffe.addons.export.onnx import compare, random_inputs, to_model  # noqa: E402
from minicaffe.addons.export.onnx.graph import EXPORTERS  # noqa: E402

CASES = {
    # Read as other layers (addons/forks/formulas.py).
    "flip": (layer("Flip", "flip_param { flip_height: true }"), X), "spatial dropout": (layer("SpatialDropout"), X),
    "l1 loss": (layer("L1Loss", "", "x0 x1"), X, X), "triplet loss": (layer("TripletLoss", "", "x0 x1 x2"), X, X, X),
    "axpy": (layer("Axpy", "", "x0 x1 x2"), (2, 4), X, X), "mish": (layer("Mish"), X), "hswish": (layer("HSwish"), X),
    "transpose": (layer("Transpose", "transpose_param { dim: [0, 2, 1, 3] }"), X),
    "darknet": (layer("UpsampleDarknet", "upsample_darknet_param { stride: 2 }"), X), "relu with 6": (layer("ReLU", "relu_param { relu6: true }"), X),
    "average": (layer("Pooling", "pooling_param { pool: AVE_EXC_PAD kernel_size: 3 stride: 2 pad: 1 }"), X),
    "scaled": (layer("BatchNorm", "batch_norm_param { scale_bias: true }"), X),
    "reverse": (layer("Reverse", "reverse_param { axis: 1 axis: 3 }"), X),
    "squeeze": (layer("Squeeze"), (2, 1, 3, 1)),
    "shuffle": (layer("ShuffleChannel", "shuffle_channel_param { group: 3 }"), (2, 6, 3, 2)), "shuffle flat": (layer("ShuffleChannel", "shuffle_channel_param { group: 2 }"), (2, 6)),
    "reorg": (layer("Reorg", "reorg_param { stride: 2 }"), (2, 8, 4, 6)), "rearrange": (layer("Rearrange", "rearrange_param { depth: 2 }"), (2, 18, 2, 3)),
    "reorg back": (layer("Reorg", "reorg_param { stride: 2 reverse: true }"), (2, 8, 3, 2)),
    "interp": (layer("Interp", "interp_param { height: 11 width: 4 }"), X), "interp larger": (layer("Interp", "interp_param { zoom_factor: 3 }"), X),
    "interp of a part": (layer("Interp", "interp_param { shrink_factor: 2 pad_beg: -1 pad_end: -2 }"), X),
    "nearest": (layer("Upsample", "upsample_param { scale: 3 }"), X),
    "unpooling": (layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", tops="p m", name="p")
                  + layer("Upsample", "upsample_param { upsample_h: 8 upsample_w: 7 }", "p m"), (2, 3, 8, 7)),
    "relu6": (layer("ReLU6"), X), "relu6 leaky": (layer("ReLU6", "relu6_param { negative_slope: 0.1 }"), X),
    "relux": (layer("ReLUX", "relux_param { maximal_value: 0.7 }"), X), "relux of a slope": (layer("ReLUX", "relux_param { negative_slope: -0.5 maximal_value: 1 }"), X),
    "bn": (layer("BN"), X), "bn of 2 axes": (layer("BN", "bn_param { eps: 0.1 }"), (3, 4)), "bn frozen": (layer("BN", "bn_param { frozen: true }"), X),
    "bn of segnet": (layer("BN", "bn_param { bn_mode: INFERENCE }"), X), "bn of the batch": (layer("BN", "bn_param { bn_mode: LEARN }", tops="y m v"), X),
    "lstm": (layer("Lstm", "lstm_param { num_output: 3 }"), (5, 2, 4)), "lstm of rows": (layer("Lstm", "lstm_param { num_output: 3 batch_size: 2 }"), (8, 4, 1)),
    "indicator": (layer("ContinuationIndicator", "continuation_indicator_param { time_step: 2 batch_size: 3 }", "", "c") + layer("Eltwise", "", "x0 c", name="e"), (2, 3)),
    "clustered": (layer("PriorBoxClustered", "prior_box_param { width: 3 height: 2 img_size: 9 }", tops="p")
                  + layer("ReLU", name="r"), X),
    "normalize": (layer("Normalize", "normalize_param { }", tops="y n"), X), "normalize L1": (layer("Normalize", 'normalize_param { normalize_type: "L1" }'), X),
}
# Boxes whose number depends on values, and losses; Resize darkens its borders.
WITHOUT = {"BoxOutput", "CTCGreedyDecoder", "DecodeBBox", "PSROIPooling", "Proposal", "ROIAlign", "Resize",
           "YoloDetectionOutput", "Yolov3DetectionOutput"}


@pytest.mark.parametrize("name", CASES)
def test_layer(name):
    text, *shapes = CASES[name]
    net = net_of(text, *shapes)
    found = compare(net, to_model(net), random_inputs(net))
    assert found and all(one.relative < 1e-5 and one.shape == net.blobs[one.blob].shape for one in found)


@pytest.mark.parametrize("size", ["pooled_h: 2 pooled_w: 3", "pooled_size: 2"])
def test_regions(size):
    net = net_of(layer("ROIPooling", f"roi_pooling_param {{ {size} spatial_scale: 0.5 }}", "x0 x1"), (2, 3, 9, 8), (4, 5))
    rois = np.array([[0, 0, 0, 15, 17], [1, 2.4, 3.6, 9, 8], [1, 5, 5, 5, 5], [0, 3, 1, 30, 40]], np.float32)
    found = compare(net, to_model(net), {**random_inputs(net), "x1": rois})
    assert [one.relative for one in found] == [0]


def test_every_fork_type_has_a_case():
    forks = {name for name, cls in layer_types().items() if ".forks." in cls.__module__ and name != "ConvolutionDepthwise"}
    tested = {kind for text, *_ in CASES.values() for kind in re.findall(r'type: "(\w+)"', text)} | {"ROIPooling"}
    assert forks - tested - {"ChannelNormalize"} == WITHOUT and not WITHOUT & set(EXPORTERS)


@pytest.mark.parametrize("text, shapes, wrong", [
    (layer("SmoothL1Loss", "smooth_l1_loss_param { sigma: 2 }", "x0 x1"), [(2, 3), (2, 3)], "SmoothL1Loss.*the loss of Fast R-CNN.*no exporter"),
    (layer("ROIPooling", "roi_pooling_param { pooled_h: 1 pooled_w: 1 pad_ratio: 0.1 }", "x0 x1"), [X, (1, 5)], "roi_pooling_param.pad_ratio: ONNX has no operation"),
    (layer("Lstm", "lstm_param { num_output: 3 }", "x0 x1"), [(5, 2, 4), (5, 2)], r"bottom\[1\]: ONNX's LSTM has no sequence indicators")])
def test_what_is_refused(text, shapes, wrong):
    with pytest.raises(errors.ConfigError, match=wrong):
        to_model(net_of(text, *shapes))
