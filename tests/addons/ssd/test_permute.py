"""Permute."""

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward

from minicaffe.blob import Dtype
from minicaffe.device.threads import set_num_threads
from minicaffe.errors import ConfigError

RANDOM = np.random.default_rng(3)


def layer(order, top="y"):
    orders = " ".join(f"order: {axis}" for axis in order)
    return f'layer {{ name: "l" type: "Permute" bottom: "x" top: "{top}" permute_param {{ {orders} }} }}'


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
@pytest.mark.parametrize("shape, order", [
    ((2, 3, 4, 5), (0, 2, 3, 1)), ((2, 3, 4, 5), (3, 2, 1, 0)), ((2, 3, 4, 5), (1,)), ((2, 3, 4, 5), (2, 0)), ((4, 6), (1, 0)),
    ((2, 1, 3, 1, 2), (4, 1, 0)), ((5,), (0,)), ((0, 3, 2), (2, 1, 0)), ((2, 33, 70, 65), (0, 2, 3, 1)),
    ((2, 2, 2, 2, 2, 2, 2, 2, 2, 2), (9, 8, 7, 6, 5, 4, 3, 2, 1, 0))])
def test_both_ways(shape, order, dtype):
    x = RANDOM.standard_normal(shape)
    full = [*order, *(axis for axis in range(len(shape)) if axis not in order)]
    for threads in (1, 2):
        set_num_threads(threads)
        net = forward_net(layer(order), [x], dtype)
        wanted = x.astype(net.blob_by_name("x").data.dtype).transpose(full)
        np.testing.assert_array_equal(net.blob_by_name("y").data, wanted)
        dy = RANDOM.standard_normal(wanted.shape)
        net.blob_by_name("x").diff[...] = 9
        run_backward(net, [0], [dy])
        np.testing.assert_array_equal(net.blob_by_name("x").diff, dy.astype(wanted.dtype).transpose(np.argsort(full)))


def test_gradient_and_new_shape():
    check_gradient(layer((0, 2, 3, 1)), [RANDOM.standard_normal((2, 3, 2, 4))])
    check_gradient(layer((2, 0)), [RANDOM.standard_normal((2, 3, 2))])
    net = layer_net(layer((0, 2, 1)), [np.zeros((2, 3, 4))])
    x = RANDOM.standard_normal((5, 2, 3, 2))
    forward_again(net, x=x)
    np.testing.assert_array_equal(net.blob_by_name("y").data, x.transpose(0, 2, 1, 3))
    net = forward_net(layer((1, 0)), [np.zeros((2, 3))])
    net.blob_by_name("x").diff[...] = 7
    run_backward(net, [], [np.ones((3, 2))])
    assert (net.blob_by_name("x").diff == 7).all()


@pytest.mark.parametrize("order", [(), (0, 1), (0, 1, 2, 3)])
def test_order_without_a_copy(order):
    net = layer_net(layer(order), [RANDOM.standard_normal((2, 3, 4, 5))])
    x, y = net.blob_by_name("x"), net.blob_by_name("y")
    run_forward(net)
    y.data[...] = 4
    y.diff[...] = 5
    assert (x.data == 4).all() and (x.diff == 5).all()


@pytest.mark.parametrize("order, top, message", [
    ((0, 4), "y", r"permute_param.order\[1\]: must be an axis of the bottom, whose shape is \[2, 3, 4, 5\], got 4"),
    ((2, 1, 2), "y", r"permute_param.order\[2\]: names axis 2 twice"),
    ((1, 0), "x", r"top\[0\]: Permute cannot work in place")])
def test_wrong_prototxt(order, top, message):
    with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'l' \(Permute\): {message}"):
        layer_net(layer(order, top), [np.zeros((2, 3, 4, 5))])
