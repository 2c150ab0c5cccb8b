"""Normalize."""

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, ShapeError

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((2, 3, 4, 5))
FILLER = "scale_filler { type: 'uniform' min: 0.5 max: 20 }"
CASES = [(across, shared) for across in ("true", "false") for shared in ("true", "false")]


def layer(param="", top="y"):
    return f'layer {{ name: "l" type: "Normalize" bottom: "x" top: "{top}" norm_param {{ {param} }} }}'


def slow(x, scale, across, eps):
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
def test_forward_and_gradient(shape, across, shared):
    x = RANDOM.standard_normal(shape)
    text = layer(f"across_spatial: {across} channel_shared: {shared} eps: 0.25 {FILLER}")
    net = forward_net(text, [x])
    scale = net.layers[-1].blobs[0].data
    assert scale.shape == (() if shared == "true" else shape[1:2]) and scale.min() >= 0.5
    np.testing.assert_allclose(net.blob_by_name("y").data, slow(x, scale, across == "true", 0.25), rtol=1e-12)
    if x.size < 200:
        check_gradient(text, [x], tolerance=1e-5)


def test_eps_and_defaults():
    net = forward_net(layer(), [X])
    assert net.layers[-1].blobs[0].data == 1
    np.testing.assert_allclose(net.blob_by_name("y").data, X / np.sqrt((X ** 2).sum((1, 2, 3), keepdims=True)), rtol=1e-9)
    net = forward_net(layer("eps: 0"), [X])
    np.testing.assert_allclose(net.blob_by_name("y").data, X / np.sqrt((X ** 2).sum((1, 2, 3), keepdims=True)), rtol=1e-12)


@pytest.mark.parametrize("across, shared", CASES)
def test_in_place_gives_the_same(across, shared):
    dy, results = RANDOM.standard_normal(X.shape), []
    for top in ("y", "x"):
        net = forward_net(layer(f"across_spatial: {across} channel_shared: {shared} {FILLER}", top), [X])
        y = net.blob_by_name(top).data.copy()
        run_backward(net, [0], [dy])
        results.append([y, net.blob_by_name("x").diff.copy(), net.layers[-1].blobs[0].diff.copy()])
    for apart, in_place in zip(*results):
        np.testing.assert_array_equal(apart, in_place)


@pytest.mark.parametrize("across, shared", CASES)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (2, 10, 65, 66), (1, 2, 4097), (2, 5000)])
def test_sizes_and_threads(shape, across, shared):
    x, dy, results = RANDOM.standard_normal(shape), RANDOM.standard_normal(shape), []
    for threads in (1, 2):
        set_num_threads(threads)
        net = forward_net(layer(f"across_spatial: {across} channel_shared: {shared} {FILLER}"), [x], Dtype.FLOAT)
        run_backward(net, [0], [dy])
        results.append([net.blob_by_name("y").data.copy(), net.blob_by_name("x").diff.copy(), net.layers[-1].blobs[0].diff.copy()])
    for one, two in zip(*results):
        np.testing.assert_array_equal(one, two)
    if x.size:
        scale = net.layers[-1].blobs[0].data
        wanted = slow(x, scale, across == "true", 1e-10)
        np.testing.assert_allclose(results[0][0], wanted, rtol=2e-5, atol=1e-5)  # float32 sums
        spread = scale if shared == "true" else scale.reshape(-1, *[1] * (len(shape) - 2))
        wanted = (dy * wanted / spread).sum() if shared == "true" else (dy * wanted / spread).sum((0, *range(2, len(shape))))
        np.testing.assert_allclose(results[0][2], wanted, rtol=1e-3, atol=1e-3)


def test_special_values_and_batches():
    x = X.copy()
    x[0, :, 1, 1] = 0
    x[1, 0, 2, 2] = np.nan
    net = forward_net(layer("across_spatial: false"), [x])
    y = net.blob_by_name("y").data
    assert (y[0, :, 1, 1] == 0).all() and np.isnan(y[1, :, 2, 2]).all() and np.isnan(y).sum() == 3
    text = layer("across_spatial: false channel_shared: false scale_filler { value: 0 }")
    net = check_gradient(text, [X])
    run_backward(net, [0], [np.ones(X.shape)])
    assert np.isfinite(net.layers[-1].blobs[0].diff).all() and (net.blob_by_name("x").diff == 0).all()
    net = layer_net(layer(), [X[:1]])
    forward_again(net, x=X)
    np.testing.assert_allclose(net.blob_by_name("y").data, slow(X, 1, True, 1e-10), rtol=1e-9)


def test_wrong():
    for param, field in (("eps: -1", "norm_param.eps: must be at least 0, got -1"), ("eps: nan", "norm_param.eps"),
                         ("scale_filler { type: 'nothing' }", "norm_param.scale_filler.type")):
        with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'l' \(Normalize\): {field}"):
            layer_net(layer(param), [X])
    with pytest.raises(ShapeError, match=r"layer 'l' \(Normalize\): bottom\[0\]: needs at least 2 axes"):
        layer_net(layer(), [np.ones(4)])
    for shared in ("true", "false"):
        net = layer_net(layer(f"channel_shared: {shared}"), [X])
        net.blob_by_name("x").reshape(3)
        with pytest.raises(ShapeError, match=r"layer 'l' \(Normalize\): bottom\[0\]: needs at least 2 axes, the bottom has shape \[3\]"):
            run_forward(net)
    net.blob_by_name("x").reshape(2, 4, 4, 5)
    with pytest.raises(ShapeError, match=r"bottom\[0\]: needs 3 channels"):
        run_forward(net)
