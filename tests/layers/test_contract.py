"""What every layer type with a gradient keeps to (minicaffe/layer.pyx): it overwrites the diffs that are asked for, adds to those of
the parameters that learn, and touches no others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gradient import layer_net, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Blob, Dtype
from minicaffe.errors import ConfigError, RecycledError, ShapeError
from minicaffe.layer import Layer, layer_types, register_layer

X, Y = (2, 4, 3, 3), (2, 5)
LABEL = np.array([0.0, 3])
BOXES = np.stack([np.array([0.1, 0.1, 0.5, 0.5, 0.4, 0.4, 0.9, 0.9]), np.full(8, 0.1)])[None]
OBJECT = np.array([0, 1, 0, 0.1, 0.1, 0.5, 0.5, 0]).reshape(1, 1, 1, 8)
FILL = 'weight_filler { type: "gaussian" std: 1 }'

# type, its bottoms (a shape of random numbers from 0.2 to 0.8, or an array), how many tops, for which bottoms it has a gradient,
# fields
LAYERS = [
    ("AbsVal", [Y], 1, [1], ""), ("BNLL", [Y], 1, [1], ""), ("Clip", [Y], 1, [1], "clip_param { min: 0 max: 1 }"),
    ("Dropout", [Y], 1, [1], ""), ("ELU", [Y], 1, [1], ""), ("Exp", [Y], 1, [1], ""), ("Log", [Y], 1, [1], ""),
    ("Power", [Y], 1, [1], "power_param { power: 2 }"), ("ReLU", [Y], 1, [1], ""), ("Sigmoid", [Y], 1, [1], ""),
    ("Swish", [Y], 1, [1], ""), ("TanH", [Y], 1, [1], ""), ("Softmax", [Y], 1, [1], ""),
    ("BatchNorm", [X], 1, [1], ""), ("MVN", [X], 1, [1], ""), ("LRN", [X], 1, [1], ""), ("Normalize", [X], 1, [1], ""),
    ("PReLU", [np.full(X, -0.5)], 1, [1], ""), ("Scale", [X], 1, [1], "scale_param { bias_term: true }"),
    ("Scale", [X, (4,)], 1, [1, 1], "scale_param { bias_term: true }"), ("Bias", [X], 1, [1], ""), ("Bias", [X, (4,)], 1, [1, 1], ""),
    ("Reduction", [X], 1, [1], ""), ("Pooling", [X], 1, [1], "pooling_param { kernel_size: 2 }"),
    ("Pooling", [X], 1, [1], "pooling_param { kernel_size: 2 pool: AVE }"),
    ("Convolution", [X], 1, [1], f"convolution_param {{ num_output: 2 kernel_size: 2 {FILL} }}"),
    ("Convolution", [X, X], 2, [1, 1], f"convolution_param {{ num_output: 2 kernel_size: 2 {FILL} }}"),
    ("Deconvolution", [X, X], 2, [1, 1], f"convolution_param {{ num_output: 2 kernel_size: 2 {FILL} }}"),
    ("Im2col", [X], 1, [1], "convolution_param { kernel_size: 2 }"),
    ("InnerProduct", [X], 1, [1], f"inner_product_param {{ num_output: 3 {FILL} }}"),
    ("Embed", [np.array([0.0, 2])], 1, [0], "embed_param { input_dim: 3 num_output: 2 }"),
    ("BatchReindex", [X, np.array([1.0, 1, 0])], 1, [1, 0], ""), ("Filter", [X, Y, np.array([1.0, 1])], 2, [1, 1, 0], ""),
    ("Concat", [X, X], 1, [1, 1], ""), ("Slice", [X], 2, [1], ""), ("Tile", [Y], 1, [1], "tile_param { tiles: 2 }"),
    ("Crop", [X, (2, 4, 2, 2)], 1, [1, 0], ""), ("Permute", [X], 1, [1], "permute_param { order: 1 }"), ("Split", [X], 2, [1], ""),
    ("Silence", [X], 0, [1], ""), ("SPP", [X], 1, [1], "spp_param { pyramid_height: 2 }"),
    *(("Eltwise", [Y, Y], 1, [1, 1], f"eltwise_param {{ operation: {operation} }}") for operation in ("SUM", "PROD", "MAX")),
    ("LSTM", [(2, 3, 4), np.ones((2, 3)), (3, 2)], 1, [1, 0, 1], f"recurrent_param {{ num_output: 2 {FILL} }}"),
    ("RNN", [(2, 3, 4), np.ones((2, 3)), (3, 2)], 1, [1, 0, 1], f"recurrent_param {{ num_output: 2 {FILL} }}"),
    ("LSTMUnit", [(1, 3, 2), (1, 3, 8), np.ones((1, 3))], 2, [1, 1, 0], ""),
    ("SoftmaxWithLoss", [Y, LABEL], 1, [1, 0], ""), ("HingeLoss", [Y, LABEL], 1, [1, 0], ""),
    ("MultinomialLogisticLoss", [Y, LABEL], 1, [1, 0], ""), ("InfogainLoss", [Y, LABEL, (5, 5)], 1, [1, 0, 0], ""),
    ("EuclideanLoss", [Y, Y], 1, [1, 1], ""), ("SigmoidCrossEntropyLoss", [Y, Y], 1, [1, 0], ""),
    ("ContrastiveLoss", [Y, Y, LABEL], 1, [1, 1, 0], ""), ("SmoothL1Loss", [Y, Y, Y], 1, [1, 1, 0], ""),
    ("SmoothL1Loss", [Y, Y, Y, Y], 1, [1, 1, 0, 0], "smooth_l1_loss_param { sigma: 2 }"),
    ("MultiBoxLoss", [(1, 8), (1, 4), BOXES, OBJECT], 1, [1, 1, 0, 0], "multibox_loss_param { num_classes: 2 }"),
]
ROIS = np.array([[0.0, 0, 0, 2, 2], [1, 1, 0, 2, 2]])
FORKS = [
    ("ReLU6", [Y], 1, [1], ""), ("ReLUX", [Y], 1, [1], "relux_param { maximal_value: 0.5 }"),
    ("BN", [X], 1, [1], ""), ("BN", [X], 1, [1], "bn_param { bn_mode: LEARN }"), ("BN", [X], 1, [1], "bn_param { bn_mode: INFERENCE }"),
    ("Reverse", [X], 1, [1], "reverse_param { axis: 1 }"), ("ShuffleChannel", [X], 1, [1], "shuffle_channel_param { group: 2 }"),
    ("Reorg", [X], 1, [1], "reorg_param { stride: 2 reverse: true }"), ("Squeeze", [(2, 1, 3)], 1, [1], ""),
    ("Interp", [X], 1, [1], "interp_param { height: 5 width: 4 }"), ("Interp", [X, (1, 1, 5, 2)], 1, [1, 0], "interp_param { use_blob_size: true }"),
    ("Resize", [X], 1, [1], "resize_param { height: 4 width: 5 }"), ("Upsample", [X], 1, [1], "upsample_param { scale: 2 }"),
    ("Upsample", [X, np.zeros(X)], 1, [1, 0], ""),
    ("ROIPooling", [X, ROIS], 1, [1, 0], "roi_pooling_param { pooled_h: 2 pooled_w: 2 }"),
    ("PSROIPooling", [X, ROIS], 1, [1, 0], "psroi_pooling_param { output_dim: 1 group_size: 2 spatial_scale: 1 }"),
    ("ROIAlign", [X, ROIS], 1, [1, 0], "roi_pooling_param { pooled_h: 2 pooled_w: 2 }"),
    ("Lstm", [(2, 3, 4), np.ones((2, 3))], 1, [1, 0], f"lstm_param {{ num_output: 2 {FILL} }}"),
    ("Normalize", [X], 2, [1], "normalize_param { normalize_type: 'L1' }"), ("Normalize", [X], 1, [1], "normalize_param { normalize_type: 'L2' }"),
    ("Rearrange", [X], 1, [1], ""),
]
def named(layers):
    ids = [f"{name}-{len(bottoms)}-{fields}".rstrip("-") for name, bottoms, _, _, fields in layers]
    return pytest.mark.parametrize("name, bottoms, tops, gradient, fields", layers, ids=ids)


def net_of(name, bottoms, tops, fields, top_names=None, dtype=Dtype.DOUBLE):
    random = np.random.default_rng(1)
    arrays = [random.uniform(0.2, 0.8, part) if isinstance(part, tuple) else part for part in bottoms]
    names = [" ".join(f"{side}{i}" for i in range(count)) for side, count in (("b", len(bottoms)), ("t", tops))]
    return layer_net(layer_text(name, "l", names[0], " ".join(top_names) if top_names else names[1], fields), arrays, dtype)


def backward(net, needs):
    node, index = net.nodes[-1], len(net.layers) - 1
    node.needs_backward, node.bottom_needs = True, [bool(needs[i]) for i in range(len(net.bottoms[-1]))]
    net.backward_from_to(index, index)


@named(LAYERS + FORKS)
def test_backward_touches_what_is_asked_for(name, bottoms, tops, gradient, fields):
    net = net_of(name, bottoms, tops, fields)
    layer = net.layers[-1]
    asked = [(i, "bottom") for i, has in enumerate(gradient) if has] + [(i, "parameter") for i in range(len(layer.blobs))]
    for which, kind in [(None, None), *asked]:
        run_forward(net)
        for blob in (*net.bottoms[-1], *layer.blobs):
            blob.diff[...] = 7
        for top, weight in zip(net.tops[-1], layer.loss_weights):
            top.diff[...] = weight or 1
        layer.param_propagate_down = [kind == "parameter" and i == which for i in range(len(layer.blobs))]
        backward(net, [kind == "bottom" and i == which for i in range(len(bottoms))])
        if name in ("LSTM", "RNN", "Lstm"):  # whose parameters always get a gradient
            layer.param_propagate_down = [True] * len(layer.blobs)
        for i, blob in enumerate(net.bottoms[-1]):
            if kind == "bottom" and i == which:
                assert not (blob.diff == 7).any(), f"bottom {i}"
            elif kind is None or name != "LSTMUnit" or not gradient[i]:  # which computes both of its gradients at once
                assert (blob.diff == 7).all(), f"bottom {i}, when asked for {kind} {which}"
        for i, blob in enumerate(layer.blobs):
            if name == "BatchNorm" or name == "BN" and i > 1 or not layer.param_propagate_down[i]:    # running averages
                assert (blob.diff == 7).all(), f"parameter {i}, when asked for {kind} {which}"
            elif kind == "parameter" and i == which:
                assert (blob.diff != 7).any(), f"parameter {i}"


@named([*LAYERS, *FORKS, ("Power", [Y], 1, [1], ""), ("Power", [Y], 1, [1], "power_param { power: 3 shift: 1 }")])
def test_backward_reads_only_named_data(name, bottoms, tops, gradient, fields):
    """A plan of memory recycles the data that backward does not read: NaN in them changes no gradient."""
    found = []
    for value in (None, np.nan):
        net = net_of(name, bottoms, tops, fields)
        layer = net.layers[-1]
        run_forward(net)
        for top, weight in zip(net.tops[-1], layer.loss_weights):
            top.diff[...] = weight or np.arange(top.count).reshape(top.shape)
        for blob in layer.blobs:
            blob.diff[...] = 0
        unread = [*(() if layer.backward_reads_bottoms else net.bottoms[-1]), *(() if layer.backward_reads_tops else net.tops[-1])]
        for blob in unread if value is not None else ():
            blob.data[...] = value
        backward(net, gradient)
        found.append([blob.diff.copy() for blob in (*net.bottoms[-1], *layer.blobs)])
    for before, after in zip(*found):
        np.testing.assert_array_equal(after, before)


@named(LAYERS + FORKS)
def test_what_a_layer_says(name, bottoms, tops, gradient, fields):
    """Also what it reads only while a CUDA graph is recorded, or for a table of costs."""
    net = net_of(name, bottoms, tops, fields)
    layer, blobs = net.layers[-1], (net.bottoms[-1], net.tops[-1])
    # SigmoidCrossEntropyLoss and its like refuse their labels, Crop gives its reference no gradient, and says nothing.
    assert [layer.allow_force_backward(i) for i in range(len(bottoms))] == [bool(has) or name == "Crop" for has in gradient]
    for _ in range(2):
        run_forward(net)
        assert layer.capture_obstacle() is None or layer.capture_obstacle().split()[0] in ("it", "its", "the")
        layer.inspect(blobs[0])
        assert all(isinstance(blob, Blob) for blob in layer.scratch_blobs())
        assert layer.multiply_adds(*blobs) >= 0 and layer.flops(*blobs) >= 2 * layer.multiply_adds(*blobs)
        costs = [layer.backward_flops(*blobs, needs) for needs in ([False] * len(bottoms), list(map(bool, gradient)))]
        assert 0 <= costs[0] <= costs[1]
        assert layer.get_state() is None or layer.get_state() == layer.get_state()
        layer.release_memory()
        assert layer.scratch_memory() == []
    run_forward(net)
    refused = {i: what for i, what in layer.no_gradient.items() if i < len(bottoms)}
    assert not any(gradient[i] for i in refused)
    for i, what in refused.items() if ".forks." not in type(layer).__module__ else ():    # those of the forks get zeros
        with pytest.raises(ConfigError, match=rf"bottom\[{i}\]: {name} has no gradient for {what}; set propagate_down: false"):
            backward(net, [which == i for which in range(len(bottoms))])
    if "Loss" in name:      # which needs no top
        net = net_of(name, bottoms, 0, fields)
        assert len(net.tops[-1]) == 1 and net.layers[-1].loss_weights == [1] == list(net.layers[-1].param.loss_weight)
        assert run_forward(net) == net.tops[-1][0].data.item()


NOT_IN_PLACE = ["AbsVal", "BatchReindex", "Concat", "Convolution", "Crop", "Deconvolution", "Eltwise", "Embed", "Filter", "Im2col",
                "InnerProduct", "LRN", "LSTM", "LSTMUnit", "Permute", "Pooling", "RNN", "Reduction", "Slice", "Split", "Tile"]


@named([layer for layer in LAYERS if layer[0] in NOT_IN_PLACE])
def test_no_top_may_be_a_bottom(name, bottoms, tops, gradient, fields):
    with pytest.raises(ConfigError, match=rf"top\[0\]: {name} cannot (work|go backward) in place"):
        net_of(name, bottoms, tops, fields, ["b0", *(f"t{i}" for i in range(1, tops))])


@pytest.mark.parametrize("name, bottoms", [("ArgMax", [Y]), ("Accuracy", [Y, LABEL]), ("Threshold", [Y])])
def test_type_without_gradient(name, bottoms):
    net = net_of(name, bottoms, 1, "")
    run_forward(net)
    with pytest.raises(ConfigError, match=rf"layer type {name} has no gradient; cut it off with propagate_down: false, and build the net without"):
        backward(net, [True, False])


def test_layer_type_is_subclass():
    for wrong in 3, None, "ReLU", int, Blob, [Layer]:
        with pytest.raises(ConfigError, match="Nothing: a layer type is a subclass of Layer, got "):
            register_layer("Nothing", wrong)
    assert "Nothing" not in layer_types()
    with pytest.raises(ConfigError, match="dtype: layers do not compute on int32; give FLOAT or DOUBLE"):
        layer_net('layer { name: "r" type: "ReLU" bottom: "x" top: "y" }', [np.ones(3)], dtype=Dtype.INT)


SPREAD = np.random.default_rng(5).standard_normal(X)
FILLED = "filler { type: 'uniform' min: 0.5 max: 2 }"


@pytest.mark.parametrize("name, bottoms, fields", [
    ("BatchNorm", [SPREAD], ""), ("BatchNorm", [SPREAD], "batch_norm_param { use_global_stats: true }"),
    *(("MVN", [SPREAD], f"mvn_param {{ {field} }}") for field in ("", "normalize_variance: false", "across_channels: true")),
    ("Scale", [SPREAD], f"scale_param {{ bias_term: true {FILLED} }}"), ("Scale", [SPREAD, (4,)], ""), ("Bias", [SPREAD], f"bias_param {{ {FILLED} }}"),
    ("PReLU", [SPREAD], f"prelu_param {{ {FILLED} }}"), ("Softmax", [SPREAD], "")])
def test_in_place_gives_the_same(name, bottoms, fields):
    results = []
    for top in ("t0", "b0"):
        net = net_of(name, bottoms, 1, fields, [top])
        run_forward(net)
        y = net.blobs[top].data.copy()
        if name != "Softmax":   # what a later layer in place does: backward must not read it
            net.blobs[top].data[...] = np.nan
        run_backward(net, list(range(len(bottoms))), [np.random.default_rng(6).standard_normal(X)])
        results.append([y, *(blob.diff.copy() for blob in [*net.bottoms[-1], *net.layers[-1].blobs])])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert all(np.isfinite(part).all() for part in results[0])
    for apart, in_place in zip(*results):
        np.testing.assert_allclose(apart, in_place, rtol=1e-12, atol=1e-12)


GONE = r"layer 'l' .*: the data that the last forward kept is gone: after net.release\(\) or a reshape run forward first"


@named([layer for layer in LAYERS if layer[0] in ("BatchNorm", "MVN", "PReLU", "Scale", "Swish")])
def test_backward_in_place_needs_forward(name, bottoms, tops, gradient, fields):
    net = net_of(name, bottoms, tops, fields, ["b0"])
    with pytest.raises(ShapeError, match=r"layer 'l' .*bottom\[0\]: forward has not run for a bottom of shape .*; run forward before"):
        backward(net, gradient)
    run_forward(net)
    backward(net, gradient)
    x, last = net.bottoms[-1][0], len(net.layers) - 1
    x.reshape(300, *x.shape[1:])
    net.reshape_all()
    net.forward_from_to(0, 0)
    with pytest.raises(ShapeError, match="run forward before backward"):
        backward(net, gradient)
    x.data[...] = 0.5
    net.forward_from_to(last, last)
    backward(net, gradient)
    net.release()
    with pytest.raises(RecycledError, match=GONE):
        backward(net, gradient)


@named([next(layer for layer in LAYERS if layer[0] == name) for name in ("Dropout", "LSTM", "Pooling", "SoftmaxWithLoss")])
def test_backward_after_release(name, bottoms, tops, gradient, fields):
    """The mask, the gates, the probabilities are gone with the rest: zeros would be a wrong gradient."""
    net = net_of(name, bottoms, tops, fields)
    run_forward(net)
    net.release()
    with pytest.raises(RecycledError, match=GONE):
        backward(net, gradient)
    run_forward(net)
    backward(net, gradient)


FUZZED = Path(__file__).resolve().parents[1] / "fuzz/nets"
PROGRAM = """
import glob
import minicaffe as caffe

refused = 0
for path in sorted(glob.glob("*.prototxt")):
    try:
        caffe.Net(path, caffe.TRAIN)
    except caffe.errors.Error:      # its files are made by the tests of the fuzzer
        continue
    for method in ("flops", "multiply_adds", "reshape", "forward_cpu", "forward_gpu", "layer_setup", "set_up",
                   "backward_flops", "backward_cpu", "backward_gpu"):
        for wrong in ([], [None] * 9, [5] * 9):
            net = caffe.Net(path, caffe.TRAIN)
            for name, layer in zip(net._layer_names, net.layers):
                bottom, top = ([net.blobs[blob] for blob in names[name]] for names in (net.bottom_names, net.top_names))
                lists = [bottom, top]
                if "backward" in method:
                    lists = [bottom, top, [True] * len(bottom)] if method == "backward_flops" else [top, [True] * len(bottom), bottom]
                for some in (*([wrong if i == j else given for j, given in enumerate(lists)] for i in range(len(lists))), [wrong] * len(lists)):
                    print(path, layer.type, method, [values[:1] for values in some], flush=True)
                    try:
                        getattr(layer, method)(*some)
                    except Exception:
                        refused += 1
print("refused", refused)
"""


@pytest.mark.slow(3)
def test_no_process_ends(tmp_path):
    """Whose methods get lists that are empty, too short, or of other objects."""
    shutil.copytree(FUZZED, tmp_path / "nets")    # HDF5Output writes beside its net
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path / "nets", capture_output=True, text=True, timeout=200,
                          env={**os.environ, "GLOG_minloglevel": "3"})
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, f"{done.returncode}: {last}\n{done.stderr[-2000:]}"
    assert last.startswith("refused ") and int(last.split()[1]) > 4000, last
