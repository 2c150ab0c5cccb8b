"""Normalize, Permute and SmoothL1Loss."""

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, ShapeError

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((2, 3, 4, 5))
FILLER = "scale_filler { type: 'uniform' min: 0.5 max: 20 }"
CASES = [(across, shared) for across in ("true", "false") for shared in ("true", "false")]


def normalize(param="", top="y"):
    return layer_text("Normalize", "l", "x", top, f"norm_param {{ {param} }}")


def slow_norm(x, scale, across, eps):
    """The definition, a loop over positions or records."""
    y = np.empty_like(x)
    flat = x.reshape(*x.shape[:2], -1)
    out = y.reshape(flat.shape)
    for n, i in np.ndindex(flat.shape[0], flat.shape[2]):
        norm = np.sqrt(eps + ((flat[n] if across else flat[n, :, i]) ** 2).sum())
        out[n, :, i] = flat[n, :, i] / norm * scale
    return y


@pytest.mark.parametrize("across, shared", CASES)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4), (1, 7, 130), (2, 1, 3, 1, 2), (2, 3, 1, 1)])
def test_normalize_forward_and_gradient(shape, across, shared):
    x, dy, results = RANDOM.standard_normal(shape), RANDOM.standard_normal(shape), []
    fields = f"across_spatial: {across} channel_shared: {shared} eps: 0.25 {FILLER}"
    for top in "y", "x":        # apart and in place
        net = forward_net(normalize(fields, top), [x])
        scale, y = net.layers[-1].blobs[0].data, net.blob_by_name(top).data.copy()
        assert scale.shape == (() if shared == "true" else shape[1:2]) and scale.min() >= 0.5
        np.testing.assert_allclose(y, slow_norm(x, scale, across == "true", 0.25), rtol=1e-12)
        run_backward(net, [0], [dy])
        results.append([y, net.blob_by_name("x").diff.copy(), net.layers[-1].blobs[0].diff.copy()])
    for apart, in_place in zip(*results):
        np.testing.assert_array_equal(apart, in_place)
    if x.size < 200:
        check_gradient(normalize(fields), [x], tolerance=1e-5)


@pytest.mark.parametrize("across, shared", CASES)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (2, 10, 65, 66), (1, 2, 4097), (2, 5000)])
def test_normalize_sizes_and_threads(shape, across, shared):
    x, dy, results = RANDOM.standard_normal(shape), RANDOM.standard_normal(shape), []
    for threads in (1, 2):
        set_num_threads(threads)
        net = forward_net(normalize(f"across_spatial: {across} channel_shared: {shared} {FILLER}"), [x], Dtype.FLOAT)
        run_backward(net, [0], [dy])
        results.append([net.blob_by_name("y").data.copy(), net.blob_by_name("x").diff.copy(), net.layers[-1].blobs[0].diff.copy()])
    for one, two in zip(*results):
        np.testing.assert_array_equal(one, two)
    if x.size:
        scale = net.layers[-1].blobs[0].data
        wanted = slow_norm(x, scale, across == "true", 1e-10)
        np.testing.assert_allclose(results[0][0], wanted, rtol=2e-5, atol=1e-5)  # float32 sums
        terms = dy * wanted / (scale if shared == "true" else scale.reshape(-1, *[1] * (len(shape) - 2)))
        wanted = terms.sum(None if shared == "true" else (0, *range(2, len(shape))))
        np.testing.assert_allclose(results[0][2], wanted, rtol=1e-3, atol=1e-3)


def test_normalize_special_values_and_defaults():
    x = X.copy()
    x[0, :, 1, 1] = 0
    x[1, 0, 2, 2] = np.nan
    net = forward_net(normalize("across_spatial: false"), [x])
    y = net.blob_by_name("y").data
    assert (y[0, :, 1, 1] == 0).all() and np.isnan(y[1, :, 2, 2]).all() and np.isnan(y).sum() == 3
    text = normalize("across_spatial: false channel_shared: false scale_filler { value: 0 }")
    net = check_gradient(text, [X])
    run_backward(net, [0], [np.ones(X.shape)])
    assert np.isfinite(net.layers[-1].blobs[0].diff).all() and (net.blob_by_name("x").diff == 0).all()
    for fields, tolerance in (("", 1e-9), ("eps: 0", 1e-12)):
        net = forward_net(normalize(fields), [X])
        np.testing.assert_allclose(net.blob_by_name("y").data, X / np.sqrt((X ** 2).sum((1, 2, 3), keepdims=True)), rtol=tolerance)


def test_normalize_wrong():
    for param, field in (("eps: -1", "norm_param.eps: must be at least 0, got -1"), ("eps: nan", "norm_param.eps"),
                         ("scale_filler { type: 'nothing' }", "norm_param.scale_filler.type")):
        with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'l' \(Normalize\): {field}"):
            layer_net(normalize(param), [X])
    with pytest.raises(ShapeError, match=r"layer 'l' \(Normalize\): bottom\[0\]: needs at least 2 axes"):
        layer_net(normalize(), [np.ones(4)])
    for shared in ("true", "false"):
        net = layer_net(normalize(f"channel_shared: {shared}"), [X])
        net.blob_by_name("x").reshape(3)
        with pytest.raises(ShapeError, match=r"layer 'l' \(Normalize\): bottom\[0\]: needs at least 2 axes, the bottom has shape \[3\]"):
            run_forward(net)
    net.blob_by_name("x").reshape(2, 4, 4, 5)
    with pytest.raises(ShapeError, match=r"bottom\[0\]: needs 3 channels"):
        run_forward(net)


def permute(order, top="y"):
    return layer_text("Permute", "l", "x", top, f"permute_param {{ order: {list(order)} }}")


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape, order", [
    ((2, 3, 4, 5), (0, 2, 3, 1)), ((2, 3, 4, 5), (3, 2, 1, 0)), ((2, 3, 4, 5), (1,)), ((2, 3, 4, 5), (2, 0)), ((4, 6), (1, 0)),
    ((2, 1, 3, 1, 2), (4, 1, 0)), ((5,), (0,)), ((0, 3, 2), (2, 1, 0)), ((2, 33, 70, 65), (0, 2, 3, 1)),
    ((2, 2, 2, 2, 2, 2, 2, 2, 2, 2), (9, 8, 7, 6, 5, 4, 3, 2, 1, 0))])
def test_permute_both_ways(shape, order, dtype):
    x = RANDOM.standard_normal(shape)
    full = [*order, *(axis for axis in range(len(shape)) if axis not in order)]
    for threads in (1, 2):
        set_num_threads(threads)
        net = forward_net(permute(order), [x], dtype)
        wanted = x.astype(net.blob_by_name("x").data.dtype).transpose(full)
        np.testing.assert_array_equal(net.blob_by_name("y").data, wanted)
        dy = RANDOM.standard_normal(wanted.shape)
        net.blob_by_name("x").diff[...] = 9
        run_backward(net, [0], [dy])
        np.testing.assert_array_equal(net.blob_by_name("x").diff, dy.astype(wanted.dtype).transpose(np.argsort(full)))


def test_permute_gradient_and_no_copy():
    check_gradient(permute((0, 2, 3, 1)), [RANDOM.standard_normal((2, 3, 2, 4))])
    check_gradient(permute((2, 0)), [RANDOM.standard_normal((2, 3, 2))])
    net = layer_net(permute((0, 2, 1)), [np.zeros((2, 3, 4))])
    x = RANDOM.standard_normal((5, 2, 3, 2))        # one more axis
    forward_again(net, x=x)
    np.testing.assert_array_equal(net.blob_by_name("y").data, x.transpose(0, 2, 1, 3))
    for order in (), (0, 1), (0, 1, 2, 3):      # nothing is copied
        net = forward_net(permute(order), [RANDOM.standard_normal((2, 3, 4, 5))])
        x, y = net.blob_by_name("x"), net.blob_by_name("y")
        y.data[...] = 4
        y.diff[...] = 5
        assert (x.data == 4).all() and (x.diff == 5).all()


def test_permute_wrong_prototxt():
    for order, top, message in (
            ((0, 4), "y", r"permute_param.order\[1\]: must be an axis of the bottom, whose shape is \[2, 3, 4, 5\], got 4"),
            ((2, 1, 2), "y", r"permute_param.order\[2\]: names axis 2 twice"), ((1, 0), "x", r"top\[0\]: Permute cannot work in place")):
        with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'l' \(Permute\): {message}"):
            layer_net(permute(order, top), [np.zeros((2, 3, 4, 5))])


A, B = 2 * RANDOM.standard_normal((2, 3, 4, 5)), RANDOM.standard_normal((2, 3, 4, 5))
W = RANDOM.uniform(0, 2, A.shape)


def smooth_l1(bottoms=2, extra=""):
    return layer_text("SmoothL1Loss", "l", " ".join(f"b{i}" for i in range(bottoms)), "y", extra)


def slow_loss(a, b, w=1.0):
    total = 0
    for d in np.ravel(w * (a - b)):
        total += 0.5 * d * d if abs(d) < 1 else abs(d) - 0.5
    return total / len(a)


@pytest.mark.parametrize("arrays", [[A, B], [A, B, W], [A[:, 0, 0, 0], B[:, 0, 0, 0]], [A, B, (W > 1).astype(float)]])
def test_smooth_l1_forward_and_gradient(arrays):
    net = layer_net(smooth_l1(len(arrays)), arrays)
    assert run_forward(net) == pytest.approx(slow_loss(*arrays), rel=1e-12)
    assert net.blob_by_name("y").shape == ()
    # The derivative itself is continuous at |d| = 1, so differences across it are off by half a step.
    check_gradient(smooth_l1(len(arrays), "loss_weight: 3"), arrays, check=[0, 1], tolerance=2e-3)
    run_backward(net, [1])
    d = (arrays[2] if len(arrays) > 2 else 1) * (arrays[0] - arrays[1])
    g = np.where(abs(d) < 1, d, np.sign(d)) * (arrays[2] if len(arrays) > 2 else 1) / 2
    np.testing.assert_allclose(net.blob_by_name("b1").diff, -g, rtol=1e-12)


def test_smooth_l1_pieces_and_nan():
    a = np.array([[0.0, 1.0, -1.0, np.nextafter(1, 0), 3.0, -0.0]])
    net = layer_net(smooth_l1(), [a, np.zeros_like(a)])
    assert run_forward(net) == pytest.approx(0.5 + 0.5 + 0.5 + 2.5, rel=1e-12)
    run_backward(net, [0])
    np.testing.assert_allclose(net.blob_by_name("b0").diff, [[0, 1, -1, 1, 1, 0]], rtol=1e-12)
    a = np.array([[np.nan, 2.0]])
    net = layer_net(smooth_l1(), [a, np.zeros_like(a)])
    assert np.isnan(run_forward(net))
    run_backward(net, [0])
    assert np.isnan(net.blob_by_name("b0").diff[0, 0]) and net.blob_by_name("b0").diff[0, 1] == 1


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 4097), (3, 40000)])
def test_smooth_l1_sizes_and_threads(shape):
    a, b, results = RANDOM.standard_normal(shape), RANDOM.standard_normal(shape), []
    for threads in (1, 2):
        set_num_threads(threads)
        net = layer_net(smooth_l1(), [a, b], Dtype.FLOAT)
        results.append(run_forward(net))
        run_backward(net, [0, 1])
    assert results[0] == results[1]
    assert results[0] == pytest.approx(slow_loss(a, b) if a.size else 0, rel=1e-5)


def test_smooth_l1_wrong():
    with pytest.raises(ShapeError, match=r"test.prototxt.*layer 'l' \(SmoothL1Loss\): bottom\[1\]: has shape \[2, 3\], bottom\[0\] has"):
        layer_net(smooth_l1(), [A, B[:, :, 0, 0]])
    with pytest.raises(ShapeError, match=r"layer 'l' \(SmoothL1Loss\): bottom\[2\]: has shape \[2, 3, 4, 1\]"):
        layer_net(smooth_l1(3), [A, B, W[..., :1]])
    with pytest.raises(ConfigError, match="takes at least 2, got 1"):
        layer_net(smooth_l1(1), [A])
    net = forward_net(smooth_l1(3), [A, B, W])
    with pytest.raises(ConfigError, match=r"bottom\[2\]: SmoothL1Loss has no gradient for it"):
        run_backward(net, [2])
