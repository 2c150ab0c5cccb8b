"""minicaffe fold: what it prints, writes and refuses; the folding itself is tested in tests/addons/export/test_fold.py."""

import numpy as np
import pytest

from minicaffe.addons.export import commands as command
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

NET = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "n" type: "BatchNorm" bottom: "c" top: "c" }
layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
layer { name: "last" type: "BatchNorm" bottom: "c" top: "y" }
layer { name: "d" type: "Dropout" bottom: "y" top: "y" }
"""


@pytest.fixture
def net(minicaffe, tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    net = Net(read_net("net.prototxt", caffe_pb2.TEST)[0])
    for node in net.nodes:
        if node.type == "BatchNorm":
            for blob, value in zip(node.layer.blobs, (np.arange(4), np.arange(1, 5), 2)):
                blob.data[...] = value
    net.save("w.caffemodel")
    return net


def test_what_it_prints_and_writes(minicaffe, net):
    lines = minicaffe("fold", "net.prototxt", "w.caffemodel", "-o", "o").splitlines()
    assert lines[0].startswith("y 2 x 4 x 4 x 4: differs by at most") and lines[1:] == [
        "'last' is left: it follows no convolution or inner product",
        "wrote o.prototxt and o.caffemodel: 4 layers of 6, 1 folded into others, 1 removed"]
    made = Net(read_net("o.prototxt", caffe_pb2.TEST)[0])
    made.copy_from("o.caffemodel")
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 6)).astype(np.float32)
    for one in (net, made):
        one.feed(x=x)
        one.forward_from_to(0, len(one.nodes) - 1)
    np.testing.assert_allclose(made.blobs["y"].data, net.blobs["y"].data, rtol=1e-4, atol=1e-5)
    assert "o.prototxt: exists already; --force" in minicaffe("fold", "net.prototxt", "w.caffemodel", "-o", "o", status=1)


def test_nets_that_differ(minicaffe, net, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TOLERANCE", -1)
    assert "output 'y' of the folded net differs by" in minicaffe("fold", "net.prototxt", "w.caffemodel", "-o", "o", status=1)
    assert not list(tmp_path.glob("o.*"))
    minicaffe("fold", "net.prototxt", "w.caffemodel", "-o", "o", "--no-check")
    assert len(list(tmp_path.glob("o.*"))) == 2


@pytest.mark.parametrize("words, status, wrong", [
    (["none.prototxt", "w.caffemodel", "-o", "o"], 1, "none.prototxt: no such file"), (["net.prototxt", "none.caffemodel", "-o", "o"], 1, "none.caffemodel: no such file"),
    (["net.prototxt", "w.caffemodel", "-o", "no/o"], 1, "no/o.prototxt: cannot be written"), (["net.prototxt", "w.caffemodel"], 2, "'-o'"), (["net.prototxt"], 2, "WEIGHTS")])
def test_wrong_words(minicaffe, net, words, status, wrong):
    assert wrong in minicaffe("fold", *words, status=status)
