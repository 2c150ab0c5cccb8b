"""Pooling and SPP against a slow reference: windows, ties, masks, divisors, NaN, random draws, and the errors of their parameters."""

import contextlib
import math

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward
from helpers import layer_text, make_net

from minicaffe.blob import Dtype
from minicaffe.common import TEST, TRAIN, caffe
from minicaffe.errors import ConfigError, ShapeError

FLOAT_MAX = float(np.finfo(np.float32).max)


def pooling(fields, tops=1):
    return layer_text("Pooling", "p", "x", "y mask" if tops == 2 else "y", f"pooling_param {{ {fields} }}")


def windows(size, kernel, stride, pad, padded, floor=False):
    """(start, end) of each window along one axis, as layers.md 4.40 has them."""
    count = (math.floor if floor else math.ceil)((size + 2 * pad - kernel) / stride) + 1
    count -= bool(padded and (count - 1) * stride >= size + pad)
    return [(p * stride - pad, p * stride - pad + kernel) for p in range(count)]


def reference(x, kernel, stride=(1, 1), pad=(0, 0), floor=False):
    rows, columns = (windows(x.shape[2 + i], kernel[i], stride[i], pad[i], any(pad), floor) for i in range(2))
    shape = (*x.shape[:2], len(rows), len(columns))
    best, mask, mean = np.full(shape, -FLOAT_MAX), np.full(shape, -1), np.zeros(shape)
    for n, c, ph, pw in np.ndindex(*shape):
        (top, bottom), (left, right) = rows[ph], columns[pw]
        area = (min(bottom, x.shape[2] + pad[0]) - top) * (min(right, x.shape[3] + pad[1]) - left)
        total = 0.0
        for h in range(max(top, 0), min(bottom, x.shape[2])):
            for w in range(max(left, 0), min(right, x.shape[3])):
                total += x[n, c, h, w]
                if x[n, c, h, w] > best[n, c, ph, pw]:
                    best[n, c, ph, pw], mask[n, c, ph, pw] = x[n, c, h, w], h * x.shape[3] + w
        mean[n, c, ph, pw] = total / area
    return best, mask, mean


# (fields, kernel, stride, pad, floor): the sizes with a path of their own, others, and windows that hang over
SHAPES = [
    ("kernel_size: 2 stride: 2", (2, 2), (2, 2), (0, 0), False),
    ("kernel_size: 2 stride: 2 pad: 1", (2, 2), (2, 2), (1, 1), False),
    ("kernel_size: 3 stride: 2", (3, 3), (2, 2), (0, 0), False),
    ("kernel_size: 3 stride: 2 pad: 1", (3, 3), (2, 2), (1, 1), False),
    ("kernel_size: 3 stride: 1 pad: 1", (3, 3), (1, 1), (1, 1), False),
    ("kernel_size: 3 stride: 2 round_mode: FLOOR", (3, 3), (2, 2), (0, 0), True),
    ("kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0", (3, 2), (2, 1), (1, 0), False),
    ("kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2", (2, 3), (1, 2), (0, 0), False),
    ("kernel_size: 3 stride_h: 2 stride_w: 1", (3, 3), (2, 1), (0, 0), False),
    ("kernel_size: 2 stride: 2 pad_h: 0 pad_w: 1", (2, 2), (2, 2), (0, 1), False),
    ("kernel_size: 5 stride: 3 pad: 2", (5, 5), (3, 3), (2, 2), False), ("kernel_size: 1", (1, 1), (1, 1), (0, 0), False),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("planes", [(1, 1), (2, 3)])
@pytest.mark.parametrize("size", [(5, 5), (8, 37), (16, 6)])
@pytest.mark.parametrize("shape", SHAPES, ids=[s[0] for s in SHAPES])
def test_forward_equals_the_loops(shape, size, planes, dtype):
    fields, kernel, stride, pad, floor = shape
    x = np.random.default_rng(7).integers(-4, 5, (*planes, *size)).astype(np.float64)  # small integers: many ties
    best, mask, mean = reference(x, kernel, stride, pad, floor)
    net = forward_net(pooling(fields, tops=2), [x], dtype)
    np.testing.assert_array_equal(net.blob_by_name("y").cpu_data, best)
    np.testing.assert_array_equal(net.blob_by_name("mask").cpu_data, mask)
    net = forward_net(pooling(fields + " pool: AVE"), [x], dtype)
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, mean, rtol=1e-6, atol=1e-7)  # one rounding of the quotient


@pytest.mark.parametrize("pool", ["MAX", "AVE", "STOCHASTIC"])
@pytest.mark.parametrize("shape", SHAPES, ids=[s[0] for s in SHAPES])
def test_gradient(shape, pool):
    # Distinct values at least 0.02 apart: no step of the differences changes a maximum. The draws of STOCHASTIC are not
    # continuous in x, so there the gradient is compared with where the tops come from instead.
    x, text = np.random.default_rng(3).permutation(2 * 7 * 6).reshape(1, 2, 7, 6) * 0.02 + 0.1, pooling(f"{shape[0]} pool: {pool}")
    if pool != "STOCHASTIC":
        check_gradient(text, [x])
        check_gradient(text, [x[:, :1]])  # one plane: the path over pixels
    elif not any(shape[3]):     # padding is refused there
        net, dx = forward_net(text, [x]), np.zeros_like(x)
        y = net.blob_by_name("y").cpu_data.copy()
        dy = np.random.default_rng(5).integers(1, 9, y.shape)
        for index in np.ndindex(*y.shape):
            dx[index[:2]][np.isclose(x[index[:2]], y[index], 0, 1e-9)] += dy[index]
        run_backward(net, [0], [dy])
        np.testing.assert_array_equal(net.blob_by_name("x").cpu_diff, dx)


def test_empty_and_other_bottoms():
    net = layer_net(pooling("pool: AVE global_pooling: true"), [np.zeros((2, 3, 5, 4))])
    for shape in (2, 3, 5, 4), (1, 3, 2, 7):
        x = np.random.default_rng(1).standard_normal(shape)
        forward_again(net, x=x)
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data, x.mean((2, 3), keepdims=True), rtol=1e-12)
    # Planes without pixels have no windows, though the padding alone would have room for one.
    for method in "MAX", "AVE":
        for shape in (2, 3, 0, 4), (2, 3, 4, 0), (2, 3, 0, 0):
            net = forward_net(pooling(f"pool: {method} kernel_size: 3 stride: 2 pad: 1"), [np.zeros(shape)])
            run_backward(net, [0])
            assert net.tops[-1][0].shape == (2, 3, 0, 0)
    # An empty batch may have planes that are smaller than the window
    net = forward_net(pooling("kernel_h: 4 kernel_w: 3"), [np.zeros((0, 3, 2, 5))])
    assert net.tops[-1][0].shape == (0, 3, 0, 3)
    net = layer_net(pooling("kernel_size: 2 stride: 2"), [np.ones((2, 3, 4, 4))])
    forward_again(net, x=np.ones((0, 3, 4, 4)))
    assert net.blob_by_name("y").shape == (0, 3, 2, 2)
    run_backward(net, [0])
    forward_again(net, x=np.ones((1, 3, 4, 4)))
    assert (net.blob_by_name("y").cpu_data == 1).all()


@pytest.mark.parametrize("fields", ["kernel_size: 2 stride: 2", "kernel_size: 4 stride: 4"])
def test_nan_and_minus_infinity_never_maximum(fields):
    x = np.full((1, 2, 4, 4), np.nan)
    x[0, 0, 0, 0], x[0, 0, 0, 1] = -np.inf, 2.0
    net = forward_net(pooling(fields, tops=2), [x])
    y, mask = net.blob_by_name("y").cpu_data, net.blob_by_name("mask").cpu_data
    assert y[0, 0, 0, 0] == 2 and mask[0, 0, 0, 0] == 1
    assert (y[0, 1] == -FLOAT_MAX).all() and (mask[0, 1] == -1).all()
    run_backward(net, [0], [np.ones(y.shape), None])
    assert net.blob_by_name("x").cpu_diff.sum() == 1  # nothing is written for a window without a maximum
    net = forward_net(pooling("kernel_h: 1 kernel_w: 2", tops=2), [np.array([[np.inf, 1.0], [-0.0, 0.0]])[None, None]])
    np.testing.assert_array_equal(net.blob_by_name("mask").cpu_data.ravel(), [0, 2])


@pytest.mark.parametrize("planes", [1, 4])
def test_window_beyond_the_image_is_empty(planes):
    net = forward_net(pooling("kernel_size: 1 stride: 4", tops=2), [np.ones((1, planes, 6, 6))])
    mask = net.blob_by_name("mask").cpu_data
    assert mask.shape[2:] == (3, 3) and (mask[..., 2] == -1).all()
    run_backward(net, [0], [np.ones(mask.shape), None])
    assert net.blob_by_name("x").cpu_diff.sum() == 4 * planes
    # A huge stride takes no memory
    net = forward_net(pooling("kernel_size: 2 stride: 1000000 pool: AVE"), [np.arange(36.0).reshape(1, 1, 6, 6).repeat(planes, 1)])
    y = net.blob_by_name("y").cpu_data
    assert y.shape[2:] == (2, 2) and (y[..., 0, 0] == 3.5).all()
    run_backward(net, [0], [np.ones(y.shape)])
    assert net.blob_by_name("x").cpu_diff.sum() == planes


def test_stochastic_draws_in_proportion_and_repeats():
    x = np.tile(np.array([[1.0, 2.0], [3.0, 0.0]]), (50, 40))[None, None]
    net = forward_net(pooling("kernel_size: 2 stride: 2 pool: STOCHASTIC"), [x], phase=TRAIN)
    first = net.blob_by_name("y").cpu_data.copy()
    # 2000 draws: five standard deviations of each share are below 0.06
    np.testing.assert_allclose([(first == value).mean() for value in (1, 2, 3, 0)], [1 / 6, 2 / 6, 3 / 6, 0], atol=0.06)
    offset = caffe.generator.offset
    net.forward_from_to(0, 1)
    again = net.blob_by_name("y").cpu_data.copy()
    assert (again != first).any()
    caffe.generator.offset = offset  # what a resumed run does
    net.forward_from_to(0, 1)
    np.testing.assert_array_equal(net.blob_by_name("y").cpu_data, again)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_stochastic_test_is_weighted_mean(dtype):
    x = np.random.default_rng(6).integers(-3, 4, (2, 3, 9, 8)).astype(float)
    net = forward_net(pooling("kernel_h: 1 kernel_w: 3 stride_h: 2 stride_w: 1 pool: STOCHASTIC"), [x], dtype, phase=TEST)
    parts = np.lib.stride_tricks.sliding_window_view(x, (1, 3), (2, 3))[:, :, ::2]
    total, squares = parts.sum((4, 5)), (parts ** 2).sum((4, 5))
    assert (total < 0).any() and (total == 0).any() and (total > 0).any()
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, np.where(total > 0, squares / np.where(total > 0, total, 1), 0), rtol=1e-6)
    with pytest.raises(ConfigError, match="layer 'p'.*pooling_param.pool: .*TRAIN"):
        run_backward(net, [0])
    net = forward_net(pooling("kernel_size: 2 pool: STOCHASTIC"), [np.array([[1.0, np.nan], [1, 1]])[None, None]], phase=TEST)
    assert np.isnan(net.blob_by_name("y").cpu_data).all()


@pytest.mark.parametrize("fields, field", [
    ("", "kernel_size: give kernel_size, or both"), ("kernel_size: 2 kernel_h: 2 kernel_w: 2", "kernel_size: give"),
    ("kernel_h: 2", "kernel_size: give .* got kernel_h"), ("kernel_size: 0", "kernel_size: must be from 1"),
    ("kernel_size: 2 stride: 0", "stride: must be from 1"), ("kernel_size: 2 stride_h: 2", "stride: give stride, or both"),
    ("kernel_size: 2 stride: 1 stride_h: 2 stride_w: 2", "stride: give"),
    ("kernel_size: 2 pad_w: 1", "pad: give pad, or both"), ("kernel_size: 2 pad: 2", "pad: must be less than the kernel"),
    ("kernel_h: 2 kernel_w: 3 pad: 2", "pad: must be less than the kernel"),
    ("kernel_h: 3 kernel_w: 2 pad: 2", "pad: must be less than the kernel"),
    ("kernel_size: 2 pad: 1 pool: STOCHASTIC", "pad: must be 0"),
    ("global_pooling: true kernel_size: 2", "kernel_size: must not be given"),
    ("global_pooling: true stride: 2", "global_pooling: needs pad 0"),
    ("kernel_size: 9 stride: 2", "kernel_size: .*does not fit"),
    ("kernel_size: 5 round_mode: FLOOR", "kernel_size: .*does not fit"),
])
def test_wrong_parameters_name_the_field(fields, field):
    with pytest.raises((ConfigError, ShapeError), match=rf"layer 'p' \(Pooling\): pooling_param.{field}"):
        layer_net(pooling(fields), [np.zeros((1, 1, 4, 4))])
    with pytest.raises(ConfigError, match="top: only MAX"):
        layer_net(pooling("kernel_size: 2 pool: AVE", tops=2), [np.zeros((1, 1, 4, 4))])
    for height, shape, error in ((0, (4, 4), "must be given"), (1, (0, 4), "0 pixels"), (4294967295, (40, 40), "40 pixels cannot be cut into"),
                                 (4, (9, 40), "9 pixels cannot be cut into 8 bins: windows of 2 would need a padding of 4")):
        with pytest.raises((ConfigError, ShapeError), match=rf"layer 's' \(SPP\): spp_param.pyramid_height: {error}"):
            layer_net(pyramid(height), [np.zeros((1, 1, *shape))])


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize(("width", "fields", "tops", "counts"), [
    (4096, "", 1, True), (4097, "", 1, False), (4097, "", 2, False), (4097, "pool: AVE", 1, True)])
def test_planes_that_a_mask_can_count(width, fields, tops, counts, dtype):
    """2^24 pixels exactly are the most that float32 can; a mean has no mask. Nothing is computed, so no memory is taken."""
    refusal = pytest.raises(ShapeError, match=r"more pixels than a float32 mask can count, 2\^24")
    with contextlib.nullcontext() if counts or dtype == Dtype.DOUBLE else refusal:
        inputs = layer_text("Input", "x", more=f"input_param {{ shape {{ dim: [1, 1, 4096, {width}] }} }}")
        assert make_net(inputs + pooling(f"{fields} kernel_size: 64 stride: 64", tops), dtype=dtype).blobs["y"].shape[2] == 64


# ---- SPP: poolings of the planes cut into 1, 4, 16 and more windows, one after another

def pyramid(height, pool="MAX"):
    return layer_text("SPP", "s", "x", "y", f"spp_param {{ pyramid_height: {height} pool: {pool} }}")


def distinct(shape):
    """Values that are far from each other, so that no maximum changes hands in a difference."""
    return np.random.default_rng(1).permutation(np.prod(shape)).reshape(shape) * 0.1


def pyramid_reference(x, height, pool):
    parts = []
    for bins in (2**level for level in range(height)):
        kernel = [-(-size // bins) for size in x.shape[2:]]
        pad = [(k * bins - size + 1) // 2 for k, size in zip(kernel, x.shape[2:])]
        parts.append(reference(x, kernel, kernel, pad)[0 if pool == "MAX" else 2].reshape(len(x), -1))
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("height, shape", [(1, (2, 3, 5, 4)), (2, (1, 2, 7, 9)), (3, (2, 2, 4, 13)), (4, (1, 1, 16, 23))])
def test_pyramid(height, shape, pool, dtype):
    x = distinct(shape)
    y, wanted = forward_net(pyramid(height, pool), [x], dtype).blob_by_name("y"), pyramid_reference(x, height, pool)
    assert y.shape == ((*shape[:2], 1, 1) if height == 1 else wanted.shape)
    np.testing.assert_allclose(y.cpu_data.reshape(wanted.shape), wanted, rtol=1e-6)
    if height in (1, 3):
        check_gradient(pyramid(height, pool), [distinct((1, 2, 6, 7))])


def test_pyramids_of_other_bottoms():
    net = layer_net(pyramid(3), [distinct((1, 2, 6, 7))])
    for shape in ((3, 2, 6, 7), (1, 2, 12, 9), (0, 2, 12, 9), (2, 4, 6, 7)):
        x = distinct(shape)
        forward_again(net, x=x)
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data, pyramid_reference(x, 3, "MAX") if len(x) else np.zeros((0, 42)))
        run_backward(net, [0], [np.ones(net.blob_by_name("y").shape)])
        assert net.blob_by_name("x").cpu_diff.sum() == net.blob_by_name("y").count
    x = distinct((1, 1, 4, 4)) + 1
    net = forward_net(pyramid(2, "STOCHASTIC"), [x])
    assert net.layers[-1].capture_obstacle() is None and caffe.generator.offset
    y = net.blob_by_name("y").cpu_data[0]
    assert all(y[1 + 2 * i + j] in x[0, 0, 2 * i:2 * i + 2, 2 * j:2 * j + 2] for i in range(2) for j in range(2))
