"""Reverse, Squeeze, ShuffleChannel, Reorg and Rearrange of forks, against plain loops; and fields of forks' messages."""

import numpy as np
import pytest
from gradient import forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text, make_net

from minicaffe.blob import Dtype
from minicaffe.errors import Error

RANDOM = np.random.default_rng(3)


def layer(kind, fields=""):
    message = {"ShuffleChannel": "shuffle_channel_param"}.get(kind, f"{kind.lower()}_param")
    return layer_text(kind, "l", "x", "y", f"{message} {{ {fields} }}")


def shuffled(x, groups):
    return x.reshape(len(x), groups, -1, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)


def darknet(x, s):
    """The index formula of the fork, on flat buffers."""
    n, c, h, w = x.shape
    t = c // (s * s)
    y = np.empty((n, c * h * w))
    for k in range(n):
        flat = x[k].reshape(-1)
        for a, i, j in np.ndindex(c, h, w):
            y[k, (a * h + i) * w + j] = flat[((a % t) * h * s + i * s + (a // t) // s) * w * s + j * s + (a // t) % s]
    return y.reshape(n, c * s * s, h // s, w // s)


def to_space(x, s, channel):
    """Each channel d of the output, at (a s + i, b s + j), from a channel of the input."""
    n, c, h, w = x.shape
    y = np.empty((n, c // (s * s), h * s, w * s))
    for d, a, b, i, j in np.ndindex(c // (s * s), h, w, s, s):
        y[:, d, a * s + i, b * s + j] = x[:, channel(d, i, j), a, b]
    return y


CASES = {
    "Reverse": ("", (3, 2, 4), lambda x: x[::-1]),
    "Reverse, axis 2": ("axis: 2", (3, 2, 4, 1), lambda x: x[:, :, ::-1]),
    "Reverse, two axes": ("axis: 0 axis: 1", (3, 2, 4), lambda x: x[::-1, ::-1]),
    "Squeeze": ("", (2, 1, 3, 1), lambda x: x.reshape(2, 3)),
    "Squeeze, one axis": ("axis: -1", (2, 1, 3, 1), lambda x: x.reshape(2, 1, 3)),
    "ShuffleChannel": ("group: 3", (2, 12, 2, 3), lambda x: shuffled(x, 3)),
    "ShuffleChannel, one group": ("", (2, 4), lambda x: x),
    "Reorg": ("stride: 2", (2, 8, 4, 6), lambda x: darknet(x, 2)),
    "Reorg, 3": ("stride: 3", (1, 9, 3, 6), lambda x: darknet(x, 3)),
    "Reorg, reverse": ("stride: 2 reverse: true", (2, 8, 3, 5), lambda x: to_space(x, 2, lambda d, i, j: (i * 2 + j) * 2 + d)),
    "Rearrange": ("depth: 2", (2, 18, 2, 3), lambda x: to_space(x, 3, lambda d, i, j: (d * 3 + i) * 3 + j)),
    "Rearrange, one channel": ("", (1, 16, 3, 2), lambda x: to_space(x, 4, lambda d, i, j: i * 4 + j)),
}


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dtype):
    fields, shape, wanted = CASES[name]
    x = RANDOM.permutation(np.prod(shape)).reshape(shape).astype(np.float64)
    net = forward_net(layer(name.partition(",")[0], fields), [x], dtype)
    y = net.blob_by_name("y")
    assert y.shape == wanted(x).shape
    np.testing.assert_array_equal(y.data, wanted(x))
    net.blob_by_name("x").diff[...] = -1
    run_backward(net, [0], [y.data])
    np.testing.assert_array_equal(net.blob_by_name("x").diff, x)


def test_empty_and_other_shapes():
    net = layer_net(layer("Reorg", "stride: 2"), [np.zeros((1, 4, 2, 2))])
    for shape in ((3, 4, 6, 2), (0, 4, 2, 2)):
        x = RANDOM.standard_normal(shape)
        forward_again(net, x=x)
        np.testing.assert_array_equal(net.blob_by_name("y").data, darknet(x, 2))
    net = make_net('layer { name: "in" type: "Input" top: "x" input_param { } }' + layer("Squeeze"))
    run_forward(net)
    run_backward(net, [0])
    assert net.blob_by_name("y").shape == net.blob_by_name("x").shape == ()


@pytest.mark.parametrize("kind, fields, shape, wrong", [
    ("Reverse", "axis: 2", (2, 3), r"reverse_param.axis: must be an axis of the bottom, whose shape is \[2, 3\], got \[2\]"),
    ("Reverse", "axis: -1", (2, 3), "reverse_param.axis: must be at least 0, got -1"),
    ("Squeeze", "axis: 1", (2, 3, 1), r"squeeze_param.axis: must be an axis of size 1 of the bottom"),
    ("Squeeze", "axis: 3", (2, 3, 1), "must be an axis of size 1"),
    ("ShuffleChannel", "group: 4", (1, 6, 2, 2), r"shuffle_channel_param.group: must divide the channels of the bottom, .*, got 4"),
    ("ShuffleChannel", "group: 0", (1, 6), "shuffle_channel_param.group: must be at least 1, got 0"),
    ("Reorg", "", (1, 4, 2, 2), "reorg_param.stride: must be given"),
    *(("Reorg", "stride: 2", shape, "height and width of itself, got 2") for shape in ((1, 4, 3, 2), (1, 4, 2, 3))),
    *(("Reorg", "stride: 2", shape, "does not fit the bottom") for shape in ((1, 6, 2, 2), (1, 4, 2), (1, 4, 2, 2, 2))),
    ("Reorg", "stride: 2 reverse: true", (1, 4, 2), "does not fit the bottom"),
    ("Reorg", "stride: 2 reverse: true", (1, 6, 2, 2), "channels must be a multiple of its square, got 2"),
    ("Rearrange", "depth: 3", (1, 18, 2, 2), r"rearrange_param.depth: times a square must be the number of channels of the bottom .*, \[1, 18, 2, 2\], got 3"),
    ("Rearrange", "depth: 20", (1, 18, 2, 2), "times a square"), ("Rearrange", "depth: 0", (1, 18, 2, 2), "must be at least 1, got 0"),
    ("Rearrange", "", (1, 4, 2), "times a square"),
    *(("Reorg", fields, (1, 4, 2, 2), f"reorg_param{wrong}") for fields, wrong in (
        ("stride: 2 revers: true", ".revers: unknown field; did you mean 'reverse'"), ("stride: 2 q: 1", ".q: unknown field; it has stride, reverse"),
        ("stride: 2 stride: 2", ".stride: must be given once, got 2 values"), ("stride: 2.5", ".stride: must be an integer, got 2.5"),
        ("stride: true", ".stride: must be an integer, got True"), ('stride: "2"', ".stride: must be an integer, got '2'"),
        ("stride: 2 reverse: 3", ".reverse: must be true or false, got 3"),
        ("stride: 2 } reorg_param { stride: 2", ": must be given once, as a message in braces"),
        ("stride: 2 } reorg_param: 3 dummy_data_param {", ": must be given once, as a message in braces")))])
def test_what_does_not_fit(kind, fields, shape, wrong):
    with pytest.raises(Error, match=rf"test.prototxt.*layer 'l' \({kind}\): .*{wrong}"):
        layer_net(layer(kind, fields), [np.zeros(shape)])
