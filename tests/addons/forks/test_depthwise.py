"""ConvolutionDepthwise and DepthwiseConvolution: a Convolution with as many groups as channels, with the same blobs."""

import logging

import numpy as np
import pytest
from gradient import check_gradient, layer_net, run_forward

from minicaffe.errors import Error

X = np.random.default_rng(4).standard_normal((2, 3, 5, 6))


def layer(kind, param, name="c"):
    return f"""layer {{ name: "{name}" type: "{kind}" bottom: "x0" top: "y0" convolution_param {{ {param}
      weight_filler {{ type: "gaussian" std: 1 }} bias_filler {{ type: "gaussian" std: 1 }} }} }}"""


def slow(x, w, b, stride, pad):
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    kernel = w.shape[2:]
    height, width = ((x.shape[2 + i] - kernel[i]) // stride + 1 for i in range(2))
    y = np.empty((*x.shape[:2], height, width))
    for i, j in np.ndindex(height, width):
        window = x[:, :, i * stride:i * stride + kernel[0], j * stride:j * stride + kernel[1]]
        y[:, :, i, j] = (window * w[:, 0]).sum((2, 3)) + b
    return y


@pytest.mark.parametrize("kind, size", [("ConvolutionDepthwise", ""), ("ConvolutionDepthwise", "num_output: 3 group: 3"),
                                        ("ConvolutionDepthwise", "num_output: 3"), ("DepthwiseConvolution", "num_output: 3 group: 3")])
@pytest.mark.parametrize("stride, pad", [(1, 0), (2, 1)])
def test_each_channel_has_its_kernel(kind, size, stride, pad):
    net = layer_net(layer(kind, f"{size} kernel_size: 3 stride: {stride} pad: {pad}"), [X])
    w, b = net.layer_dict["c"].blobs
    assert (w.shape, b.shape) == ((3, 1, 3, 3), (3,))
    run_forward(net)
    # The sums of 9 products come in another order than NumPy's.
    np.testing.assert_allclose(net.blob_by_name("y0").data, slow(X, w.data, b.data, stride, pad), rtol=1e-12, atol=1e-12)


def test_gradient():
    check_gradient(layer("ConvolutionDepthwise", "kernel_h: 2 kernel_w: 3 dilation: 1"), [X])


def test_num_output_is_not_looked_at(caplog):
    with caplog.at_level(logging.WARNING):
        net = layer_net(layer("ConvolutionDepthwise", "num_output: 12 kernel_size: 1"), [X])
    assert net.blob_by_name("y0").shape == (2, 3, 5, 6)
    assert "num_output: 12 is ignored; there are as many outputs as channels, 3" in caplog.text


def test_wrong_fields():
    with pytest.raises(Error, match=r"layer 'c' \(ConvolutionDepthwise\): convolution_param.kernel_size"):
        layer_net(layer("ConvolutionDepthwise", ""), [X])
    with pytest.raises(Error, match=r"layer 'c' \(ConvolutionDepthwise\): convolution_param.axis"):
        layer_net(layer("ConvolutionDepthwise", "axis: 7 kernel_size: 1"), [X])
    with pytest.raises(Error, match=r"layer 'c' \(DepthwiseConvolution\): convolution_param"):
        layer_net(layer("DepthwiseConvolution", "num_output: 4 group: 3 kernel_size: 1"), [X])
