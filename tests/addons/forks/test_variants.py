"""Normalize and SmoothL1Loss of forks other than SSD, and depthwise convolutions: values by plain loops, gradients."""

import logging

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text

from minicaffe.addons.forks.variants import ChannelNormalizeLayer
from minicaffe.addons.ssd.normalize import NormalizeLayer
from minicaffe.blob import Dtype
from minicaffe.errors import Error

RANDOM = np.random.default_rng(5)


def normalize(fields="", tops="y"):
    return layer_text("Normalize", "l", "x", tops, fields)


def loss(bottoms, fields=""):
    return layer_text("SmoothL1Loss", "l", " ".join(bottoms), "y", fields)


@pytest.mark.parametrize("dtype, digits", [(Dtype.FLOAT, 1e-5), (Dtype.DOUBLE, 1e-12)])
@pytest.mark.parametrize("shape", [(2, 3, 2, 4), (3, 5), (2, 1, 3)])
@pytest.mark.parametrize("kind", ["L2", "L1"])
def test_norms_of_positions(kind, shape, dtype, digits):
    x = RANDOM.standard_normal(shape)
    x[0, :, ...] = 0     # what is all 0 stays 0
    net = forward_net(normalize(f'normalize_param {{ normalize_type: "{kind}" }}', "y n"), [x], dtype)
    y, n = (net.blob_by_name(name).data.reshape(shape[0], -1, np.prod(shape[2:], dtype=int)) for name in "yn")
    flat = x.reshape(shape[0], shape[1], -1)
    norm = np.sqrt((flat ** 2).sum(1, keepdims=True) + 1e-6) if kind == "L2" else abs(flat).sum(1, keepdims=True) + 1e-6
    np.testing.assert_allclose(y, flat / norm, rtol=digits)
    np.testing.assert_allclose(n, norm, rtol=digits)


@pytest.mark.parametrize("kind", ["L2", "L1"])
def test_gradient_of_normalize(kind):
    x = RANDOM.standard_normal((2, 3, 2, 2)) + 0.1
    x[np.abs(x) < 0.05] = 0.3
    check_gradient(normalize(f'normalize_param {{ normalize_type: "{kind}" fix_gradient: true }}'), [x], tolerance=1e-5)
    check_gradient(normalize(f'normalize_param {{ normalize_type: "{kind}" bp_norm: true }}', "y n"), [x], tolerance=1e-5)
    gradients = []
    for text in (normalize(f'normalize_param {{ normalize_type: "{kind}" bp_norm: {asked} }}') for asked in ("true", "false")):
        net = forward_net(text, [x])      # there is no norm that passes something
        run_backward(net, [0], [x ** 2])
        gradients.append(net.blob_by_name("x").diff.copy())
    np.testing.assert_array_equal(*gradients)
    for fields, cls in (("", NormalizeLayer), ("norm_param { across_spatial: false }", NormalizeLayer), ("normalize_param { }", ChannelNormalizeLayer)):
        assert type(layer_net(normalize(fields), [x]).layers[-1]) is cls
    net = forward_net(normalize("normalize_param { }", "y n"), [x])      # without bp_norm the norm passes nothing
    run_backward(net, [0], [np.zeros(x.shape), np.ones((2, 1, 2, 2))])
    assert not net.blob_by_name("x").diff.any()


@pytest.mark.parametrize("sigma", [1, 3, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_of_regions(sigma, weighted):
    arrays = [RANDOM.standard_normal((4, 3)) * 2 for _ in range(4 if weighted else 2)]
    net = layer_net(loss("abcd"[:len(arrays)], f"loss_weight: 2 smooth_l1_loss_param {{ sigma: {sigma} }}"), arrays)
    weight, factor = arrays[2:] if weighted else (1, 1)
    d = abs((arrays[0] - arrays[1]) * weight)
    total = (np.where(d < 1 / sigma ** 2, 0.5 * (sigma * d) ** 2, d - 0.5 / sigma ** 2) * factor).sum()
    assert run_forward(net) == pytest.approx(2 * total / 4, rel=1e-12)
    check_gradient(loss("abcd"[:len(arrays)], f"smooth_l1_loss_param {{ sigma: {sigma} }}"), arrays, check=[0, 1])


@pytest.mark.parametrize("text, shapes, wrong", [
    (normalize('normalize_param { normalize_type: "L3" }'), [(2, 3)], "normalize_param.normalize_type: must be L1 or L2, got L3"),
    (normalize("normalize_param { }"), [(2,)], r"bottom\[0\]: must have an axis of channels, got \[2\]"),
    (normalize("normalize_param { across_spatial: true }"), [(2, 3)], "normalize_param.across_spatial: unknown field"),
    (loss("abcd"), [(2, 3), (2, 3), (2, 3), (2, 2)], r"bottom\[3\]: has shape \[2, 2\]"),
    (loss("ab", "smooth_l1_loss_param { sigma: 0 }"), [(2, 3)] * 2, "smooth_l1_loss_param.sigma: must be above 0, got 0"),
    (loss("ab", "smooth_l1_loss_param { beta: 1 }"), [(2, 3)] * 2, "smooth_l1_loss_param: must be given once, and has one field, sigma; got"),
    (loss("ab", "smooth_l1_loss_param { sigma: 'a' }"), [(2, 3)] * 2, "smooth_l1_loss_param.sigma: must be above 0, got 'a'"),
    (loss("abc", "smooth_l1_loss_param { }"), [(2, 3)] * 3, r"bottom\[2\]: is given without bottom\[3\]"),
    (loss("ab", "smooth_l1_loss_param { }"), [(), ()], "needs an axis for the records")])
def test_what_does_not_fit(text, shapes, wrong):
    with pytest.raises(Error, match=wrong):
        layer_net(text, [np.ones(shape) for shape in shapes])


X = np.random.default_rng(4).standard_normal((2, 3, 5, 6))


def layer(kind, param):
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return layer_text(kind, "c", "x0", "y0", f"convolution_param {{ {param} {fillers} }}")


def slow(x, w, b, stride, pad):
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))), w.shape[2:], (2, 3))
    return (windows[:, :, ::stride, ::stride] * w[:, 0, None, None]).sum((4, 5)) + b[:, None, None]


@pytest.mark.parametrize("kind, size", [("ConvolutionDepthwise", ""), ("ConvolutionDepthwise", "num_output: 3 group: 3"),
                                        ("ConvolutionDepthwise", "num_output: 3"), ("DepthwiseConvolution", "num_output: 3 group: 3")])
def test_each_channel_has_its_kernel(kind, size):
    for stride, pad in (1, 0), (2, 1):
        net = forward_net(layer(kind, f"{size} kernel_size: 3 stride: {stride} pad: {pad}"), [X])
        w, b = net.layer_dict["c"].blobs
        assert (w.shape, b.shape) == ((3, 1, 3, 3), (3,))
        # The sums of 9 products come in another order than NumPy's.
        np.testing.assert_allclose(net.blob_by_name("y0").data, slow(X, w.data, b.data, stride, pad), rtol=1e-12, atol=1e-12)


def test_gradient_and_fields(caplog):
    check_gradient(layer("ConvolutionDepthwise", "kernel_h: 2 kernel_w: 3 dilation: 1"), [X])
    with caplog.at_level(logging.WARNING):
        net = layer_net(layer("ConvolutionDepthwise", "num_output: 12 kernel_size: 1"), [X])
    assert net.blob_by_name("y0").shape == (2, 3, 5, 6)
    assert "num_output: 12 is ignored; there are as many outputs as channels, 3" in caplog.text
    for kind, fields, wrong in (("ConvolutionDepthwise", "", ".kernel_size"), ("ConvolutionDepthwise", "axis: 7 kernel_size: 1", ".axis"),
                                ("DepthwiseConvolution", "num_output: 4 group: 3 kernel_size: 1", "")):
        with pytest.raises(Error, match=rf"layer 'c' \({kind}\): convolution_param{wrong}"):
            layer_net(layer(kind, fields), [X])
