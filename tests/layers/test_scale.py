"""Scale, Bias, PReLU, Reduction."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, run_backward
from helpers import layer_text

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError, ShapeError

RANDOM = np.random.default_rng(11)
X = RANDOM.standard_normal((2, 3, 4, 5))
RANDOM_FILLER = "filler { type: 'uniform' min: 0.5 max: 2 }"


def layer(type, param="", bottoms=1, top="y"):
    return layer_text(type, "l", " ".join(f"b{i}" for i in range(bottoms)), top, f"{type.lower()}_param {{ {param} }}")


def spread(values, axis):
    """`values` with axes of size 1 so that NumPy broadcasts it from `axis` of X on."""
    return values.reshape((1,) * axis + values.shape + (1,) * (X.ndim - axis - values.ndim)) if values.ndim else values


@pytest.mark.parametrize("axis, num_axes, shape", [
    (1, 1, (3,)), (0, 1, (2,)), (1, 2, (3, 4)), (0, -1, (2, 3, 4, 5)), (-1, 1, (5,)), (3, -1, (5,)), (2, 0, ()),
    (-2, 2, (4, 5))])
def test_learned_scale_and_bias(axis, num_axes, shape):
    param = f"axis: {axis} num_axes: {num_axes}"
    start = axis % 4
    net = forward_net(layer("Scale", f"{param} bias_term: true {RANDOM_FILLER} bias_{RANDOM_FILLER}"), [X])
    scale, bias = (blob.data for blob in net.layers[-1].blobs)
    assert scale.shape == bias.shape == shape and scale.min() >= 0.5
    np.testing.assert_allclose(net.blob_by_name("y").data, X * spread(scale, start) + spread(bias, start), rtol=1e-12)
    net = forward_net(layer("Bias", f"{param} {RANDOM_FILLER}"), [X])
    np.testing.assert_allclose(net.blob_by_name("y").data, X + spread(net.layers[-1].blobs[0].data, start), rtol=1e-12)
    check_gradient(layer("Scale", f"{param} bias_term: true {RANDOM_FILLER}"), [X])
    check_gradient(layer("Bias", f"{param} {RANDOM_FILLER}"), [X])


@pytest.mark.parametrize("axis, shape", [(1, (3,)), (2, (4, 5)), (0, (2, 3, 4, 5)), (1, ()), (0, (2, 3))])
def test_second_bottom(axis, shape):
    values = RANDOM.standard_normal(shape)
    net = forward_net(layer("Scale", f"axis: {axis} bias_term: true bias_filler {{ value: 3 }}", 2), [X, values])
    np.testing.assert_allclose(net.blob_by_name("y").data, X * spread(values, axis if shape else 0) + 3, rtol=1e-12)
    assert [blob.shape for blob in net.layers[-1].blobs] == [shape]
    for type in ("Scale", "Bias"):
        check_gradient(layer(type, f"axis: {axis}", 2), [X, values])
        check_gradient(layer(type, f"axis: {axis}", 2), [X, values], check=[1])


def test_default_fillers():
    assert layer_net(layer("Scale"), [X]).layers[-1].blobs[0].data.tolist() == [1, 1, 1]
    # A filler that is given without a value is the constant 0.
    assert layer_net(layer("Scale", "filler {}"), [X]).layers[-1].blobs[0].data.tolist() == [0, 0, 0]
    assert layer_net(layer("PReLU"), [X]).layers[-1].blobs[0].data.tolist() == [0.25] * 3
    assert layer_net(layer("Bias"), [X]).layers[-1].blobs[0].data.tolist() == [0, 0, 0]
    check_gradient(layer("Scale", "bias_term: true"), [X[:1]])      # of a batch of one Caffe overwrites the scale's


@pytest.mark.parametrize("shared", ["true", "false"])
def test_prelu(shared):
    net = forward_net(layer("PReLU", f"channel_shared: {shared} {RANDOM_FILLER}"), [X])
    slope = net.layers[-1].blobs[0].data
    assert slope.shape == (() if shared == "true" else (3,))
    np.testing.assert_allclose(net.blob_by_name("y").data, np.where(X > 0, X, X * spread(slope, 1)), rtol=1e-12)
    check_gradient(layer("PReLU", f"channel_shared: {shared} {RANDOM_FILLER}"), [X], kink=0)
    check_gradient(layer("PReLU", f"channel_shared: {shared}"), [X[:, :, 0, 0]], kink=0)


@pytest.mark.parametrize("axis", [0, 1, 3, -2])
@pytest.mark.parametrize("operation, formula", [
    ("SUM", np.sum), ("ASUM", lambda x, axis: np.abs(x).sum(axis)), ("SUMSQ", lambda x, axis: (x * x).sum(axis)),
    ("MEAN", np.mean)])
def test_reduction(operation, formula, axis):
    param = f"operation: {operation} axis: {axis} coeff: 2.5"
    net = forward_net(layer("Reduction", param), [X])
    wanted = 2.5 * formula(X, axis=tuple(range(axis % 4, 4)))
    assert net.blob_by_name("y").shape == wanted.shape
    np.testing.assert_allclose(net.blob_by_name("y").data, wanted, rtol=1e-12)
    check_gradient(layer("Reduction", param), [X], kink=0)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 3, 0), (1, 3, 4097), (3, 2, 40000), (40000, 3), (2, 50001), (1, 1, 70000)])
@pytest.mark.parametrize("type", ["Scale", "Bias", "PReLU", "Reduction"])
def test_sizes_and_special_values(type, shape):
    x = RANDOM.standard_normal(shape).astype(np.float32)
    x.reshape(-1)[:3] = [np.nan, np.inf, -0.0][:x.size]
    diff = RANDOM.standard_normal(shape[:1] if type == "Reduction" else shape)
    net = forward_net(layer(type, "axis: 1" if type == "Reduction" else RANDOM_FILLER), [x], Dtype.FLOAT)
    run_backward(net, [0], [diff])
    assert net.blob_by_name("y").shape == (shape[:1] if type == "Reduction" else shape)
    if type == "Reduction":
        of_all = np.broadcast_to(np.float32(diff).reshape(-1, *[1] * (x.ndim - 1)), shape)
        np.testing.assert_array_equal(net.blob_by_name("b0").diff, of_all)
    elif x.size:
        y, gradient = net.blob_by_name("y").data.reshape(-1), net.layers[-1].blobs[-1].diff
        assert np.isnan(y[0]) and np.isinf(y[1])
        with np.errstate(invalid="ignore"):
            terms = {"Scale": x * diff, "Bias": diff, "PReLU": np.where(x > 0, 0, x * diff)}[type]
            wanted = terms.sum(axis=(0, *range(2, x.ndim)), dtype=float)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("type, param, error, field", [
    ("Scale", "axis: 4", ShapeError, "scale_param.axis"), ("Scale", "axis: 2 num_axes: 3", ConfigError, "scale_param.num_axes"),
    ("Bias", "num_axes: -2", ConfigError, "bias_param.num_axes"),
    ("Bias", "filler { type: 'nothing' }", ConfigError, "bias_param.filler.type"),
    ("Scale", "bias_term: true bias_filler { std: -1 type: 'gaussian' }", ConfigError, "scale_param.bias_filler.std"),
    ("Reduction", "axis: -5", ShapeError, "reduction_param.axis"),
])
def test_wrong_parameters_and_shapes(type, param, error, field):
    with pytest.raises(error, match=rf"test.prototxt.*layer 'l' \({type}\): {field}: "):
        layer_net(layer(type, param), [X])
    with pytest.raises(ShapeError, match=r"bottom\[1\]: has shape \[4\]"):
        layer_net(layer("Scale", "", 2), [X, np.ones(4)])
    with pytest.raises(ShapeError, match=r"\(PReLU\): bottom\[0\]: needs at least 2 axes"):
        layer_net(layer("PReLU"), [np.ones(4)])
