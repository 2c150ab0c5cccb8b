"""LSTMUnit: against NumPy, its gradient, sequence indicators, far values, and wrong shapes."""

import numpy as np
import pytest
from gradient import check_gradient, forward_net, run_backward

from minicaffe.blob import Dtype

TEXT = 'layer { name: "u" type: "LSTMUnit" bottom: "c" bottom: "g" bottom: "cont" top: "c1" top: "h1" }'


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unit(c, gates, cont):
    i, f, o, g = np.split(gates, 4, axis=-1)
    new = cont[..., None] * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return new, sigmoid(o) * np.tanh(new)


def inputs(n=3, d=4):
    random = np.random.default_rng(4)
    return [random.standard_normal((1, n, d)), random.standard_normal((1, n, 4 * d)), (np.arange(n) % 3 > 0.0)[None] * 1.0]


@pytest.mark.parametrize("dtype, tolerance", [(Dtype.FLOAT, 1e-6), (Dtype.DOUBLE, 1e-14)])
@pytest.mark.parametrize("n, d", [(1, 1), (3, 4), (5, 257), (0, 4), (3, 0)])
def test_forward(n, d, dtype, tolerance):
    arrays = inputs(n, d)
    net = forward_net(TEXT, arrays, dtype)
    for blob, wanted in zip(net.tops[-1], unit(*arrays)):
        assert blob.shape == (1, n, d)
        np.testing.assert_allclose(blob.cpu_data, wanted, atol=tolerance)


def test_gradient():
    """cont is 0 or 1 in use; between them the gradient is the CPU's of Caffe, f' (1 - f') with f' = cont f."""
    check_gradient(TEXT, inputs(), check=[0, 1])
    c, gates, cont = inputs(1, 1)
    cont[...] = 0.5
    net = forward_net(TEXT, [c, gates, cont])
    run_backward(net, [0, 1], [np.ones((1, 1, 1)), np.zeros((1, 1, 1))])
    kept = 0.5 * sigmoid(gates[0, 0, 1])
    np.testing.assert_allclose(net.blob_by_name("g").cpu_diff[0, 0, 1], c[0, 0, 0] * kept * (1 - kept))


def test_forgotten_and_far_values():
    c, gates, cont = inputs(2, 1)
    gates[0, 0, 1], cont[...] = np.nan, [[0, 1]]
    net = forward_net(TEXT, [c, gates, cont])
    assert np.isfinite(net.blob_by_name("c1").cpu_data).all()
    gates = np.array([[[-1e4, 1e4, 1e4, -1e4]]])
    net = forward_net(TEXT, [np.full((1, 1, 1), 2.0), gates, np.ones((1, 1))], Dtype.FLOAT)
    run_backward(net, [0, 1], [np.ones((1, 1, 1)), np.ones((1, 1, 1))])
    np.testing.assert_allclose(net.blob_by_name("c1").cpu_data, [[[2]]])
    np.testing.assert_array_equal(net.blob_by_name("g").cpu_diff, np.zeros((1, 1, 4)))
