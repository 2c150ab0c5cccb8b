"""Bottoms that do not fit after a net was made are refused as when it is made, and the net continues with the former shapes."""

import re

import numpy as np
import pytest
from gradient import forward_net, run_forward

from minicaffe.errors import ConfigError, ShapeError

X, ROWS = (2, 4, 3, 5), (4, 6)
LABELS, FILL = np.array([0.0, 2, 3, 1]), 'weight_filler { type: "gaussian" }'
# type and fields; bottoms, arrays or shapes of random numbers; the shapes that some get later; the error
CASES = [
    ("Scale", "", [X], {0: (2, 5, 3, 5)}, "blobs[0]: has shape [4], which bottom[0] of shape [2, 5, 3, 5] does not have from axis 1 on"),
    ("Scale", "", [X, (4,)], {1: (5,)}, "bottom[1]: has shape [5], which bottom[0] of shape [2, 4, 3, 5] does not have"),
    ("Scale", "scale_param { bias_term: true }", [X, (4,)], {0: (2, 6, 3, 5), 1: (6,)}, "bottom[1]: has 6 values, the bias has 4"),
    ("Scale", "scale_param { bias_term: true }", [X, (4,)], {0: (2, 3, 3, 5), 1: (3,)}, "bottom[1]: has 3 values, the bias has 4"),
    ("Bias", "", [X], {0: (2, 3, 3, 5)}, "blobs[0]: has shape [4]"),
    ("Bias", "", [X, (4,)], {1: (4, 5)}, "bottom[1]: has shape [4, 5]"),
    ("PReLU", "", [X], {0: (2, 5, 3, 5)}, "bottom[0]: needs 4 channels"),
    ("PReLU", "", [X], {0: (8,)}, "bottom[0]: needs 4 channels"),
    ("BatchNorm", "", [X], {0: (2, 3, 3, 5)}, "bottom[0]: needs 4 channels"),
    ("InnerProduct", f"inner_product_param {{ num_output: 3 {FILL} }}", [X], {0: (2, 4, 3, 6)}, "bottom[0]: has shape [2, 4, 3, 6], 72 values from axis 1 on"),
    ("InnerProduct", f"inner_product_param {{ num_output: 3 {FILL} }}", [ROWS], {0: (4, 5)}, "values from axis 1 on; the layer was set up for 6"),
    ("Pooling", "pooling_param { kernel_size: 3 }", [X], {0: (2, 4, 3, 2)}, "pooling_param.kernel_size: a kernel of 3x3 does not fit planes of 3x2"),
    ("Pooling", "pooling_param { kernel_size: 3 }", [X], {0: (2, 4, 2, 5)}, "pooling_param.kernel_size: a kernel of 3x3 does not fit planes of 2x5"),
    ("Pooling", "pooling_param { kernel_size: 3 }", [X], {0: (2, 12, 5)}, "bottom[0]: Pooling needs 4 axes"),
    ("Im2col", "convolution_param { kernel_h: 2 kernel_w: 4 }", [X], {0: (2, 4, 4, 3)}, "the window covers 4 pixels"),
    ("LRN", "", [X], {0: (2, 4, 3)}, "bottom[0]: LRN needs 4 axes"),
    ("SPP", "spp_param { pyramid_height: 2 }", [X], {0: (2, 4, 3)}, "bottom[0]: SPP needs 4 axes"),
    ("SPP", "spp_param { pyramid_height: 3 }", [(1, 2, 7, 8)], {0: (1, 2, 7, 1)}, "spp_param.pyramid_height: 1 pixels cannot be cut into"),
    ("Softmax", "softmax_param { axis: 3 }", [X], {0: (2, 4, 3)}, "softmax_param.axis"),
    ("Reduction", "reduction_param { axis: -4 }", [X], {0: (2, 4, 3)}, "reduction_param.axis"),
    ("Flatten", "flatten_param { axis: 2 }", [X], {0: (2, 4)}, "flatten_param.axis"),
    ("Reshape", "reshape_param { shape { dim: 0 dim: 60 } }", [X], {0: (2, 4, 3, 6)}, "reshape_param.shape: gives [2, 60] with 120 elements"),
    ("Tile", "tile_param { axis: 3 tiles: 2 }", [X], {0: (2, 4, 3)}, "tile_param.axis"),
    ("Slice", "slice_param { slice_point: 3 }", [X], {0: (2, 3, 3, 5)}, "slice_param.slice_point: must increase strictly between 0 and 3"),
    ("Slice", "", [X], {0: (2, 5, 3, 5)}, "slice_param.slice_point: axis 1 of the bottom, shape [2, 5, 3, 5], cannot be cut into 2 equal parts"),
    ("Concat", "", [X, X], {1: (2, 4, 5, 3)}, "bottom[1]: has shape [2, 4, 5, 3], bottom[0] has [2, 4, 3, 5]"),
    ("Concat", "", [X, X], {1: (2, 4)}, "bottom[1]: has shape [2, 4], bottom[0] has [2, 4, 3, 5]"),
    ("Eltwise", "", [X, X], {1: (2, 4, 5, 3)}, "bottom[1]: has shape [2, 4, 5, 3], bottom[0] has [2, 4, 3, 5]"),
    ("Crop", "crop_param { axis: 2 offset: 1 }", [X, (1, 1, 2, 4)], {1: (1, 1, 2, 5)}, "crop_param.offset: offset 1 and size 5 reach beyond axis 3"),
    ("Crop", "crop_param { axis: 2 offset: 1 }", [X, (1, 1, 2, 4)], {0: (2, 4, 2, 5)}, "crop_param.offset: offset 1 and size 2 reach beyond axis 2"),
    ("Crop", "", [X, (1, 1, 2, 4)], {1: (2, 4)}, "bottom[1]: needs as many axes as bottom[0]"),
    ("Filter", "", [ROWS, np.array([1.0, 0, 1, 1])], {0: (5, 6)}, "bottom[0]: has shape [5, 6], the selector has 4 rows"),
    ("Filter", "", [ROWS, np.array([1.0, 0, 1, 1])], {1: (4, 2)}, "bottom[1]: the selector needs one value per row, got shape [4, 2]"),
    ("Filter", "", [ROWS, np.array([1.0, 0, 1, 1])], {1: ()}, "bottom[1]: the selector needs one value per row, got shape []"),
    ("BatchReindex", "", [ROWS, np.array([3.0, 0])], {1: (1, 2)}, "bottom[1]: needs 1 axis, got shape [1, 2]"),
    ("ArgMax", "argmax_param { top_k: 6 }", [ROWS], {0: (4, 5)}, "argmax_param.top_k: must be at most the number of values, 5, got 6"),
    ("Accuracy", "accuracy_param { top_k: 6 }", [ROWS, LABELS], {0: (4, 5)}, "accuracy_param.top_k: must be at most the number of classes, 5, got 6"),
    ("Accuracy", "", [ROWS, LABELS], {1: (5,)}, "bottom[1]: "),
    ("SoftmaxWithLoss", "", [ROWS, LABELS], {1: (4, 2)}, "bottom[1]: "),
    ("SoftmaxWithLoss", "", [ROWS, LABELS], {0: (5, 6)}, "bottom[1]: "),
    ("HingeLoss", "", [ROWS, LABELS], {1: (5,)}, "bottom[1]: the predictions [4, 6] and the labels [5] need the same axis 0"),
    ("MultinomialLogisticLoss", "", [ROWS, LABELS], {1: (5,)}, "bottom[1]: the predictions [4, 6] and the labels [5] need the same axis 0"),
    ("InfogainLoss", "", [ROWS, LABELS, (6, 6)], {2: (6, 5)}, "bottom[2]: H needs 6 x 6 elements, got [6, 5]"),
    ("InfogainLoss", "", [ROWS, LABELS, (6, 6)], {0: (4, 5)}, "bottom[2]: H needs 5 x 5 elements"),
    ("EuclideanLoss", "", [ROWS, ROWS], {1: (4, 5)}, "bottom[1]: "),
    ("SigmoidCrossEntropyLoss", "", [ROWS, ROWS], {1: (4, 7)}, "bottom[1]: "),
    ("ContrastiveLoss", "", [ROWS, ROWS, np.array([1.0, 0, 1, 1])], {1: (4, 5)}, "bottom[1]: has 5 features, bottom[0] 6"),
    ("ContrastiveLoss", "", [ROWS, ROWS, np.array([1.0, 0, 1, 1])], {2: (3,)}, "bottom[2]: needs one element for each of the 4 pairs, got [3]"),
    ("ContrastiveLoss", "", [ROWS, ROWS, np.array([1.0, 0, 1, 1])], {2: (5,)}, "bottom[2]: needs one element for each of the 4 pairs, got [5]"),
    ("ContrastiveLoss", "", [ROWS, ROWS, np.array([1.0, 0, 1, 1])], {0: (4, 6, 2)}, "bottom[0]: must be rows of features, (N, C)"),
    ("ContrastiveLoss", "", [ROWS, ROWS, np.array([1.0, 0, 1, 1])], {0: (4,)}, "bottom[0]: must be rows of features, (N, C), got [4]"),
    ("BatchReindex", "", [ROWS, np.array([3.0, 0])], {0: ()}, "bottom[0]: needs an axis to pick from, got a scalar"),
    ("LSTMUnit", "", [(1, 3, 2), (1, 3, 8), np.ones((1, 3))], {1: (1, 3, 6)}, "bottom[1]: must have shape [1, 3, 8]"),
    ("LSTMUnit", "", [(1, 3, 2), (1, 3, 8), np.ones((1, 3))], {0: (3, 2)}, "bottom[0]: must have shape [1, N, D]"),
    ("LSTMUnit", "", [(1, 3, 2), (1, 3, 8), np.ones((1, 3))], {0: (2, 3, 2)}, "bottom[0]: must have shape [1, N, D]"),
    ("LSTMUnit", "", [(1, 3, 2), (1, 3, 8), np.ones((1, 3))], {1: (1, 2, 8)}, "bottom[1]: must have shape [1, 3, 8]"),
    ("LSTMUnit", "", [(1, 3, 2), (1, 3, 8), np.ones((1, 3))], {2: (3,)}, "bottom[2]: must have shape [1, 3]"),
    ("LSTM", f"recurrent_param {{ num_output: 2 {FILL} }}", [(2, 3, 4), np.zeros((2, 3))], {1: (3, 2)}, "bottom[1]: must have shape [2, 3]"),
    ("RNN", f"recurrent_param {{ num_output: 2 {FILL} }}", [(2, 3, 4), np.zeros((2, 3))], {0: (5, 3, 4), 1: (5, 3)}, "bottom[0]: has 5 steps, the layer was made for 2"),
    ("RNN", f"recurrent_param {{ num_output: 2 {FILL} }}", [(2, 3, 4), np.zeros((2, 3))], {0: (2, 3, 9)},
     "bottom[0]: has shape [2, 3, 9], 9 values for each step of a sequence; the layer was set up for 4"),
    ("RNN", f"recurrent_param {{ num_output: 2 {FILL} }}", [(2, 3, 4), np.zeros((2, 3)), (3, 5)], {2: (3, 7)},
     "bottom[2]: has shape [3, 7], 7 values for each step of a sequence; the layer was set up for 5"),
]


@pytest.mark.parametrize("kind, fields, bottoms, shapes, message", CASES, ids=[f"{case[0]}-{case[4][:50]}" for case in CASES])
def test_second_reshape_is_refused(kind, fields, bottoms, shapes, message):
    arrays = [np.random.default_rng(1).uniform(0.2, 0.8, part) if isinstance(part, tuple) else part for part in bottoms]
    names = " ".join(f'bottom: "b{i}"' for i in range(len(arrays)))
    tops = 'top: "y"' + ' top: "z"' * (kind in ("Slice", "LSTMUnit"))
    net = forward_net(f'layer {{ name: "l" type: "{kind}" {names} {tops} {fields} }}', arrays)
    before = [top.cpu_data.copy() for top in net.tops[-1]]
    blobs = [net.blob_by_name(f"b{i}") for i in range(len(arrays))]
    for i, shape in shapes.items():
        blobs[i].reshape(*shape)
        blobs[i].data[...] = 1
    with pytest.raises((ConfigError, ShapeError), match=rf"layer 'l' \({kind}\): .*{re.escape(message)}"):
        run_forward(net)
    for blob, array in zip(blobs, arrays):
        blob.reshape(*array.shape)
        blob.data[...] = array
    run_forward(net)
    for top, wanted in zip(net.tops[-1], before, strict=True):
        np.testing.assert_array_equal(top.cpu_data, wanted)
