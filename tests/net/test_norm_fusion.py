"""BatchNorm computes the Scale and ReLU that follow it in place, forward and backward, and no blob shows it."""

import numpy as np
import pytest
from watched import fused, with_one_watched

import minicaffe as caffe
from minicaffe.blob import Blob, Dtype
from minicaffe.errors import ConfigError
from minicaffe.layer import layer_types, register_layer
from minicaffe.layers.batch_norm import BatchNormLayer
from minicaffe.layers.relu import ReLULayer
from minicaffe.net.net import Net
from minicaffe.net.run import BEFORE_BACKWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

INPUT = 'layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 3 dim: 4 dim: 5 dim: 6 } } }'
CONV = ('layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: %d kernel_size: 3 '
        'weight_filler { type: "gaussian" std: 1 } } }')
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "y" top: "y" batch_norm_param { eps: 0.01 } }'
FILLED = 'filler { type: "uniform" min: -1 max: 2 }'
SCALE = f'layer {{ name: "scale" type: "Scale" bottom: "y" top: "y" scale_param {{ bias_term: true {FILLED} bias_{FILLED} }} }}'
BIAS = f'layer {{ name: "bias" type: "Bias" bottom: "y" top: "y" bias_param {{ {FILLED} }} }}'
PRELU = f'layer {{ name: "prelu" type: "PReLU" bottom: "y" top: "y" prelu_param {{ {FILLED} }} }}'
RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'
LEAKY = 'layer { name: "leaky" type: "ReLU" bottom: "y" top: "y" relu_param { negative_slope: 0.25 } }'
LOSS = 'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 reduction_param { operation: SUMSQ } }'
OWN_TOP = NORM.replace('bottom: "y"', 'bottom: "x"')
GLOBAL = NORM.replace("eps", "use_global_stats: true eps")


def make(text, phase=caffe.TRAIN, dtype=Dtype.FLOAT):
    param = parse_text(INPUT + text, caffe_pb2.NetParameter)[0]
    param.state.phase = phase
    return Net(param, dtype=dtype)


def two_nets(text, phase=caffe.TRAIN, dtype=Dtype.FLOAT):
    """A net, and one with the same values that is read between layers."""
    return with_one_watched([make(text, phase, dtype) for _ in range(2)])


def step(net):
    last = len(net.layers) - 1
    net.forward_from_to(0, last)
    net.backward_from_to(last, 0)


def blobs_of(net):
    return {**{name: net.blob_by_name(name) for name in net.blob_names},
            **{f"{layer.name}[{i}]": blob for layer in net.layers for i, blob in enumerate(layer.blobs)}}


def assert_same(net, watched, diffs=True):
    double = net.dtype == Dtype.DOUBLE
    for (name, blob), other in zip(blobs_of(net).items(), blobs_of(watched).values(), strict=True):
        np.testing.assert_allclose(blob.data, other.data, 1e-11 if double else 1e-4, 1e-11 if double else 1e-5, err_msg=name)
        if diffs:
            np.testing.assert_allclose(blob.diff, other.diff, 1e-9 if double else 2e-3, 1e-9 if double else 2e-3, err_msg=name)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("outputs", [4, 16, 20])     # in plain order; in blocks of channels; in blocks, the last not full
@pytest.mark.parametrize(("layers", "names"), [
    (NORM + SCALE + RELU, ["scale", "relu"]),
    (NORM + SCALE, ["scale"]),
    (NORM + SCALE + LEAKY, ["scale", "leaky"]),
    (NORM + SCALE.replace("bias_term: true", "").replace("bias_" + FILLED, "") + RELU, ["scale", "relu"]),
    (NORM + BIAS + RELU, ["bias", "relu"]),
    (NORM + RELU, ["relu"]),
    (GLOBAL + SCALE + RELU, ["scale", "relu"]),
    (NORM + SCALE.replace("scale_param", "param { lr_mult: 0 } scale_param") + RELU, ["scale", "relu"]),
    (NORM + SCALE.replace("scale_param", "param { lr_mult: 0 } param { lr_mult: 0 } scale_param") + RELU, ["scale", "relu"]),
    (NORM + SCALE + BIAS + RELU, ["scale"]),            # one affine map
    (NORM + PRELU, []),                                 # learns its slopes
    (NORM + SCALE.replace("scale_param {", "scale_param { axis: 2 num_axes: 1") + RELU, []),    # not by channels
])
def test_a_step_gives_what_the_layers_one_by_one_give(layers, names, outputs, dtype):
    net, watched = two_nets(CONV % outputs + layers + LOSS, dtype=dtype)
    for _ in range(2):      # the second adds to the gradients of parameters
        step(net), step(watched)
        assert fused(net).get("norm", []) == names and not fused(watched)
        assert_same(net, watched)
    for layer in net.layers:
        for blob, learns in zip(layer.blobs, layer.param_propagate_down):
            assert bool(np.abs(blob.diff).max() > 0) == bool(learns)


def test_a_relu_whose_gradient_needs_its_bottom_runs_by_itself():
    net = make(CONV % 4 + NORM + SCALE + LEAKY.replace("0.25", "-0.5") + LOSS)
    net.forward_from_to(0, len(net.layers) - 1)
    assert fused(net)["norm"] == ["scale"]
    with pytest.raises(ConfigError, match=r"layer 'leaky' \(ReLU\): .*ReLU cannot go backward in place"):
        net.backward_from_to(len(net.layers) - 1, 0)


class NormThatFails(BatchNormLayer):
    """A BatchNorm that cannot compute its top once more."""

    fails = 0

    def unfuse(self, bottom):
        NormThatFails.fails -= 1
        if NormThatFails.fails >= 0:
            raise ConfigError("computes its top only once")
        super().unfuse(bottom)


def test_a_fusion_that_cannot_be_undone(monkeypatch):
    """The error names the layer that cannot, and the run is as it was before: the next attempt succeeds."""
    if "NormThatFails" not in layer_types():
        register_layer("NormThatFails", NormThatFails)
    net, watched = two_nets(CONV % 16 + NORM.replace('"BatchNorm"', '"NormThatFails"') + SCALE + RELU + LOSS)
    last, relu = len(net.layers) - 1, net.layer_names.index("relu")
    for each in (net, watched):
        each.forward_from_to(0, last)
        each.backward_from_to(last, last)
    data = net.blob_by_name("y").data.copy()
    monkeypatch.setattr(NormThatFails, "fails", 2)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"layer 'norm' \(NormThatFails\).*computes its top only once"):
            net.backward_layer(relu)
        np.testing.assert_array_equal(net.blob_by_name("y").data, data)
    net.backward_from_to(last - 1, 0), watched.backward_from_to(last - 1, 0)
    assert NormThatFails.fails == -1
    assert_same(net, watched)


@pytest.mark.parametrize("plan", [None, "memory"])
def test_a_whole_backward_after_one_of_a_layer_alone(plan):
    """Which computes the layers one by one: these need more than the one backward of all of them does."""
    net, watched = two_nets(CONV % 16 + NORM + SCALE + RELU + LOSS)
    net.set_plan(plan, [], True)
    last, relu = len(net.layers) - 1, net.layer_names.index("relu")
    for each in (net, watched):
        each.forward_from_to(0, last)
        each.blob_by_name("y").diff[...] = 1
        each.backward_layer(relu)
        each.backward_from_to(last, 0)
    for layer, other in zip(net.layers, watched.layers):
        for blob, wanted in zip(layer.blobs, other.blobs):
            np.testing.assert_allclose(blob.diff, wanted.diff, 2e-3, 2e-3)


def test_more_channels_than_caches_hold():
    """In lanes they are taken in parts, one after the other (each_part)."""
    net = make(CONV % 40 + NORM + SCALE + RELU + LOSS)
    x, y, (gamma, beta) = net.blob_by_name("x"), net.blob_by_name("y"), net.layers[3].blobs
    x.reshape(2, 4, 130, 122)
    x.data[...] = np.random.default_rng(1).standard_normal(x.shape)
    net.forward_from_to(0, 1)
    values = y.data.astype(np.float64)
    step(net)
    assert fused(net)["norm"] == ["scale", "relu"]

    def per_channel(array):
        return array[:, None, None]
    deviation = per_channel(np.sqrt(values.var((0, 2, 3)) + 0.01))
    z = (values - per_channel(values.mean((0, 2, 3)))) / deviation
    wanted = np.maximum(z * per_channel(gamma.data) + per_channel(beta.data), 0)
    np.testing.assert_allclose(y.data, wanted, 1e-4, 1e-4)
    dz = 2 * wanted
    np.testing.assert_allclose(gamma.diff, (dz * z).sum((0, 2, 3)), 1e-3)
    np.testing.assert_allclose(beta.diff, dz.sum((0, 2, 3)), 1e-3)
    dz *= per_channel(gamma.data)
    dx = (dz - per_channel(dz.mean((0, 2, 3))) - z * per_channel((dz * z).mean((0, 2, 3)))) / deviation
    np.testing.assert_allclose(y.diff, dx, 1e-3, 1e-3)


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_a_scale_along_another_axis_of_the_same_length_runs_by_itself(axis, dtype):
    net, watched = two_nets(CONV % 3 + NORM + SCALE.replace("scale_param {", f"scale_param {{ axis: {axis} num_axes: 1") + RELU + LOSS,
                            dtype=dtype)
    for each in (net, watched):
        step(each)
    assert not fused(net) and net.blob_by_name("y").shape[:3] == (3, 3, 3)
    assert_same(net, watched)


def test_layers_in_place_behind_them_keep_what_they_wrote():
    """Also where those before are computed again, one by one, as a caller reads between their gradients."""
    net, watched = two_nets(CONV % 16 + NORM + SCALE + RELU + 'layer { name: "s" type: "Sigmoid" bottom: "y" top: "y" }' + LOSS)
    for each in (net, watched):
        each.forward_from_to(0, 6)
        each.backward_from_to(6, 4)
        each.backward_from_to(3, 0)
    assert_same(net, watched)


def test_a_reshape_to_the_same_shape_loses_no_gradient():
    net, watched = two_nets(CONV % 16 + NORM + SCALE + RELU + LOSS)
    for each in (net, watched):
        each.forward_from_to(0, 5)
        y = each.blob_by_name("y")
        y.share_diff(Blob(y.shape))
        each.reshape_all()
        each.backward_from_to(5, 0)
    assert_same(net, watched)


class GuidedReLU(ReLULayer):
    def backward_cpu(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff * (top[0].diff > 0)


def test_a_users_backward_runs(on_cpu):
    if "GuidedReLU" not in layer_types():
        register_layer("GuidedReLU", GuidedReLU)
    net = make(CONV % 16 + NORM + SCALE + RELU.replace("ReLU", "GuidedReLU") + LOSS.replace("SUMSQ", "SUM") + "force_backward: true")
    net.forward_from_to(0, 5)
    net.blob_by_name("loss").diff[...] = -1
    net.backward_from_to(5, 0)
    assert fused(net) == {"norm": ["scale"]} and not net.blob_by_name("x").diff.any()


@pytest.mark.parametrize("needed", ["force_backward: true ", ""])
def test_a_top_of_its_own_is_computed_at_once_where_nothing_goes_backward(needed):
    """Its diff is part of what a net shows: in training it is what the backward of Scale leaves there."""
    net, watched = two_nets(needed + OWN_TOP + SCALE + RELU + (LOSS if needed else ""), dtype=Dtype.DOUBLE)
    for each in (net, watched):
        step(each)
    assert fused(net) == ({} if needed else {"norm": ["scale", "relu"]})
    assert_same(net, watched)


def test_gradient_by_differences():
    net = make(CONV % 4 + NORM + SCALE + LEAKY + LOSS, dtype=Dtype.DOUBLE)
    x, learned = net.blob_by_name("x"), [net.layers[1].blobs[0], *net.layers[3].blobs]
    x.data[...] = np.random.default_rng(5).standard_normal(x.shape) * 3 + 1
    step(net)
    assert fused(net) == {"norm": ["scale", "leaky"]}
    gradients = [blob.diff.copy() for blob in learned]
    for blob, gradient in zip(learned, gradients):
        for i in np.random.default_rng(6).integers(0, blob.count, 4):
            before, h, losses = blob.data.reshape(-1)[i], 1e-5, []
            for side in (h, -h, 0):
                blob.data.reshape(-1)[i] = before + side
                losses.append(net.forward_from_to(0, len(net.layers) - 1))
            assert gradient.reshape(-1)[i] == pytest.approx((losses[0] - losses[1]) / (2 * h), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("layers", [NORM + SCALE + RELU, GLOBAL + SCALE + RELU, NORM + RELU])
@pytest.mark.parametrize("cut", ["start", "end", "hook", "one by one", "forward from the middle"])
def test_who_looks_between_gradients_gets_those_of_each_layer(layers, cut):
    net, watched = two_nets(CONV % 16 + layers + LOSS)
    last = len(net.layers) - 1
    middle = last - 1       # the last of the followers
    for each in (net, watched):
        each.forward_from_to(0, last)
    assert fused(net)
    if cut == "forward from the middle":
        for each in (net, watched):
            each.forward_from_to(middle, last)
    if cut == "hook":
        net.add_hook(BEFORE_BACKWARD, lambda index: None)
    ranges = {"start": [(last, last), (middle - 1, 0)], "end": [(last, middle), (middle - 1, 0)]}.get(cut, [(last, 0)])
    for start, end in ranges:
        for each in (net, watched):
            if cut == "one by one":
                for i in range(start, end - 1, -1):
                    if each.nodes[i].needs_backward:
                        each.backward_layer(i)
            else:
                each.backward_from_to(start, end)
        if cut != "one by one":
            np.testing.assert_allclose(net.blob_by_name("y").diff, watched.blob_by_name("y").diff, 2e-3, 2e-3)
    assert not fused(net)
    assert_same(net, watched)       # running sums were added to once


@pytest.mark.no_plan("a plan frees what the layers before the end of the part need to run again")
def test_a_backward_after_a_forward_that_stopped_short_is_that_of_separate_layers():
    net, watched = two_nets(CONV % 16 + NORM + SCALE + RELU + LOSS)
    for each in (net, watched):
        each.forward_from_to(0, 5)
        each.forward_from_to(0, 2)      # up to BatchNorm
        each.backward_from_to(5, 0)
    assert_same(net, watched)
    for each in (net, watched):
        step(each)
    assert fused(net)
    assert_same(net, watched)


def test_frozen_layers_below():
    """BatchNorm needs no gradient, Scale does: it runs by itself."""
    net, watched = two_nets(OWN_TOP + SCALE + RELU + LOSS)
    for each in (net, watched):
        step(each)
    assert not fused(net).get("norm")
    assert_same(net, watched)
    assert np.abs(net.layers[2].blobs[0].diff).max() > 0


def test_debug_info_sees_each_layer():
    net = make("debug_info: true " + CONV % 16 + NORM + SCALE + RELU + LOSS)
    step(net)
    assert not fused(net)


def test_another_shape():
    net, watched = two_nets(CONV % 16 + NORM + SCALE + RELU + LOSS)
    for each in (net, watched):
        step(each)
        each.blob_by_name("x").reshape(2, 4, 7, 4)
        each.blob_by_name("x").data[...] = np.random.default_rng(1).standard_normal((2, 4, 7, 4))
        step(each)
    assert fused(net)
    assert_same(net, watched)


@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST])
def test_with_a_plan(phase):
    text = CONV % 16 + NORM + SCALE + RELU + LOSS
    param = parse_text(INPUT + text, caffe_pb2.NetParameter)[0]
    param.state.phase = phase
    net, (_, watched) = Net(param, plan="memory"), two_nets(text, phase)
    for layer, other in zip(net.layers, watched.layers):
        for blob, wanted in zip(layer.blobs, other.blobs):
            blob.data[...] = wanted.data
    net.blob_by_name("x").data[...] = watched.blob_by_name("x").data
    last = len(net.layers) - 1
    assert net.forward_from_to(0, last) == pytest.approx(watched.forward_from_to(0, last), 1e-4)
    assert fused(net)
    if phase == caffe.TRAIN:
        net.backward_from_to(last, 0), watched.backward_from_to(last, 0)
        for layer, other in zip(net.layers, watched.layers):
            for blob, wanted in zip(layer.blobs, other.blobs):
                np.testing.assert_allclose(blob.diff, wanted.diff, 2e-3, 2e-3)


def test_what_follows_a_frozen_convolution_learns_under_a_plan():
    results = []
    for plan in (None, "memory"):
        text = CONV % 16 + NORM + SCALE + RELU + LOSS
        param = parse_text('base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 random_seed: 3 snapshot_after_train: false',
                           caffe_pb2.SolverParameter)[0]
        param.net_param.CopyFrom(parse_text(INPUT + text.replace("convolution_param", "param { lr_mult: 0 } param { lr_mult: 0 } "
                                                                 "convolution_param"), caffe_pb2.NetParameter)[0])
        solver = create_solver(param, plan=plan)
        scale = solver.net.layers[3].blobs[0]
        before = scale.data.copy()
        for _ in range(2):
            solver.net.blob_by_name("x").data[...] = np.random.default_rng(2).standard_normal((3, 4, 5, 6))
            solver.step(1)
        results.append(scale.data.copy())
        assert np.abs(results[-1] - before).max() > 1e-4
    np.testing.assert_allclose(*results, 1e-5)
