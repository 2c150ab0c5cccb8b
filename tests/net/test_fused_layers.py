"""BatchNorm computes the Scale and ReLU that follow it in place, forward and backward; Eltwise the ReLU that follows its sum."""

import numpy as np
import pytest
from helpers import layer_text, make_net, net_solver
from watched import BIAS, FILLED, LEAKY, LOSS, PRELU, RELU, SCALE, fused, step, with_one_watched
from watched import NORM as PLAIN_NORM

import minicaffe as caffe
from minicaffe.blob import Blob, Dtype
from minicaffe.errors import ConfigError, RecycledError
from minicaffe.layer import layer_types, register_layer
from minicaffe.layers.batch_norm import BatchNormLayer
from minicaffe.layers.relu import ReLULayer
from minicaffe.net.run import BEFORE_BACKWARD

INPUT = 'layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 3 dim: 4 dim: 5 dim: 6 } } } '
NORM = PLAIN_NORM.replace('top: "y"', 'top: "y" batch_norm_param { eps: 0.01 }')
SIGMOID = 'layer { name: "s" type: "Sigmoid" bottom: "y" top: "y" }'
OWN_TOP = NORM.replace('bottom: "y"', 'bottom: "x"')
GLOBAL = NORM.replace("eps", "use_global_stats: true eps")
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "y" eltwise_param { operation: SUM } } '


def conv(bottom, top, outputs=16, more="pad: 1"):
    return layer_text("Convolution", f"conv_{top}", bottom, top, f'convolution_param {{ num_output: {outputs} kernel_size: 3 {more} '
                      'weight_filler { type: "gaussian" std: 1 } }')


def norms(layers=NORM + SCALE + RELU, outputs=16):
    return conv("x", "y", outputs, "") + layers + LOSS


def sums(layers=SUM + RELU, outputs=16):
    """A residual block: a sum of two convolutions, one of which reads what the other gives."""
    return conv("x", "a", outputs) + conv("a", "b", outputs) + layers + conv("y", "c", outputs) + LOSS.replace('"y"', '"c"')


def two_nets(text, plan=None, phase=caffe.TRAIN, **how):
    """A net, and one with the same values that is read between layers."""
    nets = with_one_watched([make_net(INPUT + text, phase, plan=each, **how) for each in (plan, None)])
    for net in nets:
        net.blob_by_name("x").data[...] -= 0.5      # so that sums are of either sign
    return nets


def assert_same(net, watched, blobs=True):
    """Gradients of parameters, or data and gradients of all blobs."""
    data, diff = (1e-11, 1e-9) if net.dtype == Dtype.DOUBLE else (1e-4, 2e-3)
    for layer, seen in zip(net.layers, watched.layers, strict=True):
        for i, (blob, other) in enumerate(zip(layer.blobs, seen.blobs, strict=True)):
            np.testing.assert_allclose(blob.diff, other.diff, diff, diff * max(1, np.abs(other.diff).max()), err_msg=f"{layer.name}[{i}]")
    for name in net.blob_names if blobs else ():
        blob, other = net.blob_by_name(name), watched.blob_by_name(name)
        np.testing.assert_allclose(blob.data, other.data, data, data * np.abs(other.data).max(), err_msg=name)
        np.testing.assert_allclose(blob.diff, other.diff, diff, diff * max(1, np.abs(other.diff).max()), err_msg=name)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("outputs", [4, 16, 20])     # in plain order; in blocks of channels; in blocks, the last not full
@pytest.mark.parametrize(("net_text", "layers", "names"), [
    (norms, NORM + SCALE + RELU, {"norm": ["scale", "relu"]}),
    (norms, NORM + SCALE, {"norm": ["scale"]}),
    (norms, NORM + SCALE + LEAKY, {"norm": ["scale", "leaky"]}),
    (norms, NORM + SCALE.replace("bias_term: true", "").replace("bias_" + FILLED, "") + RELU, {"norm": ["scale", "relu"]}),
    (norms, NORM + BIAS + RELU, {"norm": ["bias", "relu"]}),
    (norms, NORM + RELU, {"norm": ["relu"]}),
    (norms, GLOBAL + SCALE + RELU, {"norm": ["scale", "relu"]}),
    (norms, NORM + SCALE.replace("scale_param", "param { lr_mult: 0 } scale_param") + RELU, {"norm": ["scale", "relu"]}),
    (norms, NORM + SCALE.replace("scale_param", "param { lr_mult: 0 } param { lr_mult: 0 } scale_param") + RELU, {"norm": ["scale", "relu"]}),
    (norms, NORM + SCALE + BIAS + RELU, {"norm": ["scale"]}),       # one affine map
    (norms, NORM + PRELU, {}),                                      # learns its slopes
    (norms, NORM + SCALE.replace("scale_param {", "scale_param { axis: 2 num_axes: 1") + RELU, {}),     # not by channels
    (sums, SUM + RELU, {"sum": ["relu"]}),
    (sums, SUM.replace("SUM", "SUM coeff: 1 coeff: -0.5") + RELU, {"sum": ["relu"]}),
    (sums, SUM.replace('top: "y"', 'bottom: "a" bottom: "b" top: "y"') + RELU, {"sum": ["relu"]}),      # four, as many as a pass takes
    (sums, SUM.replace('bottom: "b"', 'bottom: "b" propagate_down: true propagate_down: false') + RELU, {"sum": ["relu"]}),
    (sums, SUM.replace('top: "y"', 'bottom: "a" bottom: "b" bottom: "a" top: "y"') + RELU, {}),         # more than a pass takes
    (sums, SUM + LEAKY, {}),
    (sums, SUM.replace("SUM", "PROD") + RELU, {}),
    (sums, SUM.replace("SUM", "MAX") + RELU, {}),
])
def test_step_equals_separate_layers(net_text, layers, names, outputs, dtype):
    net, watched = two_nets(net_text(layers, outputs), dtype=dtype)
    for _ in range(2):      # the second adds to the gradients of parameters
        step(net), step(watched)
        assert fused(net) == names and not fused(watched)
        assert_same(net, watched)
    for layer in net.layers if net_text is norms else []:
        for blob, learns in zip(layer.blobs, layer.param_propagate_down):
            assert bool(np.abs(blob.diff).max() > 0) == bool(learns)
    if "sum" in names:
        assert (net.blob_by_name("y").diff == 0).any() and (net.blob_by_name("y").diff != 0).any()
    if "PROD" in layers or "MAX" in layers:
        assert "sum" not in {row["layer"] for row in net.engines()}


@pytest.mark.parametrize("text", [norms(), norms(GLOBAL + SCALE + RELU), norms(NORM + RELU), sums(), norms(NORM + SCALE + RELU + SIGMOID)])
def test_observed_gradients_of_each_layer(text):
    net, watched = two_nets(text)
    last = len(net.layers) - 1
    for each in (net, watched):
        each.forward_from_to(0, last)
    assert fused(net)
    net.add_hook(BEFORE_BACKWARD, lambda index: None)
    for each in (net, watched):
        each.backward_from_to(last, 0)
    assert_same(net, watched)       # running sums were added to once


@pytest.mark.parametrize("plan", [None, "memory"])
@pytest.mark.parametrize("text", [norms(), sums()])
def test_backward_after_single_layer_backward(text, plan):
    """A backward of one layer ends the fusion: a later backward of the net computes its layers separately."""
    net, watched = two_nets(text, plan)
    last, relu = len(net.layers) - 1, net.layer_names.index("relu")
    net.set_plan(plan, [], True)
    for each in (net, watched):
        each.forward_from_to(0, last)
        each.blob_by_name("y").diff[...] = 1
        each.backward_layer(relu)
        each.backward_from_to(last, 0)
    assert_same(net, watched, blobs=False)


@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST])
@pytest.mark.parametrize(("text", "names"), [(norms(), {"norm": ["scale", "relu"]}), (sums(), {"sum": ["relu"]}),
                                             (sums(SUM.replace("SUM", "PROD") + RELU), {}), (sums(SUM.replace("SUM", "MAX") + RELU), {})])
def test_with_a_plan(text, names, phase):
    net, watched = two_nets(text, phase=phase, plan="memory")
    last = len(net.layers) - 1
    assert net.forward_from_to(0, last) == pytest.approx(watched.forward_from_to(0, last), 1e-4)
    if phase == caffe.TRAIN:
        assert fused(net) == names
        net.backward_from_to(last, 0), watched.backward_from_to(last, 0)
        assert_same(net, watched, blobs=False)
    else:   # the convolution may compute them, too
        assert [name for found in fused(net).values() for name in found if name not in names] == sum(names.values(), [])


def test_layers_not_fused():
    net = make_net(INPUT + norms(NORM + SCALE + LEAKY.replace("0.25", "-0.5"), 4), caffe.TRAIN)
    net.forward_from_to(0, len(net.layers) - 1)
    assert fused(net)["norm"] == ["scale"]
    with pytest.raises(ConfigError, match=r"layer 'leaky' \(ReLU\): .*ReLU cannot go backward in place"):
        net.backward_from_to(len(net.layers) - 1, 0)
    net = make_net("debug_info: true " + INPUT + norms(), caffe.TRAIN)
    step(net)
    assert not fused(net)
    other_axes = [norms(NORM + SCALE.replace("scale_param {", f"scale_param {{ axis: {axis} num_axes: 1") + RELU, 3) for axis in (0, 2)]
    for text in [*other_axes, OWN_TOP + SCALE + RELU + LOSS]:       # the axes have the length of that of channels; Scale alone needs a gradient
        for dtype in Dtype.FLOAT, Dtype.DOUBLE:
            net, watched = two_nets(text, dtype=dtype)
            step(net), step(watched)
            assert not fused(net).get("norm")
            assert_same(net, watched)
    assert np.abs(net.layers[2].blobs[0].diff).max() > 0
    # A fused sum whose backward runs alone has the gradient of the sum, also where ReLU gave 0
    net, _ = two_nets(sums())
    step(net)
    index = net.layer_index("sum")
    for end in len(net.layers) - 1, index:
        net.forward_from_to(0, end)
        net.nodes[index].tops[0].diff[...] = 2
        net.backward_from_to(index, index)
        assert all((blob.diff == 2).all() for blob in net.nodes[index].bottoms)


class NormThatFails(BatchNormLayer):
    """A BatchNorm that cannot compute its top once more."""

    fails = 0

    def unfuse(self, bottom):
        NormThatFails.fails -= 1
        if NormThatFails.fails >= 0:
            raise ConfigError("computes its top only once")
        super().unfuse(bottom)


class GuidedReLU(ReLULayer):
    def backward_cpu(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff * (top[0].diff > 0)


for own in NormThatFails, GuidedReLU:
    if own.__name__ not in layer_types():
        register_layer(own.__name__, own)


def test_a_fusion_that_cannot_be_undone(monkeypatch):
    """The error names the layer that cannot, and the run is as it was before: the next attempt succeeds."""
    net, watched = two_nets(norms(NORM.replace('"BatchNorm"', '"NormThatFails"') + SCALE + RELU))
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


def test_a_users_backward_runs(on_cpu):
    net = make_net(INPUT + norms(NORM + SCALE + RELU.replace("ReLU", "GuidedReLU")).replace("SUMSQ", "SUM") + "force_backward: true", caffe.TRAIN)
    net.forward_from_to(0, 5)
    net.blob_by_name("loss").diff[...] = -1
    net.backward_from_to(5, 0)
    assert fused(net) == {"norm": ["scale"]} and not net.blob_by_name("x").diff.any()


def test_more_channels_than_caches_hold():
    """In lanes they are taken in parts, one after the other (each_part)."""
    net, watched = two_nets(norms(outputs=40))
    for each in (net, watched):
        each.blob_by_name("x").reshape(2, 4, 130, 122)
        each.blob_by_name("x").data[...] = np.random.default_rng(1).standard_normal((2, 4, 130, 122))
        step(each)
    assert fused(net)["norm"] == ["scale", "relu"]
    for blob, other in zip([net.blob_by_name("y"), *net.layers[3].blobs], [watched.blob_by_name("y"), *watched.layers[3].blobs]):
        np.testing.assert_allclose(blob.data, other.data, 1e-4, 1e-4)
        np.testing.assert_allclose(blob.diff, other.diff, 1e-3, 1e-3)


@pytest.mark.parametrize("needed", ["force_backward: true ", ""])
def test_own_top_fused_without_backward(needed):
    """Its diff is part of what a net shows: in training it is what the backward of Scale leaves there."""
    net, watched = two_nets(needed + OWN_TOP + SCALE + RELU + (LOSS if needed else ""), dtype=Dtype.DOUBLE)
    step(net), step(watched)
    assert fused(net) == ({} if needed else {"norm": ["scale", "relu"]})
    assert_same(net, watched)


@pytest.mark.parametrize("cut", [None, 2, 3])
@pytest.mark.parametrize("text", [norms(), sums()])
def test_part_after_another_shape(text, cut):
    """A part of forward that ends between fused layers does not undo the fusion of the former shape; `reshape_all` to the same one
    keeps a gradient that another blob shares.
    """
    net, watched = two_nets(text)
    last, relu = len(net.layers) - 1, net.layer_names.index("relu")
    for each in (net, watched):
        each.forward_from_to(0, last)
        each.blob_by_name("x").reshape(2, 4, 6, 5)
        each.blob_by_name("x").data[...] = np.random.default_rng(1).standard_normal((2, 4, 6, 5))
        if cut is not None:
            each.reshape_all()
            each.forward_from_to(0, relu - cut + 1)
        each.forward_from_to(relu - cut + 2 if cut else 0, last)
        if cut is None:
            y = each.blob_by_name("y")
            y.share_diff(Blob(y.shape))
            each.reshape_all()
        each.backward_from_to(last, 0)
    assert cut or fused(net)
    assert_same(net, watched)


def test_followers_of_frozen_convolution_learn():
    results, text = [], INPUT + norms().replace("convolution_param", "param { lr_mult: 0 } param { lr_mult: 0 } convolution_param")
    for plan in (None, "memory"):
        solver = net_solver(text, plan, base_lr=0.001, random_seed=3)
        scale = solver.net.layers[3].blobs[0]
        before = scale.data.copy()
        for _ in range(2):
            solver.net.blob_by_name("x").data[...] = np.random.default_rng(2).standard_normal((3, 4, 5, 6))
            solver.step(1)
        results.append(scale.data.copy())
        assert np.abs(results[-1] - before).max() > 1e-4
    np.testing.assert_allclose(*results, 1e-5)


def test_not_a_number_stays_one():
    net, watched = two_nets(sums())
    for each in (net, watched):
        each.blob_by_name("x").data[0, 0, 2, 2] = np.nan
        each.forward_from_to(0, len(each.layers) - 1)
    found, wanted = (np.isnan(each.blob_by_name("y").data) for each in (net, watched))
    assert found.any() and np.array_equal(found, wanted)


TWO_BRANCHES = "".join(layer_text("Input", name, more="input_param { shape { dim: 4 dim: 3 dim: 6 dim: 6 } }") for name in "ab") + (
    conv("a", "y", 16, "") + NORM + SCALE + RELU + LOSS + conv("b", "cb", 4, "") + LOSS.replace('"y"', '"cb"').replace('"loss"', '"more"'))


@pytest.mark.parametrize("unfused_before", [False, True])
@pytest.mark.parametrize("other", [[2, 3, 6, 6], [4, 3, 6, 6]])
def test_reshaped_branch_beside_fused_layers(unfused_before, other):
    """A reshape of one branch, also to another shape and back, keeps the fused layers of the other as they are."""
    net, watched = two_nets(TWO_BRANCHES)
    values, last = np.random.default_rng(3).standard_normal((3, 4, 3, 6, 6)), len(net.layers) - 1
    for each in (net, watched):
        a, b = each.blob_by_name("a"), each.blob_by_name("b")
        a.data[...], b.data[...] = values[:2]
        if unfused_before:
            each.forward_from_to(0, each.layer_names.index("scale"))
            each.forward_from_to(each.layer_names.index("relu"), last)
            a.data[...] = values[2]
        each.forward_from_to(0, last)
        for shape in ([2, 3, 6, 6], other):
            b.reshape(*shape)
            each.reshape_all()
        b.data[...] = values[1][:other[0]]
        each.forward_from_to(each.layer_names.index("conv_cb"), last)
        each.clear_param_diffs()
        each.backward_from_to(last, 0)
    assert_same(net, watched)


def test_reshaped_fused_layers_need_a_forward():
    net = two_nets(TWO_BRANCHES)[0]
    last = len(net.layers) - 1
    net.forward_from_to(0, last)
    for shape in ([2, 3, 6, 6], [4, 3, 6, 6]):
        net.blob_by_name("a").reshape(*shape)
        net.reshape_all()
    net.forward_from_to(net.layer_names.index("conv_cb"), last)
    with pytest.raises(RecycledError, match="run forward first"):
        net.backward_from_to(last, 0)
    net.forward_from_to(0, last)
    net.backward_from_to(last, 0)
