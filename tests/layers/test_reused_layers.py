"""A layer that ran for other shapes and other numbers gives the bits of a new one: what the first run left has no effect.

Each type runs at its shapes, then at changed ones, then at the first again, with other numbers each time. The diffs of the bottoms
hold another number before each backward than those of the new one, so that a part which is not written is seen.
"""

import re

import numpy as np
import pytest
from gradient import run_backward, run_forward
from test_contract import FILL, LAYERS, X, Y, net_of

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, DataError, ShapeError

MORE = [
    *(("Reduction", [X], 1, [1], f"reduction_param {{ operation: {operation} axis: {axis} coeff: 2 }}")
      for operation in ("SUM", "ASUM", "SUMSQ", "MEAN") for axis in (0, 1, 2)),
    *(("Pooling", [X], 1, [1], f"pooling_param {{ kernel_size: 3 stride: 2 pad: 1 pool: {pool} }}") for pool in ("MAX", "AVE")),
    ("Pooling", [X], 2, [1], "pooling_param { kernel_size: 2 stride: 2 }"), ("Pooling", [X], 1, [1], "pooling_param { kernel_size: 2 pool: STOCHASTIC }"),
    *(("Pooling", [X], 1, [1], f"pooling_param {{ global_pooling: true pool: {pool} }}") for pool in ("MAX", "AVE")),
    ("LRN", [X], 1, [1], "lrn_param { local_size: 3 norm_region: WITHIN_CHANNEL }"),
    *(("MVN", [X], 1, [1], f"mvn_param {{ across_channels: {across} normalize_variance: {variance} }}")
      for across in ("true", "false") for variance in ("true", "false")),
    *((kind, [Y, (2,), *more], 1, [1, *[0] * (1 + len(more))], f"loss_param {{ {fields} }}")
      for kind, more in (("SoftmaxWithLoss", []), ("InfogainLoss", [(5, 5)]))
      for fields in ("ignore_label: 0 normalization: VALID", "normalization: FULL", "normalization: NONE")),
    *(("ContrastiveLoss", [Y, Y, (2,)], 1, [1, 1, 0], f"contrastive_loss_param {{ legacy_version: {legacy} }}") for legacy in ("true", "false")),
    ("Normalize", [X], 1, [1], "norm_param { across_spatial: false }"), ("Permute", [X], 1, [1], "permute_param { order: 3 order: 1 order: 0 }"),
    ("Concat", [X, X], 1, [1, 1], "concat_param { axis: 2 }"), ("Slice", [X], 2, [1], "slice_param { axis: 1 slice_point: 1 }"),
    ("ArgMax", [Y], 1, [0], "argmax_param { top_k: 2 }"), ("Accuracy", [Y, (2,)], 2, [0, 0], ""), ("Threshold", [Y], 1, [0], ""),
    ("Flatten", [X], 1, [1], ""), ("Reshape", [X], 1, [1], "reshape_param { shape { dim: 0 dim: -1 } }"),
    ("Convolution", [X], 1, [1], f"convolution_param {{ num_output: 4 group: 2 kernel_size: 3 pad: 1 dilation: 2 stride: 2 {FILL} }}"),
    ("Convolution", [X], 1, [1], f"convolution_param {{ num_output: 4 group: 4 kernel_size: 3 pad: 1 {FILL} }}"),
    ("BN", [X], 1, [1], 'bn_param { slope_filler { type: "gaussian" std: 1 } }'), ("BN", [X], 1, [1], 'bn_param { scale_filler { type: "gaussian" std: 1 } }'),
    ("Lstm", [(4, 3, 2)], 1, [1], 'lstm_param { num_output: 2 weight_filler { type: "gaussian" std: 1 } }'),
    ("Lstm", [(4, 3, 2), (4, 3)], 1, [1, 0], 'lstm_param { num_output: 2 weight_filler { type: "gaussian" std: 1 } }'),
]
# The labels and marks of some bottoms: how many there are; they are drawn again each time.
INTEGERS = {("SoftmaxWithLoss", 1): 5, ("HingeLoss", 1): 5, ("MultinomialLogisticLoss", 1): 5, ("InfogainLoss", 1): 5, ("Accuracy", 1): 5,
            ("ContrastiveLoss", 2): 2, ("Filter", 2): 2, ("Embed", 0): 3, ("BatchReindex", 1): 2, ("LSTM", 1): 2, ("RNN", 1): 2, ("LSTMUnit", 2): 2,
            ("Lstm", 1): 2}
CASES = [case for case in LAYERS if case[0] not in ("MultiBoxLoss",)] + MORE


def other_shapes(name, shapes):
    """Yield shapes that the type may take: another size of one axis of all bottoms that have it, or of the first alone."""
    if name in ("LSTM", "RNN", "LSTMUnit", "Lstm"):     # the number of sequences, which is the first axis of a static bottom
        for n in (1, 5):
            yield [(*shape[:1], n, *shape[2:]) if len(shape) > 2 or shape[0] != 3 else (n, *shape[1:]) for shape in shapes]
        return
    for axis in range(4):
        for size in (1, 5):
            yield [(*shape[:axis], size, *shape[axis + 1:]) if axis < len(shape) else shape for shape in shapes]
            if axis:
                yield [(*shapes[0][:axis], size, *shapes[0][axis + 1:]) if axis < len(shapes[0]) else shapes[0], *shapes[1:]]


def numbers(name, shapes, seed):
    random = np.random.default_rng(seed)
    most = {key: min(count, shapes[0][1]) if count == 5 and len(shapes[0]) > 1 else count for key, count in INTEGERS.items()}      # labels of so many classes
    return [random.integers(0, most[name, i], shape).astype(float) if (name, i) in most else random.uniform(0.2, 0.8, shape)
            for i, shape in enumerate(shapes)]


def run(net, name, shapes, gradient, seed, before):
    """Feed numbers, run forward and backward, and return the tops and all gradients; `before` is in the diffs of the bottoms."""
    for blob, array in zip(net.input_blobs, numbers(name, shapes, seed), strict=True):
        blob.reshape(*array.shape)
        blob.data[...] = array
    run_forward(net)
    layer, tops = net.layers[-1], [top.data.copy() for top in net.tops[-1]]
    asked = [i for i, has in enumerate(gradient) if has]
    if not asked:
        return tops
    for blob in net.bottoms[-1]:
        blob.diff[...] = before
    for blob in layer.blobs:
        blob.diff[...] = 0
    random = np.random.default_rng(seed + 100)
    seeds = [None if weight else random.uniform(-1, 1, top.shape) for top, weight in zip(net.tops[-1], layer.loss_weights)]
    run_backward(net, asked, seeds)
    return [*tops, *(net.bottoms[-1][i].diff.copy() for i in asked), *(blob.diff.copy() for blob in layer.blobs)]


def new_net(case, shapes, parameters=()):
    name, _, tops, _, fields = case
    net = net_of(name, numbers(name, shapes, 0), tops, fields, dtype=Dtype.FLOAT)
    for blob, array in zip(net.layers[-1].blobs, parameters):
        if blob.shape == array.shape:
            blob.data[...] = array
    return net


@pytest.mark.parametrize("case", CASES, ids=[f"{name}-{len(bottoms)}-{fields}".rstrip("-") for name, bottoms, _, _, fields in CASES])
def test_earlier_run_has_no_effect(case):
    name, bottoms, _, gradient, _ = case
    first = [tuple(np.shape(part)) if not isinstance(part, tuple) else part for part in bottoms]
    shapes = [first]
    for others in other_shapes(name, first):
        if others in shapes:
            continue
        try:
            run(new_net(case, others), name, others, gradient, 1, 0)
        except (ShapeError, ConfigError, DataError):
            continue        # of no use to this type
        shapes += [others, first]
    assert len(shapes) > 1 or name in ("Embed",), "no other shape fits this type: give it some"
    net = new_net(case, first)
    keeps_state = name in ("LSTM", "RNN", "Lstm")
    for seed, now in enumerate(shapes):
        parameters = [blob.data.copy() for blob in net.layers[-1].blobs]
        again = keeps_state and net.input_blobs[0].shape == now
        new = new_net(case, now, parameters)
        try:
            found = run(net, name, now, gradient, seed, 7e7)
        except ShapeError:      # its parameters are for the shapes that it was made for
            continue
        if again:
            continue            # it continues from its state
        wanted = run(new, name, now, gradient, seed, -3e3)
        assert len(found) == len(wanted)
        for i, (one, other) in enumerate(zip(found, wanted)):
            np.testing.assert_array_equal(one, other, err_msg=f"array {i} of run {seed}, at {now} after {shapes[seed - 1]}")


PLANES, ROWS = (2, 4, 3, 5), (4, 6)
LABELS, GAUSSIAN = np.array([0.0, 2, 3, 1]), 'weight_filler { type: "gaussian" }'
# type and fields; bottoms, arrays or shapes of random numbers; the shapes that some get later; the error
REFUSED = [
    ("Scale", "", [PLANES], {0: (2, 5, 3, 5)}, "blobs[0]: has shape [4], which bottom[0] of shape [2, 5, 3, 5] does not have from axis 1 on"),
    ("Scale", "", [PLANES, (4,)], {1: (5,)}, "bottom[1]: has shape [5], which bottom[0] of shape [2, 4, 3, 5] does not have"),
    ("Scale", "scale_param { bias_term: true }", [PLANES, (4,)], {0: (2, 6, 3, 5), 1: (6,)}, "bottom[1]: has 6 values, the bias has 4"),
    ("Scale", "scale_param { bias_term: true }", [PLANES, (4,)], {0: (2, 3, 3, 5), 1: (3,)}, "bottom[1]: has 3 values, the bias has 4"),
    ("Bias", "", [PLANES], {0: (2, 3, 3, 5)}, "blobs[0]: has shape [4]"),
    ("Bias", "", [PLANES, (4,)], {1: (4, 5)}, "bottom[1]: has shape [4, 5]"),
    ("PReLU", "", [PLANES], {0: (2, 5, 3, 5)}, "bottom[0]: needs 4 channels"),
    ("PReLU", "", [PLANES], {0: (8,)}, "bottom[0]: needs 4 channels"),
    ("BatchNorm", "", [PLANES], {0: (2, 3, 3, 5)}, "bottom[0]: needs 4 channels"),
    ("InnerProduct", f"inner_product_param {{ num_output: 3 {GAUSSIAN} }}", [PLANES], {0: (2, 4, 3, 6)}, "bottom[0]: has shape [2, 4, 3, 6], 72 values from axis 1 on"),
    ("InnerProduct", f"inner_product_param {{ num_output: 3 {GAUSSIAN} }}", [ROWS], {0: (4, 5)}, "values from axis 1 on; the layer was set up for 6"),
    ("Pooling", "pooling_param { kernel_size: 3 }", [PLANES], {0: (2, 4, 3, 2)}, "pooling_param.kernel_size: a kernel of 3x3 does not fit planes of 3x2"),
    ("Pooling", "pooling_param { kernel_size: 3 }", [PLANES], {0: (2, 4, 2, 5)}, "pooling_param.kernel_size: a kernel of 3x3 does not fit planes of 2x5"),
    ("Pooling", "pooling_param { kernel_size: 3 }", [PLANES], {0: (2, 12, 5)}, "bottom[0]: Pooling needs 4 axes"),
    ("Im2col", "convolution_param { kernel_h: 2 kernel_w: 4 }", [PLANES], {0: (2, 4, 4, 3)}, "the window covers 4 pixels"),
    ("LRN", "", [PLANES], {0: (2, 4, 3)}, "bottom[0]: LRN needs 4 axes"),
    ("SPP", "spp_param { pyramid_height: 2 }", [PLANES], {0: (2, 4, 3)}, "bottom[0]: SPP needs 4 axes"),
    ("SPP", "spp_param { pyramid_height: 3 }", [(1, 2, 7, 8)], {0: (1, 2, 7, 1)}, "spp_param.pyramid_height: 1 pixels cannot be cut into"),
    ("Softmax", "softmax_param { axis: 3 }", [PLANES], {0: (2, 4, 3)}, "softmax_param.axis"),
    ("Reduction", "reduction_param { axis: -4 }", [PLANES], {0: (2, 4, 3)}, "reduction_param.axis"),
    ("Flatten", "flatten_param { axis: 2 }", [PLANES], {0: (2, 4)}, "flatten_param.axis"),
    ("Reshape", "reshape_param { shape { dim: 0 dim: 60 } }", [PLANES], {0: (2, 4, 3, 6)}, "reshape_param.shape: gives [2, 60] with 120 elements"),
    ("Tile", "tile_param { axis: 3 tiles: 2 }", [PLANES], {0: (2, 4, 3)}, "tile_param.axis"),
    ("Slice", "slice_param { slice_point: 3 }", [PLANES], {0: (2, 3, 3, 5)}, "slice_param.slice_point: must increase strictly between 0 and 3"),
    ("Slice", "", [PLANES], {0: (2, 5, 3, 5)}, "slice_param.slice_point: axis 1 of the bottom, shape [2, 5, 3, 5], cannot be cut into 2 equal parts"),
    ("Concat", "", [PLANES, PLANES], {1: (2, 4, 5, 3)}, "bottom[1]: has shape [2, 4, 5, 3], bottom[0] has [2, 4, 3, 5]"),
    ("Concat", "", [PLANES, PLANES], {1: (2, 4)}, "bottom[1]: has shape [2, 4], bottom[0] has [2, 4, 3, 5]"),
    ("Eltwise", "", [PLANES, PLANES], {1: (2, 4, 5, 3)}, "bottom[1]: has shape [2, 4, 5, 3], bottom[0] has [2, 4, 3, 5]"),
    ("Crop", "crop_param { axis: 2 offset: 1 }", [PLANES, (1, 1, 2, 4)], {1: (1, 1, 2, 5)}, "crop_param.offset: offset 1 and size 5 reach beyond axis 3"),
    ("Crop", "crop_param { axis: 2 offset: 1 }", [PLANES, (1, 1, 2, 4)], {0: (2, 4, 2, 5)}, "crop_param.offset: offset 1 and size 2 reach beyond axis 2"),
    ("Crop", "", [PLANES, (1, 1, 2, 4)], {1: (2, 4)}, "bottom[1]: needs as many axes as bottom[0]"),
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
    ("LSTM", f"recurrent_param {{ num_output: 2 {GAUSSIAN} }}", [(2, 3, 4), np.zeros((2, 3))], {1: (3, 2)}, "bottom[1]: must have shape [2, 3]"),
    ("RNN", f"recurrent_param {{ num_output: 2 {GAUSSIAN} }}", [(2, 3, 4), np.zeros((2, 3))], {0: (5, 3, 4), 1: (5, 3)}, "bottom[0]: has 5 steps, the layer was made for 2"),
    ("RNN", f"recurrent_param {{ num_output: 2 {GAUSSIAN} }}", [(2, 3, 4), np.zeros((2, 3))], {0: (2, 3, 9)},
     "bottom[0]: has shape [2, 3, 9], 9 values for each step of a sequence; the layer was set up for 4"),
    ("RNN", f"recurrent_param {{ num_output: 2 {GAUSSIAN} }}", [(2, 3, 4), np.zeros((2, 3)), (3, 5)], {2: (3, 7)},
     "bottom[2]: has shape [3, 7], 7 values for each step of a sequence; the layer was set up for 5"),
]


@pytest.mark.parametrize("kind, fields, bottoms, shapes, message", REFUSED, ids=[f"{case[0]}-{case[4][:50]}" for case in REFUSED])
def test_second_reshape_is_refused(kind, fields, bottoms, shapes, message):
    net = net_of(kind, bottoms, 1 + (kind in ("Slice", "LSTMUnit")), fields)
    arrays = {blob: blob.cpu_data.copy() for blob in net.input_blobs}
    run_forward(net)
    before = [top.cpu_data.copy() for top in net.tops[-1]]
    for i, shape in shapes.items():
        net.input_blobs[i].reshape(*shape)
        net.input_blobs[i].data[...] = 1
    with pytest.raises((ConfigError, ShapeError), match=rf"layer 'l' \({kind}\): .*{re.escape(message)}"):
        run_forward(net)
    for blob, array in arrays.items():
        blob.reshape(*array.shape)
        blob.data[...] = array
    run_forward(net)
    for top, wanted in zip(net.tops[-1], before, strict=True):
        np.testing.assert_array_equal(top.cpu_data, wanted)
