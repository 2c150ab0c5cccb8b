"""LRN against the formula written out in NumPy, for both regions."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, run_backward

from minicaffe.blob import Dtype
from minicaffe.errors import ConfigError


def layer_text(fields):
    return f'layer {{ name: "n" type: "LRN" bottom: "x" top: "y" lrn_param {{ {fields} }} }}'


def reference(x, size=5, alpha=1.0, beta=0.75, k=1.0, within=False):
    half = size // 2
    squares = np.pad(x * x, [(0, 0), (0, 0), (half, half), (half, half)] if within else [(0, 0), (half, half), (0, 0), (0, 0)])
    total = np.zeros_like(x)
    for i in range(size):
        for j in range(size if within else 1):
            total += (squares[:, :, i:i + x.shape[2], j:j + x.shape[3]] if within else squares[:, i:i + x.shape[1]])
    scale = 1 + alpha / size**2 * total if within else k + alpha / size * total
    return x * scale**-beta


CASES = [
    ("", {}),
    ("alpha: 0.0001 beta: 0.75 k: 2", {"alpha": 1e-4, "k": 2.0}),
    ("local_size: 3 alpha: 2 beta: 0.5", {"size": 3, "alpha": 2.0, "beta": 0.5}),
    ("local_size: 1 beta: 1.3", {"size": 1, "beta": 1.3}),
    ("local_size: 3 norm_region: WITHIN_CHANNEL k: 9", {"size": 3, "within": True}),
    ("local_size: 5 norm_region: WITHIN_CHANNEL alpha: 3 beta: 0.6", {"alpha": 3.0, "beta": 0.6, "within": True}),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape", [(2, 7, 3, 4), (1, 3, 1, 1), (1, 2, 11, 12), (2, 4, 129, 1), (1, 9, 2, 150)])
@pytest.mark.parametrize("fields, keywords", CASES)
def test_forward(fields, keywords, shape, dtype):
    x = np.random.default_rng(11).standard_normal(shape)
    net = forward_net(layer_text(fields), [x], dtype)
    # float32: sum, roots and quotient round about ten times by 6e-8; float64: the fields themselves are float32
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, reference(x, **keywords), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fields, keywords", CASES)
def test_gradient(fields, keywords):
    check_gradient(layer_text(fields), [np.random.default_rng(12).standard_normal((2, 6, 3, 4))], tolerance=1e-5)


def test_nan_stays_in_its_windows():
    x = np.random.default_rng(15).standard_normal((1, 9, 2, 2))
    x[0, 3, 0, 0], x[0, 8, 1, 1] = np.nan, np.inf
    net = forward_net(layer_text("local_size: 3"), [x])
    bad = ~np.isfinite(net.blob_by_name("y").cpu_data)
    # cuDNN's sums over channels lose the NaN in the window that begins with it.
    lost = {(0, 4, 0, 0)} if net.engines()[0]["engine"] == "CUDNN" else set()
    assert set(zip(*np.nonzero(bad))) | lost == {(0, 2, 0, 0), (0, 3, 0, 0), (0, 4, 0, 0), (0, 8, 1, 1)}
    assert net.blob_by_name("y").cpu_data[0, 7, 1, 1] == 0  # divided by an infinite scale


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 3, 0, 4), (2, 3, 4, 0), (2, 0, 4, 4)])
@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_empty(region, shape):
    net = forward_net(layer_text(f"norm_region: {region}"), [np.zeros(shape)])
    run_backward(net, [0])
    assert net.blob_by_name("y").shape == shape


def test_an_even_size():
    with pytest.raises(ConfigError, match="layer 'n' \\(LRN\\): lrn_param.local_size: must be odd"):
        layer_net(layer_text("local_size: 4"), [np.zeros((1, 2, 3, 3))])
