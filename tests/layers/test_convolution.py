
import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, output_of, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, ShapeError

DOUBLE, FLOAT = Dtype.DOUBLE, Dtype.FLOAT
RANDOM = np.random.default_rng(7)


def layer(fields, kind="Convolution", bottoms="x"):
    return layer_text(kind, "conv", " ".join(bottoms), " ".join(f"y{i}" for i in range(len(bottoms))), f"convolution_param {{ {fields} }}")


FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "uniform" }'


def connections(w, group, image, out, places):
    """Give what each weight connects, by loops over everything: a place in the image, in the columns, and the weight's."""
    stride, pad, dilation = places
    m, axes = w.shape[0] // group, range(len(out))
    for n, o, *i in np.ndindex(image[0], w.shape[0], *out):
        for c, *u in np.ndindex(*w.shape[1:]):
            at = [i[a] * stride[a] - pad[a] + u[a] * dilation[a] for a in axes]
            if all(0 <= at[a] < image[2 + a] for a in axes):
                yield (n, o // m * w.shape[1] + c, *at), (n, o, *i), (o, c, *u)


def image_to_columns(x, w, bias, stride, pad, dilation, group, out):
    """y[n, o, i] = bias[o] + sum w[o, c, u] x[n, c, i stride - pad + u dilation]."""
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for image, column, weight in connections(w, group, x.shape, out, (stride, pad, dilation)):
        y[column] += w[weight] * x[image]
    return y if bias is None else y + bias.reshape(-1, *[1] * len(out))


def columns_to_image(y, w, bias, stride, pad, dilation, group, size):
    x = np.zeros((y.shape[0], w.shape[1] * group, *size))
    for image, column, weight in connections(w, group, x.shape, y.shape[2:], (stride, pad, dilation)):
        x[image] += w[weight] * y[column]
    return x + bias.reshape(-1, *[1] * len(size))


# name, shape, fields, stride, pad, dilation, group, output sizes of a convolution
CASES = [
    ("plain", (2, 3, 6, 7), "num_output: 4 kernel_size: 3", (1, 1), (0, 0), (1, 1), 1, (4, 5)),
    ("stride_pad", (2, 3, 6, 7), "num_output: 2 kernel_size: 3 stride: 2 pad: 1", (2, 2), (1, 1), (1, 1), 1, (3, 4)),
    ("group_dilation", (1, 4, 7, 6), "num_output: 6 kernel_size: 2 group: 2 dilation: 2 pad: 1", (1, 1), (1, 1), (2, 2), 2,
     (7, 6)),
    ("sides", (2, 2, 6, 9), "num_output: 3 kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 3 pad_w: 2", (1, 3), (0, 2),
     (1, 1), 1, (4, 4)),
    ("dilations", (2, 2, 9, 10), "num_output: 2 kernel_size: 2 dilation: 3 dilation: 2", (1, 1), (0, 0), (3, 2), 1, (6, 8)),
    ("depthwise", (2, 3, 5, 5), "num_output: 3 kernel_size: 3 group: 3 pad: 1", (1, 1), (1, 1), (1, 1), 3, (5, 5)),
    ("one_by_one", (3, 5, 4, 4), "num_output: 11 kernel_size: 1", (1, 1), (0, 0), (1, 1), 1, (4, 4)),
    ("one_axis", (2, 3, 12), "num_output: 4 kernel_size: 5 stride: 3 pad: 4", (3,), (4,), (1,), 1, (6,)),
    ("three_axes", (1, 2, 4, 3, 5), "num_output: 3 kernel_size: 2 pad: 1 pad: 0 pad: 1 stride: 2", (2, 2, 2), (1, 0, 1),
     (1, 1, 1), 1, (3, 1, 3)),
    ("no_axes", (5, 4), "num_output: 3", (), (), (), 1, ()),
    ("too_small", (1, 2, 2, 4), "num_output: 2 kernel_size: 3 stride: 2", (2, 2), (0, 0), (1, 1), 1, (1, 1)),
    ("pad_beyond_kernel", (1, 1, 2, 2), "num_output: 2 kernel_size: 2 pad: 3", (1, 1), (3, 3), (1, 1), 1, (7, 7)),
]

UNEVEN = ("too_small", "pad_beyond_kernel")  # the window does not lie within the padded image, or beyond it
FITTING = [case for case in CASES if case[0] not in UNEVEN]


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=["float", "double"])
@pytest.mark.parametrize("name, shape, fields, stride, pad, dilation, group, out", CASES, ids=[c[0] for c in CASES])
def test_forward(name, shape, fields, stride, pad, dilation, group, out, dtype):
    x, atol = RANDOM.standard_normal(shape), 3e-5 if dtype == FLOAT else 1e-12      # of WINOGRAD
    net = forward_net(layer(f"{fields} {FILLERS}"), [x], dtype)
    w, b = (blob.cpu_data for blob in net.layers[-1].blobs)
    np.testing.assert_allclose(net.tops[-1][0].cpu_data, image_to_columns(x, w, b, stride, pad, dilation, group, out), atol=atol)
    if name in UNEVEN:
        return
    net = forward_net(layer(f"{fields} {FILLERS}", "Deconvolution"), [x], dtype)
    w, b = (blob.cpu_data for blob in net.layers[-1].blobs)
    y = net.tops[-1][0].cpu_data
    sizes = tuple(s * (n - 1) + d * (k - 1) + 1 - 2 * p for s, n, d, k, p in zip(stride, shape[2:], dilation, w.shape[2:], pad))
    assert y.shape == (shape[0], b.size, *sizes)
    np.testing.assert_allclose(y, columns_to_image(x, w, b, stride, pad, dilation, group, sizes), atol=atol)


@pytest.mark.parametrize(("layer_type", "case"), [*(("Convolution", case) for case in CASES), *(("Deconvolution", case) for case in FITTING)],
                         ids=lambda part: part if isinstance(part, str) else part[0])
def test_gradient(layer_type, case):
    check_gradient(layer(f"{case[2]} {FILLERS}", layer_type), [RANDOM.standard_normal(case[1])], tolerance=1e-9, linear=True)
    arrays = [RANDOM.standard_normal((2, 2, 4, 4)) for _ in "ab"]
    for bias in ("", "bias_term: false") if case[0] == "plain" else ():
        check_gradient(layer(f"num_output: 3 kernel_size: 2 {bias} {FILLERS}", layer_type, bottoms="ab"), arrays, tolerance=1e-9, linear=True)


def test_bottoms_of_other_kinds():
    arrays = [RANDOM.standard_normal((2, 2, 4, 4)) for _ in "ab"]
    net = forward_net(layer(f"num_output: 3 kernel_size: 2 {FILLERS}", bottoms="ab"), arrays)
    w, b = (blob.cpu_data for blob in net.layers[-1].blobs)
    for x, top in zip(arrays, net.tops[-1]):
        np.testing.assert_allclose(top.cpu_data, image_to_columns(x, w, b, (1, 1), (0, 0), (1, 1), 1, (3, 3)), atol=1e-12)
    x = RANDOM.standard_normal((2, 3, 2, 5, 5))
    net = forward_net(layer(f"num_output: 3 kernel_size: 2 axis: -3 {FILLERS}"), [x])
    w, b = (blob.cpu_data for blob in net.layers[-1].blobs)
    expected = image_to_columns(x.reshape(6, 2, 5, 5), w, b, (1, 1), (0, 0), (1, 1), 1, (4, 4))
    np.testing.assert_allclose(net.tops[-1][0].cpu_data, expected.reshape(2, 3, 3, 4, 4), atol=1e-12)
    x = np.zeros((1, 1, 40, 40))
    x[0, 0, 0, 0], x[0, 0, 39, 39] = np.nan, np.inf
    y = output_of(layer('num_output: 1 kernel_size: 2 weight_filler { type: "constant" value: 1 }'), [x])
    assert np.isnan(y[0, 0, 0, 0]) and np.isposinf(y[0, 0, 38, 38])
    assert np.isfinite(y).sum() == y.size - 2
    net = forward_net(layer(f"num_output: 3 kernel_size: 3 {FILLERS}"), [np.zeros((0, 2, 5, 5))])
    run_backward(net, [0])
    assert net.tops[-1][0].shape == (0, 3, 3, 3)
    assert not net.layers[-1].blobs[0].cpu_diff.any()
    net = layer_net(layer(f"num_output: 3 kernel_size: 3 {FILLERS}"), [RANDOM.standard_normal((1, 2, 5, 5))])
    for shape in ((4, 2, 9, 7), (1, 2, 3, 3)):
        x = RANDOM.standard_normal(shape)
        forward_again(net, x=x)
        w, b = (blob.cpu_data for blob in net.layers[-1].blobs)
        expected = image_to_columns(x, w, b, (1, 1), (0, 0), (1, 1), 1, (shape[2] - 2, shape[3] - 2))
        np.testing.assert_allclose(net.tops[-1][0].cpu_data, expected, atol=1e-12)
    for shape in ((1, 3, 5, 5), (1, 2, 5), (1, 2), (1,), (1, 2, 5, 5, 5)):
        net.bottoms[-1][0].reshape_to(shape)
        with pytest.raises(ShapeError, match="set up for 4 axes and 2 channels"):
            net.forward_from_to(len(net.layers) - 1, len(net.layers) - 1)


@pytest.mark.parametrize("fields, field, message", [
    ("kernel_size: 3", "num_output", "must be at least 1, got 0"),
    ("num_output: 4294967295 kernel_size: 3", "num_output", "at most 2"), ("num_output: 4", "kernel_size", "is missing"),
    ("num_output: 4 kernel_size: 0", "kernel_size", "must be at least 1, got 0"),
    ("num_output: 4 kernel_size: 3 kernel_size: 3 kernel_size: 3", "kernel_size", "one for each of the 2 spatial axes, got 3"),
    ("num_output: 4 kernel_size: 3 kernel_h: 3 kernel_w: 3", "kernel_size", "not both"),
    ("num_output: 4 kernel_h: 3", "kernel_w", "is missing"),
    ("num_output: 4 kernel_h: 3 kernel_w: 0", "kernel_w", "must be at least 1, got 0"),
    ("num_output: 4 kernel_size: 3 stride: 0", "stride", "must be at least 1, got 0"),
    ("num_output: 4 kernel_size: 3 stride_h: 2", "stride_w", "is missing"),
    ("num_output: 4 kernel_size: 3 dilation: 0", "dilation", "must be at least 1, got 0"),
    ("num_output: 4 kernel_size: 3 group: 0", "group", "must be at least 1, got 0"),
    ("num_output: 4 kernel_size: 3 group: 3", "group", "must divide the 2 channels, got 3"),
    ("num_output: 3 kernel_size: 3 group: 2", "group", "must divide the 3 num_output, got 2"),
    ("num_output: 4 kernel_size: 3 axis: 4", "axis", "out of range"),
    ("num_output: 4 kernel_size: 3 pad: 4000000000", "pad", "at most 2"),
    ("num_output: 4 kernel_size: 9", "kernel_size", "the window covers 9 pixels, the padded input has 6"),
    ("num_output: 4 kernel_size: 8 stride: 2", "kernel_size", "the window covers 8 pixels, the padded input has 6"),
    ("num_output: 4 kernel_size: 3 pad: 2000000000", "kernel_size", "the output would have size 4000000004"),
    ("num_output: 4 kernel_size: 3 pad: 100000", "", "more than 2"),
    ("num_output: 4 kernel_size: 30000 pad: 15000", "", "more than 2"),
    ('num_output: 4 kernel_size: 3 weight_filler { type: "gauss" }', "weight_filler.type", "unknown filler 'gauss'"),
])
def test_faults_name_the_field(fields, field, message):
    with pytest.raises((ConfigError, ShapeError), match=message) as caught:
        layer_net(layer(fields), [np.zeros((1, 2, 6, 6))])
    text = str(caught.value)
    assert "layer 'conv' (Convolution)" in text and text.startswith("test.prototxt")
    assert f"convolution_param.{field}" in text or not field


def test_wrong_bottoms():
    for shapes, fields, kind, words in (
            ([(2, 0, 6, 6)], "kernel_size: 3", "Convolution", r"bottom\[0\]: has no channels, its shape is \[2, 0, 6, 6\]"),
            ([(1, 2, 6)], "kernel_h: 3 kernel_w: 3", "Convolution", "only for two spatial axes"),
            ([(1, 2, 6, 6), (1, 2, 6, 7)], "kernel_size: 3", "Convolution", r"bottom\[1\].*all must be like bottom\[0\]"),
            ([(2, 3)], "kernel_size: 1", "Im2col", "needs a spatial axis")):
        with pytest.raises((ConfigError, ShapeError), match=words):
            layer_net(layer(f"num_output: 4 {fields}" if kind == "Convolution" else fields, kind, "ab"[:len(shapes)]), [np.zeros(shape) for shape in shapes])


# ---- Im2col

IM2COL = [
    ((2, 3, 5, 6), "kernel_size: 3", (3, 3), (1, 1), (0, 0), (1, 1)),
    ((2, 2, 6, 5), "kernel_size: 2 stride: 2 pad: 1 dilation: 2", (2, 2), (2, 2), (1, 1), (2, 2)),
    ((2, 2, 6, 7), "kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1 dilation: 1 dilation: 3", (3, 2), (1, 2), (0, 1), (1, 3)),
    ((2, 2, 7), "kernel_size: 3 pad: 2", (3,), (1,), (2,), (1,)),
    ((1, 2, 3, 4, 3), "kernel_size: 2 stride: 1 stride: 2 stride: 1", (2, 2, 2), (1, 2, 1), (0, 0, 0), (1, 1, 1)),
]


@pytest.mark.parametrize("shape, fields, kernel, stride, pad, dilation", IM2COL, ids=["plain", "all", "sides", "one_axis", "three_axes"])
def test_im2col(shape, fields, kernel, stride, pad, dilation):
    x = RANDOM.standard_normal(shape)
    net = check_gradient(layer(fields, "Im2col"), [x], tolerance=1e-9, linear=True)
    run_forward(net)
    y = net.tops[-1][0].cpu_data
    taps = int(np.prod(kernel))
    assert y.shape[1] == shape[1] * taps
    # Convolving with a one at (channel, tap) picks what that row of the column matrix holds.
    picks = np.eye(shape[1] * taps).reshape(-1, shape[1], *kernel)
    np.testing.assert_allclose(y, image_to_columns(x, picks, None, stride, pad, dilation, 1, y.shape[2:]), atol=1e-12)
