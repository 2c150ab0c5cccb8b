"""Softmax along any axis, in both of its memory orders."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, run_backward

from minicaffe.blob import Dtype


def layer_text(axis=1):
    return f'layer {{ name: "s" type: "Softmax" bottom: "x" top: "y" softmax_param {{ axis: {axis} }} }}'


def reference(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape, axis", [((64, 10), 1), ((3, 1), 1), ((2, 17), 0), ((4, 1000), -1), ((2, 5, 3, 4), 1),
                                         ((2, 3, 130), 1), ((2, 3, 4), 2), ((7,), 0), ((3, 4, 1, 1), 1)])
def test_forward(shape, axis, dtype):
    x = np.random.default_rng(1).standard_normal(shape) * 5
    net = forward_net(layer_text(axis), [x], dtype)
    # float32: the rounding of x - max moves the exponential by up to 20 * 6e-8
    np.testing.assert_allclose(net.blob_by_name("y").cpu_data, reference(x, axis), rtol=3e-6 if dtype == Dtype.FLOAT else 1e-12,
                               atol=1e-12)


def test_exponential_of_every_size():
    """The vectorised float32 exponential keeps 2 units in the last place down to the smallest normal number."""
    x = np.concatenate([[0.0], -np.linspace(0, 110, 20011, dtype=np.float32)]).astype(np.float32)[None]
    net = forward_net(layer_text(), [x], Dtype.FLOAT)
    y = net.blob_by_name("y").cpu_data[0].astype(np.float64)
    wanted = np.exp(x[0].astype(np.float64))
    ratio = y / y[0] / wanted
    normal = wanted > 1.2e-38 * wanted.sum()
    assert np.abs(ratio[normal] - 1).max() < 6e-7  # 2 units of the exponential and 1 of the quotient, at both ends
    assert (y[~normal] <= 1.3e-38).all() and y[-1] == 0


@pytest.mark.parametrize("shape, axis", [((3, 7), 1), ((2, 3, 2, 2), 1), ((4, 2), 0)])
def test_gradient(shape, axis):
    check_gradient(layer_text(axis), [np.random.default_rng(2).standard_normal(shape)])


def test_nan_and_infinities_stay_in_position():
    for shape in ((2, 40, 1), (2, 40, 300)):
        x = np.zeros(shape)
        x[0, 33, 0], x[1, 0] = np.nan, -np.inf
        y = forward_net(layer_text(), [x], Dtype.FLOAT).blob_by_name("y").cpu_data
        assert np.isnan(y[0, :, 0]).all() and not np.isnan(y[0, :, 1:]).any() and not np.isnan(y[1]).any() and (y[1, 0] == 0).all()


def test_huge_values_and_far_below_0():
    """A maximum begins with an element, in each of the ways to find it."""
    net = forward_net(layer_text(), [np.array([[1e30, -1e30, 1e30]])], Dtype.FLOAT)
    np.testing.assert_array_equal(net.blob_by_name("y").cpu_data, [[0.5, 0, 0.5]])
    for shape in ((3, 7), (3, 100), (2, 7, 5), (2, 100, 5), (1, 40, 3000)):
        x = np.random.default_rng(5).standard_normal(shape) - 1e4
        net = forward_net(layer_text(), [x], Dtype.DOUBLE)
        np.testing.assert_allclose(net.blob_by_name("y").cpu_data, reference(x, 1), rtol=1e-9)


def test_empty():
    for shape in ((0, 3), (3, 0), (2, 3, 0)):
        net = forward_net(layer_text(), [np.zeros(shape)])
        run_backward(net, [0])
        assert net.blob_by_name("y").shape == shape
