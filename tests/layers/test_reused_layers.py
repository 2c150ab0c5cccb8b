"""A layer that ran for other shapes and other numbers gives the bits of a new one: what the first run left has no effect.

Each type runs at its shapes, then at changed ones, then at the first again, with other numbers each time. The diffs of the bottoms
hold another number before each backward than those of the new one, so that a part which is not written is seen.
"""

import numpy as np
import pytest
from gradient import layer_net, run_backward, run_forward
from test_contract import FILL, LAYERS, X, Y

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
    bottom_text = " ".join(f'bottom: "b{i}"' for i in range(len(shapes)))
    top_text = " ".join(f'top: "t{i}"' for i in range(tops))
    net = layer_net(f'layer {{ name: "l" type: "{name}" {bottom_text} {top_text} {fields} }}', numbers(name, shapes, 0), Dtype.FLOAT)
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
