"""A convolution computes the layers that follow it in place, too, and no blob shows it."""

import numpy as np
import pytest
from helpers import layer_text, net_solver
from watched import BIAS, LEAKY, LOSS, NORM, PRELU, RELU, SCALE, fused, net_of, with_one_watched

import minicaffe as caffe
from minicaffe import memory
from minicaffe.errors import Error
from minicaffe.layer import layer_types, register_layer
from minicaffe.layers.relu import ReLULayer
from minicaffe.net.run import BEFORE_BACKWARD

pytestmark = pytest.mark.usefixtures("onednn")

INPUT = 'layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 8 } } }'
POWER = layer_text("Power", "power", "y", "y", "power_param { shift: 1 }")
DICE = np.random.default_rng


def conv(bottom="x", top="y", outputs=20, more=""):
    return layer_text("Convolution", f"conv_{top}", bottom, top,
                      f'convolution_param {{ {more} num_output: {outputs} kernel_size: 3 weight_filler {{ type: "xavier" }} }}')


def two_nets(text, phase=caffe.TEST):
    """A net, and one with the same values that is read between layers."""
    return with_one_watched([net_of(INPUT + text, phase) for _ in range(2)])


def assert_same(net, watched, rtol=1e-5):
    for name, blob in net.blobs.items():
        np.testing.assert_allclose(blob.data, watched.blobs[name].data, rtol, 1e-6, err_msg=name)
        assert np.abs(blob.data).max() > 0.1
    assert not fused(watched)


def check_fused(net, watched, names, rtol=1e-5, times=2):
    for _ in range(times):
        net.forward(), watched.forward()
        assert fused(net) == names
        assert_same(net, watched, rtol)


def train(*nets):
    for net in nets:
        net.clear_param_diffs()
        net.forward()
        net.backward()


@pytest.mark.parametrize(("layers", "names"), [
    (RELU, ["relu"]), (LEAKY, ["leaky"]), (PRELU, ["prelu"]), (NORM + SCALE + RELU, ["norm", "scale", "relu"]),
    (SCALE + NORM + BIAS + PRELU, ["scale", "norm", "bias", "prelu"]), (BIAS, ["bias"]),
    (RELU + NORM, ["relu"]),                # an affine map after it is another matter
    (RELU + LEAKY, ["relu"]),
    (NORM + POWER + RELU, ["norm"]),        # Power does not join
    (SCALE.replace("scale_param {", "scale_param { axis: 2 num_axes: 1") + RELU, []),   # not by channels
])
def test_convolution_epilogue_gives_same_numbers(layers, names):
    nets = two_nets(conv() + layers + conv("y", "z", 16))
    for _ in range(2):
        check_fused(*nets, {"conv_y": names} if names else {}, times=1)
        for blob in (blob for each in nets for name in ("norm", "scale") for blob in each.params.get(name, [])):
            blob.data[...] *= 1.5       # the next forward sees new values


@pytest.mark.parametrize("factor", [0, 1e-30, 1e-39, 1e-44, -1e-12])
@pytest.mark.parametrize("bias", ["true", "false"])
def test_factors_that_are_next_to_nothing(factor, bias):
    """Weights times them are next to nothing, too, and the shift stays."""
    nets = two_nets(conv(more=f"bias_term: {bias}") + SCALE + RELU)
    for each in nets:
        each.params["scale"][0].data[3:8] = factor
        each.params["scale"][1].data[5:9] = 0
    check_fused(*nets, {"conv_y": ["scale", "relu"]})


@pytest.mark.parametrize("weight", [0, 1, 0.25, 3.5, 1000])
@pytest.mark.parametrize("layers", [NORM, NORM + SCALE + RELU, SCALE + NORM])
def test_statistics_are_sums_with_a_weight(layers, weight):
    """Mean and variance are the stored sums divided by their weight; those of weight 0 are 0."""
    net, watched = two_nets(conv() + layers)
    mean, variance = DICE(4).normal(0, 1, 20), DICE(5).uniform(0.5, 2, 20)
    for each in (net, watched):
        for blob, values in zip(each.params["norm"], (mean * (weight or 1), variance * (weight or 1), weight), strict=True):
            blob.data[...] = values
    net.forward(), watched.forward()
    assert fused(net)["conv_y"][0] in ("norm", "scale")
    assert_same(net, watched, 1e-3)     # a variance of 0 makes errors of rounding large
    if layers is NORM:
        plain = two_nets(conv())[0]
        for blob, own in zip(plain.params["conv_y"], net.params["conv_y"], strict=True):
            blob.data[...] = own.data
        plain.blobs["x"].data[...] = net.blobs["x"].data
        y, (mean, variance) = plain.forward()["y"], (part.reshape(1, 20, 1, 1) for part in (mean, variance))
        wanted = (y - mean) / np.sqrt(variance + 1e-5) if weight else y / np.sqrt(1e-5)
        np.testing.assert_allclose(net.blobs["y"].data, wanted, 1e-3, 1e-4)


def test_factors_scale_weight_copy():
    """Made again for new factors or weights, and for nothing else; the weights themselves stay as they are."""
    net, watched = two_nets(conv() + NORM + SCALE + RELU)
    weight = net.params["conv_y"][0]
    before = weight.data.copy()

    def reorders():
        with memory.record() as events:
            net.forward()
        watched.forward()
        assert fused(net) == {"conv_y": ["norm", "scale", "relu"]}
        assert_same(net, watched, 1e-4)
        return sum(event.kind == "reorder" and event.name == weight.data_memory.name for event in events)

    def change(name, values):
        for each in (net, watched):
            each.params[name][0].data[...] = values(each.params[name][0].data)
        return reorders()
    assert (reorders(), reorders()) == (1, 0)
    np.testing.assert_array_equal(weight.cpu_data, before)
    assert weight.layout_of_data() is None      # no other layer computes with the copy
    assert change("scale", lambda values: values + 0.5) == 1
    assert change("norm", lambda values: values + 0.5) == 0         # a mean is in the shift alone
    assert (change("conv_y", lambda values: values * -2), reorders()) == (1, 0)
    shared = conv().replace('top: "y"', 'top: "y" param { name: "w" } param { name: "b" }')
    text = shared + SCALE + (shared + SCALE).replace('"y"', '"z"').replace('"scale"', '"another"').replace("conv_y", "conv_z")
    check_fused(*two_nets(text), {"conv_y": ["scale"], "conv_z": ["another"]})


@pytest.mark.parametrize("group", [1, 2, 16])
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_each_output_gets_its_own_factor(kind, group):
    second = conv("y", "z", 32, f"group: {group}").replace("Convolution", kind)
    check_fused(*two_nets(conv(outputs=16) + second + SCALE.replace('"y"', '"z"')), {"conv_z": ["scale"]}, 1e-4)


def test_training_uses_weights_unchanged(onednn):
    ends, text = [], INPUT + conv(more="bias_term: false") + NORM + SCALE + RELU
    for use in (True, False):
        onednn(use)
        solver = net_solver(text + LOSS, base_lr=1e-3, random_seed=3)
        test = net_of(text)
        test.share_with(solver.net)
        for net in (solver.net, test):
            net.blob_by_name("x").data[...] = DICE(5).standard_normal((2, 3, 9, 8))
        found = []
        for _ in range(3):
            solver.step(2)
            test.forward()
            assert ("conv_y" in fused(test)) == use
            found.append(test.blobs["y"].data.copy())
        ends.append([*found, *(blob.cpu_data.copy() for blob in solver.net.learnable_params)])
    for ours, expected in zip(*ends, strict=True):
        np.testing.assert_allclose(ours, expected, 1e-3, 1e-4 * np.abs(expected).max())
        assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("rows", [3, 16])      # beside 16 outputs
def test_convolution_of_other_axis_not_fused(rows):
    """Whose channels are axis 2, while Bias adds along axis 1."""
    images = INPUT.replace("dim: 3", f"dim: {rows} dim: 16")
    check_fused(*with_one_watched([net_of(images + conv(outputs=16, more="axis: 2") + BIAS) for _ in range(2)]), {})


@pytest.mark.parametrize("outputs", [1, 7, 16, 24, 33])
@pytest.mark.parametrize("group", [1, 3])
def test_padding_of_layouts_stays_zero(outputs, group):
    text = conv(outputs=3 * outputs, more=f"group: {group}") + NORM + SCALE + RELU + conv("y", "z")
    check_fused(*two_nets(text), {"conv_y": ["norm", "scale", "relu"]}, times=1)


def test_phases_that_save_and_keep_nothing():
    net, watched = two_nets(conv() + LEAKY + conv("y", "z") + LOSS.replace('"y"', '"z"'), caffe.TRAIN)
    train(net, watched)
    assert fused(net) == {"conv_y": ["leaky"]} and not fused(watched)
    for name, blob in net.blobs.items():
        np.testing.assert_array_equal(blob.data, watched.blobs[name].data)
    for blob, other in zip(net.learnable_params, watched.learnable_params, strict=True):
        np.testing.assert_array_equal(blob.diff, other.diff)
        assert np.abs(blob.diff).max() > 0
    # As the test nets of `minicaffe test` and of a training do: their blobs are recycled, so nothing can go backward.
    net = net_of(INPUT + conv() + NORM + SCALE + RELU + LOSS, plan="memory")
    net.blobs["x"].data[...] = 1
    net.forward()
    assert fused(net) == {"conv_y": ["norm", "scale", "relu"]}


@pytest.mark.no_plan("goes backward in phase TEST, in which a plan has forward alone")
@pytest.mark.parametrize("layer", [NORM, SCALE, BIAS, PRELU])
def test_layer_that_saves_not_fused(layer):
    net, watched = two_nets(conv() + layer + LOSS)
    train(net, watched)
    assert not fused(net)
    np.testing.assert_array_equal(net.params["conv_y"][0].diff, watched.params["conv_y"][0].diff)


def test_separate_layers_see_each_other():
    net = net_of(INPUT + conv() + RELU)
    net.blobs["x"].data[...] = 1
    assert (net.forward()["y"] >= 0).all()
    assert fused(net)
    assert (net.forward(end="conv_y")["y"] < 0).any()           # before ReLU
    assert not fused(net)
    assert (net.forward(start="relu")["y"] >= 0).all()
    net.add_hook(BEFORE_BACKWARD, lambda index: None)           # any hook: one rule with CUDA graphs
    net.forward()
    assert not fused(net)
    net = net_of(INPUT + conv() + NORM)
    net.forward()
    with pytest.raises(Error, match=r"'norm' \(BatchNorm\): was fused into an earlier layer"):
        net.backward_layer(2)
    net.forward(end="conv_y"), net.forward(start="norm")
    net.backward_layer(2)


def test_another_shape_loss_and_nan():
    net, watched = two_nets(conv() + NORM + RELU)
    for each in (net, watched):
        each.forward()
        each.blobs["x"].reshape(3, 3, 12, 7)
        each.blobs["x"].data[...] = 0.5
        each.forward()
    assert fused(net) and net.blobs["y"].shape == (3, 20, 10, 5)
    assert_same(net, watched)
    net, watched = two_nets(conv() + RELU.replace("top", "loss_weight: 2 top"))
    assert net.forward_from_to(0, 2) == pytest.approx(watched.forward_from_to(0, 2))
    assert fused(net)
    net = net_of(INPUT + conv() + RELU)
    net.blobs["x"].data[...] = 1
    net.blobs["x"].data[0, 0, 0, 0] = np.nan
    net.forward()
    assert fused(net)
    assert np.isnan(net.blobs["y"].data[0, :, 0, 0]).all() and not np.isnan(net.blobs["y"].data[1]).any()


class MyReLU(ReLULayer):
    def forward_cpu(self, bottom, top):
        top[0].data[...] = 7


def test_what_is_not_fused(onednn):
    if "MyReLU" not in layer_types():
        register_layer("MyReLU", MyReLU)
    for text, phase in ((conv() + NORM, caffe.TRAIN), (conv() + RELU + "debug_info: true", caffe.TEST),
                        (conv() + RELU.replace("ReLU", "MyReLU"), caffe.TEST)):
        net = net_of(INPUT + text, phase)
        net.forward()
        assert not fused(net) and ("MyReLU" not in text or (net.blobs["y"].data == 7).all())
    net = net_of(INPUT + conv() + RELU)
    for use in False, True:
        onednn(use)
        net.forward(), net.forward()
        assert bool(fused(net)) == use
