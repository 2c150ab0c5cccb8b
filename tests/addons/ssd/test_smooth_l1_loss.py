"""SmoothL1Loss."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError, ShapeError

RANDOM = np.random.default_rng(8)
A, B = 2 * RANDOM.standard_normal((2, 3, 4, 5)), RANDOM.standard_normal((2, 3, 4, 5))
W = RANDOM.uniform(0, 2, A.shape)


def layer(bottoms=2, extra=""):
    names = " ".join(f'bottom: "b{i}"' for i in range(bottoms))
    return f'layer {{ name: "l" type: "SmoothL1Loss" {names} top: "y" {extra} }}'


def slow(a, b, w=1.0):
    total = 0
    for d in np.ravel(w * (a - b)):
        total += 0.5 * d * d if abs(d) < 1 else abs(d) - 0.5
    return total / len(a)


@pytest.mark.parametrize("arrays", [[A, B], [A, B, W], [A[:, 0, 0, 0], B[:, 0, 0, 0]], [A, B, (W > 1).astype(float)]])
def test_forward_and_gradient(arrays):
    net = layer_net(layer(len(arrays)), arrays)
    assert run_forward(net) == pytest.approx(slow(*arrays), rel=1e-12)
    assert net.blob_by_name("y").shape == ()
    # The derivative itself is continuous at |d| = 1, so differences across it are off by half a step.
    check_gradient(layer(len(arrays), "loss_weight: 3"), arrays, check=[0, 1], tolerance=2e-3)
    run_backward(net, [1])
    d = (arrays[2] if len(arrays) > 2 else 1) * (arrays[0] - arrays[1])
    g = np.where(abs(d) < 1, d, np.sign(d)) * (arrays[2] if len(arrays) > 2 else 1) / 2
    np.testing.assert_allclose(net.blob_by_name("b1").diff, -g, rtol=1e-12)


def test_pieces_and_nan():
    a = np.array([[0.0, 1.0, -1.0, np.nextafter(1, 0), 3.0, -0.0]])
    net = layer_net(layer(), [a, np.zeros_like(a)])
    assert run_forward(net) == pytest.approx(0.5 + 0.5 + 0.5 + 2.5, rel=1e-12)
    run_backward(net, [0])
    np.testing.assert_allclose(net.blob_by_name("b0").diff, [[0, 1, -1, 1, 1, 0]], rtol=1e-12)
    a = np.array([[np.nan, 2.0]])
    net = layer_net(layer(), [a, np.zeros_like(a)])
    assert np.isnan(run_forward(net))
    run_backward(net, [0])
    assert np.isnan(net.blob_by_name("b0").diff[0, 0]) and net.blob_by_name("b0").diff[0, 1] == 1
    net = forward_net(layer(3), [A, B, W])
    run_backward(net, [0, 1])
    first = [net.blob_by_name(name).diff.copy() for name in ("b0", "b1")]
    run_backward(net, [0, 1])
    np.testing.assert_array_equal(first, [net.blob_by_name(name).diff for name in ("b0", "b1")])
    np.testing.assert_array_equal(first[0], -first[1])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 4097), (3, 40000)])
def test_sizes_and_threads(shape):
    a, b, results = RANDOM.standard_normal(shape), RANDOM.standard_normal(shape), []
    for threads in (1, 2):
        set_num_threads(threads)
        net = layer_net(layer(), [a, b], Dtype.FLOAT)
        results.append(run_forward(net))
        run_backward(net, [0, 1])
    assert results[0] == results[1]
    assert results[0] == pytest.approx(slow(a, b) if a.size else 0, rel=1e-5)


def test_wrong():
    with pytest.raises(ShapeError, match=r"test.prototxt.*layer 'l' \(SmoothL1Loss\): bottom\[1\]: has shape \[2, 3\], bottom\[0\] has"):
        layer_net(layer(), [A, B[:, :, 0, 0]])
    with pytest.raises(ShapeError, match=r"layer 'l' \(SmoothL1Loss\): bottom\[2\]: has shape \[2, 3, 4, 1\]"):
        layer_net(layer(3), [A, B, W[..., :1]])
    with pytest.raises(ConfigError, match="takes at least 2, got 1"):
        layer_net(layer(1), [A])
    net = forward_net(layer(3), [A, B, W])
    with pytest.raises(ConfigError, match=r"bottom\[2\]: SmoothL1Loss has no gradient for it"):
        run_backward(net, [2])
