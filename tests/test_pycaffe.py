"""The pycaffe face: constructors, feeding, partial runs, weights both ways, and what it refuses."""

import gc

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.errors import ConfigError, Error, FileError, MissingNameError, ShapeError

NET = """
force_backward: true
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "ip" top: "y" }
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    return str(tmp_path / "net.prototxt")


def test_names_and_forward(path):
    net = caffe.Net(path, caffe.TEST)
    assert (net.inputs, net.outputs, list(net.params)) == (["x"], ["y"], ["ip"])
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    weight, bias = (blob.data for blob in net.params["ip"])
    back = net.forward(x=x, blobs=["ip"])
    np.testing.assert_allclose(back["ip"], x @ weight.T + bias, rtol=1e-5)
    np.testing.assert_array_equal(back["y"], np.maximum(back["ip"], 0))
    net.blobs["ip"].data[...] = -1
    assert not net.forward(start="relu")["y"].any()
    gradient = net.backward(y=np.ones((2, 4), np.float32))["x"]
    np.testing.assert_allclose(gradient, ((net.blobs["ip"].data > 0) * 1.0) @ weight, atol=1e-6)


def test_weights_through_both_formats_and_both_constructors(path, tmp_path):
    net = caffe.Net(path, caffe.TEST)
    wanted = net.params["ip"][0].data.copy()
    net.save(str(tmp_path / "w.caffemodel"))
    net.save_hdf5(str(tmp_path / "w.h5"))
    for other in (caffe.Net(path, str(tmp_path / "w.caffemodel"), caffe.TEST),
                  caffe.Net(path, caffe.TEST, weights=str(tmp_path / "w.h5"))):
        np.testing.assert_array_equal(other.params["ip"][0].data, wanted)


def test_views_outlive_the_net(path):
    net = caffe.Net(path, caffe.TEST)
    view = net.params["ip"][0].data
    before = view.copy()
    del net
    gc.collect()
    np.testing.assert_array_equal(view, before)


def test_forward_all_drops_the_padding(path):
    net = caffe.Net(path, caffe.TEST)
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    made = net.forward_all(x=x)["y"]
    weight, bias = (blob.data for blob in net.params["ip"])
    np.testing.assert_allclose(made, np.maximum(x @ weight.T + bias, 0), rtol=1e-5, atol=1e-6)


def test_refusals(path, tmp_path):
    net = caffe.Net(path, caffe.TEST)
    for wrong, kind in ((lambda: net.forward(z=np.zeros((2, 3))), ConfigError), (lambda: net.forward(x=np.zeros((5, 3))), ShapeError),
                        (lambda: net.forward(end="nowhere"), MissingNameError), (lambda: caffe.Net(path, 7), ConfigError),
                        (lambda: caffe.Net(str(tmp_path / "no"), caffe.TEST), FileError),
                        (lambda: caffe.Net(path, caffe.TEST, weights="no.caffemodel"), FileError)):
        with pytest.raises(kind):
            wrong()
