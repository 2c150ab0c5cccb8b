"""Checks the answers of chapter4.py against layers."""

import numpy as np
from chapter4 import inner_product_backward, numeric_gradient, softmax_loss_gradient

import minicaffe as caffe

NET = """
force_backward: true
layer { name: "data" type: "Input" top: "x" top: "label" input_param { shape { dim: 4 dim: 5 } shape { dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }
"""


def run(tmp_path, scale=1.0):
    (tmp_path / "net.prototxt").write_text(NET)
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
    net.blobs["x"].data[...] = scale * np.random.default_rng(0).standard_normal((4, 5))
    net.blobs["label"].data[...] = [0, 2, 1, 2]
    net.forward()
    net.backward()
    return net


def test_inner_product_backward(tmp_path):
    net = run(tmp_path)
    W, b = net.params["ip"]
    gradients = inner_product_backward(net.blobs["x"].data, W.data, net.blobs["y"].diff)
    for mine, theirs in zip(gradients, (net.blobs["x"].diff, W.diff, b.diff), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_softmax_loss_gradient(tmp_path):
    for scale in (1.0, 1000.0):
        net = run(tmp_path, scale)
        before = net.blobs["y"].data.copy()
        mine = softmax_loss_gradient(net.blobs["y"].data, np.array([0, 2, 1, 2]))
        np.testing.assert_allclose(mine, net.blobs["y"].diff, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(net.blobs["y"].data, before)


def test_numeric_gradient():
    x = np.random.default_rng(1).standard_normal((2, 3))
    before = x.copy()
    np.testing.assert_allclose(numeric_gradient(lambda x: (x ** 3).sum(), x, 1e-4), 3 * x ** 2, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(numeric_gradient(lambda x: np.sin(x[0, 0] * x[1, 2]), x, 1e-4)[1],
                               [0, 0, x[0, 0] * np.cos(x[0, 0] * x[1, 2])], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(x, before)
