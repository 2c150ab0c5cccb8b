"""SPP: against windows written out in NumPy, gradients, sizes that change, and pyramids that do not fit."""

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward

from minicaffe.blob import Dtype
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, ShapeError


def text(height, pool="MAX"):
    return f'layer {{ name: "s" type: "SPP" bottom: "x" top: "y" spp_param {{ pyramid_height: {height} pool: {pool} }} }}'


def distinct(shape, seed=1):
    """Values that are far from each other, so that no maximum changes hands in a difference."""
    return np.random.default_rng(seed).permutation(np.prod(shape)).reshape(shape) * 0.1


def spans(size, bins):
    """Start, end inside the plane, and end with padding, of each window along an axis."""
    kernel = -(-size // bins)
    pad = (kernel * bins - size + 1) // 2
    count = -(-(size + 2 * pad - kernel) // kernel) + 1
    if pad and (count - 1) * kernel >= size + pad:
        count -= 1
    for k in range(count):
        start = k * kernel - pad
        yield max(start, 0), min(start + kernel, size), min(start + kernel, size + pad) - start


def reference(x, height, pool):
    parts = []
    for level in range(height):
        bins = []
        for top, bottom, h in spans(x.shape[2], 2**level):
            for left, right, w in spans(x.shape[3], 2**level):
                window = x[:, :, top:bottom, left:right]
                bins.append(window.max((2, 3)) if pool == "MAX" else window.sum((2, 3)) / (h * w))
        parts.append(np.stack(bins, axis=2).reshape(len(x), -1))
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("height, shape", [(1, (2, 3, 5, 4)), (2, (1, 2, 7, 9)), (3, (2, 2, 4, 13)), (4, (1, 1, 16, 23))])
def test_forward(height, shape, pool, dtype):
    x = distinct(shape)
    net = forward_net(text(height, pool), [x], dtype)
    y, wanted = net.blob_by_name("y"), reference(x, height, pool)
    assert y.shape == ((*shape[:2], 1, 1) if height == 1 else wanted.shape)
    np.testing.assert_allclose(y.cpu_data.reshape(wanted.shape), wanted, rtol=1e-6)


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("height", [1, 3])
def test_gradient(height, pool):
    check_gradient(text(height, pool), [distinct((1, 2, 6, 7))])


def test_other_plane_size():
    net = layer_net(text(3), [distinct((1, 2, 6, 7))])
    for shape in ((3, 2, 6, 7), (1, 2, 12, 9), (0, 2, 12, 9), (2, 4, 6, 7)):
        x = distinct(shape)
        forward_again(net, x=x)
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data, reference(x, 3, "MAX") if len(x) else np.zeros((0, 42)))
        run_backward(net, [0], [np.ones(net.blob_by_name("y").shape)])
        assert net.blob_by_name("x").cpu_diff.sum() == net.blob_by_name("y").count


def test_stochastic_draws_from_the_windows():
    x = distinct((1, 1, 4, 4)) + 1
    net = forward_net(text(2, "STOCHASTIC"), [x])
    assert net.layers[-1].capture_obstacle() is None and caffe.generator.offset
    y = net.blob_by_name("y").cpu_data[0]
    assert all(y[1 + 2 * i + j] in x[0, 0, 2 * i:2 * i + 2, 2 * j:2 * j + 2] for i in range(2) for j in range(2))


@pytest.mark.parametrize("height, shape, error", [
    (0, (1, 1, 4, 4), "spp_param.pyramid_height: must be given"),
    (4, (1, 1, 9, 40), r"spp_param.pyramid_height: 9 pixels cannot be cut into 8 bins: windows of 2 would need a padding of 4"),
    (4294967295, (1, 1, 40, 40), "spp_param.pyramid_height: 40 pixels cannot be cut into"),
    (1, (1, 1, 0, 4), "spp_param.pyramid_height: 0 pixels"),
])
def test_what_does_not_fit(height, shape, error):
    with pytest.raises((ConfigError, ShapeError), match=rf"layer 's' \(SPP\): {error}"):
        layer_net(text(height), [np.zeros(shape)])
