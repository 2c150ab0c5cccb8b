"""A convolution computes the layers that follow it in place, too, and no blob shows it."""

import numpy as np
import pytest
from watched import BIAS, LEAKY, LOSS, NORM, PRELU, RELU, SCALE, fused, net_of, with_one_watched

import minicaffe as caffe
from minicaffe import memory
from minicaffe.errors import Error
from minicaffe.layer import layer_types, register_layer
from minicaffe.layers.relu import ReLULayer
from minicaffe.net.run import AFTER_FORWARD, BEFORE_BACKWARD
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

pytestmark = pytest.mark.usefixtures("onednn")

INPUT = 'layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 8 } } }'
POWER = 'layer { name: "power" type: "Power" bottom: "y" top: "y" power_param { shift: 1 } }'


def conv(bottom="x", top="y", outputs=20):
    return (f'layer {{ name: "conv_{top}" type: "Convolution" bottom: "{bottom}" top: "{top}" convolution_param {{ '
            f'num_output: {outputs} kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}')


def two_nets(text, phase=caffe.TEST):
    """A net, and one with the same values that is read between layers."""
    return with_one_watched([net_of(INPUT + text, phase) for _ in range(2)])


def assert_same(net, watched, rtol=1e-5):
    for name, blob in net.blobs.items():
        np.testing.assert_allclose(blob.data, watched.blobs[name].data, rtol, 1e-6, err_msg=name)
        assert np.abs(blob.data).max() > 0.1
    assert not fused(watched)


def check_fused(net, watched, names, rtol=1e-5):
    """Compare two forwards of both, and the layers that are fused."""
    for _ in range(2):
        net.forward(), watched.forward()
        assert fused(net) == names
        assert_same(net, watched, rtol)


@pytest.mark.parametrize(("layers", "names"), [
    (RELU, ["relu"]),
    (LEAKY, ["leaky"]),
    (PRELU, ["prelu"]),
    (NORM + SCALE + RELU, ["norm", "scale", "relu"]),
    (SCALE + NORM + BIAS + PRELU, ["scale", "norm", "bias", "prelu"]),
    (BIAS, ["bias"]),
    (RELU + NORM, ["relu"]),                # an affine map after it is another matter
    (RELU + LEAKY, ["relu"]),
    (NORM + POWER + RELU, ["norm"]),        # Power does not join
    (SCALE.replace("scale_param {", "scale_param { axis: 2 num_axes: 1") + RELU, []),   # not by channels
])
def test_convolution_epilogue_gives_same_numbers(layers, names):
    net, watched = two_nets(conv() + layers + conv("y", "z", 16))
    for _ in range(2):
        net.forward(), watched.forward()
        assert fused(net) == ({"conv_y": names} if names else {})
        assert_same(net, watched)
        for blob in (*net.params.get("norm", []), *net.params.get("scale", [])):    # the next forward sees new values
            blob.data[...] *= 1.5
        for blob in (*watched.params.get("norm", []), *watched.params.get("scale", [])):
            blob.data[...] *= 1.5


@pytest.mark.parametrize("factor", [0, 1e-30, 1e-39, 1e-44, -1e-12])
@pytest.mark.parametrize("bias", ["true", "false"])
def test_factors_that_are_next_to_nothing(factor, bias):
    """Weights times them are next to nothing, too, and the shift stays."""
    net, watched = two_nets(conv().replace("num_output", f"bias_term: {bias} num_output") + SCALE + RELU)
    for each in (net, watched):
        each.params["scale"][0].data[3:8] = factor
        each.params["scale"][1].data[5:9] = 0
    check_fused(net, watched, {"conv_y": ["scale", "relu"]})


@pytest.mark.parametrize("weight", [0, 1, 0.25, 3.5, 1000])
@pytest.mark.parametrize("layers", [NORM, NORM + SCALE + RELU, SCALE + NORM])
def test_statistics_are_sums_with_a_weight(layers, weight):
    """Mean and variance are the stored sums divided by their weight; those of weight 0 are 0."""
    net, watched = two_nets(conv() + layers)
    dice = np.random.default_rng(4)
    mean, variance = dice.normal(0, 1, 20), dice.uniform(0.5, 2, 20)
    for each in (net, watched):
        for blob, values in zip(each.params["norm"], (mean * (weight or 1), variance * (weight or 1), weight), strict=True):
            blob.data[...] = values
    net.forward(), watched.forward()
    assert fused(net)["conv_y"][0] in ("norm", "scale")
    assert_same(net, watched, 1e-3)     # a variance of 0 makes errors of rounding large
    if layers is NORM:
        plain = with_one_watched([net_of(INPUT + conv(), caffe.TEST) for _ in range(2)])[0]
        for blob, own in zip(plain.params["conv_y"], net.params["conv_y"], strict=True):
            blob.data[...] = own.data
        plain.blobs["x"].data[...] = net.blobs["x"].data
        plain.forward()
        y = plain.blobs["y"].data
        shape = (1, 20, 1, 1)
        wanted = (y - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + 1e-5) if weight else y / np.sqrt(1e-5)
        np.testing.assert_allclose(net.blobs["y"].data, wanted, 1e-3, 1e-4)


def test_factors_scale_weight_copy():
    """Made again for new factors or weights, and for nothing else; the weights themselves stay as they are."""
    net, watched = two_nets(conv() + NORM + SCALE + RELU)
    weight = net.params["conv_y"][0]
    before = weight.data.copy()

    def reordered():
        with memory.record() as events:
            net.forward()
        watched.forward()
        assert fused(net) == {"conv_y": ["norm", "scale", "relu"]}
        assert_same(net, watched, 1e-4)
        return [event.name for event in events if event.kind == "reorder" and event.name == weight.data_memory.name]
    once = reordered()
    assert len(once) == 1 and not reordered()
    np.testing.assert_array_equal(weight.cpu_data, before)
    assert weight.layout_of_data() is None      # no other layer computes with the copy
    for name in ("scale", "norm"):
        for each in (net, watched):
            each.params[name][0].data[...] += 0.5
        assert reordered() == (once if name == "scale" else [])     # a mean is in the shift alone
    for each in (net, watched):
        each.params["conv_y"][0].data[...] *= -2
    assert reordered() == once and not reordered()


@pytest.mark.parametrize("group", [1, 2, 16])
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_each_output_gets_its_own_factor(kind, group):
    first = conv(outputs=16)
    second = conv("y", "z", 32).replace("num_output", f"group: {group} num_output").replace("Convolution", kind)
    check_fused(*two_nets(first + second + SCALE.replace('"y"', '"z"')), {"conv_z": ["scale"]}, 1e-4)


def test_one_weight_with_two_factors():
    shared = conv().replace('top: "y"', 'top: "y" param { name: "w" } param { name: "b" }')
    text = shared + SCALE + (shared + SCALE).replace('"y"', '"z"').replace('"scale"', '"another"').replace("conv_y", "conv_z")
    check_fused(*two_nets(text), {"conv_y": ["scale"], "conv_z": ["another"]})


def test_training_uses_weights_unchanged(onednn):
    """While a net of phase TEST has them times factors in its copy."""
    ends = []
    for use in (True, False):
        onednn(use)
        net_text = INPUT + conv().replace("num_output", "bias_term: false num_output") + NORM + SCALE + RELU + LOSS
        text = f"base_lr: 1e-3 momentum: 0.9 lr_policy: 'fixed' random_seed: 3 net_param {{ {net_text} }}"
        solver = create_solver(parse_text(text, caffe_pb2.SolverParameter, "solver.prototxt", keep_layer_fields=True)[0])
        test = net_of(net_text.replace(LOSS, ""))
        test.share_with(solver.net)
        for net in (solver.net, test):
            net.blob_by_name("x").data[...] = np.random.default_rng(5).standard_normal((2, 3, 9, 8))
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
    nets = [net_of(images + conv(outputs=16).replace("num_output", "axis: 2 num_output") + BIAS) for _ in range(2)]
    for net in nets:
        net.blobs["x"].data[...] = np.random.default_rng(3).standard_normal(net.blobs["x"].shape)
        for name in ("conv_y", "bias"):
            for i, blob in enumerate(net.params[name]):
                blob.data[...] = np.random.default_rng(4 + i).standard_normal(blob.shape)
    nets[1].add_hook(AFTER_FORWARD, lambda index: None)
    for net in nets:
        net.forward()
    assert not fused(nets[0])
    assert_same(*nets)


@pytest.mark.parametrize("outputs", [1, 7, 16, 24, 33])
@pytest.mark.parametrize("group", [1, 3])
def test_padding_of_layouts_stays_zero(outputs, group):
    """The layers after read zeros beyond the last channel, whatever the shift is."""
    first = conv(outputs=3 * outputs).replace("num_output", f"group: {group} num_output")
    net, watched = two_nets(first + NORM + SCALE + RELU + conv("y", "z"))
    net.forward(), watched.forward()
    assert_same(net, watched)


def test_training_gives_same_bits():
    net, watched = two_nets(conv() + LEAKY + conv("y", "z") + LOSS.replace('"y"', '"z"'), caffe.TRAIN)
    for each in (net, watched):
        each.clear_param_diffs()
        each.forward()
        each.backward()
    assert fused(net) == {"conv_y": ["leaky"]} and not fused(watched)
    for name, blob in net.blobs.items():
        np.testing.assert_array_equal(blob.data, watched.blobs[name].data)
    for name, blobs in net.params.items():
        for blob, other in zip(blobs, watched.params[name], strict=True):
            np.testing.assert_array_equal(blob.diff, other.diff)
            assert np.abs(blob.diff).max() > 0


@pytest.mark.no_plan("goes backward in phase TEST, in which a plan has forward alone")
@pytest.mark.parametrize("layer", [NORM, SCALE, BIAS, PRELU])
def test_layer_that_saves_not_fused(layer):
    net, watched = two_nets(conv() + layer + LOSS)
    for each in (net, watched):
        each.clear_param_diffs()
        each.forward()
        each.backward()
    assert not fused(net)
    np.testing.assert_array_equal(net.params["conv_y"][0].diff, watched.params["conv_y"][0].diff)


def test_loss_net_with_plan_keeps_nothing():
    """As the test nets of `minicaffe test` and of a training do: their blobs are recycled, so nothing can go backward."""
    net = net_of(INPUT + conv() + NORM + SCALE + RELU + LOSS, plan="memory")
    net.blobs["x"].data[...] = 1
    net.forward()
    assert fused(net) == {"conv_y": ["norm", "scale", "relu"]}


def test_who_looks_between_sees_each_layer():
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


def test_loss_and_nan_of_last_layer():
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


def test_another_shape():
    net, watched = two_nets(conv() + NORM + RELU)
    for each in (net, watched):
        each.forward()
        each.blobs["x"].reshape(3, 3, 12, 7)
        each.blobs["x"].data[...] = 0.5
        each.forward()
    assert fused(net) and net.blobs["y"].shape == (3, 20, 10, 5)
    assert_same(net, watched)


def test_single_backward_needs_own_forward():
    net = net_of(INPUT + conv() + NORM)
    net.forward()
    with pytest.raises(Error, match=r"'norm' \(BatchNorm\): was fused into an earlier layer"):
        net.backward_layer(2)
    net.forward(end="conv_y"), net.forward(start="norm")
    net.backward_layer(2)


def test_what_is_not_fused(onednn):
    """Statistics of the batch; what debug_info reads; a user's layer; what engine CAFFE computes."""
    if "MyReLU" not in layer_types():
        register_layer("MyReLU", MyReLU)
    for text, phase in ((conv() + NORM, caffe.TRAIN), (conv() + RELU + "debug_info: true", caffe.TEST), (conv() + RELU.replace("ReLU", "MyReLU"), caffe.TEST)):
        net = net_of(INPUT + text, phase)
        net.forward()
        assert not fused(net) and ("MyReLU" not in text or (net.blobs["y"].data == 7).all())
    net = net_of(INPUT + conv() + RELU)
    for use in False, True:
        onednn(use)
        net.forward(), net.forward()
        assert bool(fused(net)) == use
