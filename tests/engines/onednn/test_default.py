"""Who computes where no engine was named: ONEDNN where it was measured to be faster (minicaffe/ops/conv/engine_onednn.pyx)."""

import logging

import pytest
from helpers import layer_text, make_net

import minicaffe as caffe
from minicaffe.blob import Dtype
from minicaffe.common import TEST
from minicaffe.engines import engine
from minicaffe.engines.onednn import library


@pytest.fixture
def default(onednn):
    engine.prefer("")


def net(shape, fields, dtype=Dtype.FLOAT, more=""):
    made = make_net(layer_text("Input", "x", more=f"input_param {{ shape {{ dim: {list(shape)} }} }}")
                    + layer_text("Convolution", "conv", "x", "y", f"convolution_param {{ {fields} }}") + more, TEST, dtype)
    made.forward_from_to(0, len(made.layers) - 1)
    return made


def engines(made):
    return [one["engine"] for one in made.engines()]


@pytest.mark.parametrize(("shape", "fields", "expected"), [
    ((2, 3, 9, 9), "num_output: 32 kernel_size: 3", "ONEDNN"),      # few channels: a first layer, which has kernels of its own
    ((2, 64, 9, 9), "num_output: 48 kernel_size: 1", "ONEDNN"),
    ((2, 24, 9, 9), "num_output: 144 kernel_size: 1", "ONEDNN"),
    ((2, 32, 9, 9), "num_output: 32 kernel_size: 3 group: 32", "ONEDNN"),
    ((2, 96, 9, 9), "num_output: 96 kernel_size: 3 group: 2", "ONEDNN"),
    ((2, 1, 28, 28), "num_output: 20 kernel_size: 5", "CAFFE"),     # LeNet's
    ((2, 20, 12, 12), "num_output: 50 kernel_size: 5", "CAFFE"),
    ((2, 8, 9, 9), "num_output: 16 kernel_size: 3", "CAFFE"),
    ((2, 20, 9, 9), "num_output: 20 kernel_size: 3 group: 20", "CAFFE"),
    ((2, 96, 9, 9), "num_output: 96 kernel_size: 3 group: 8", "ONEDNN"),
    ((2, 64, 9, 9), "num_output: 64 kernel_size: 3 group: 8", "CAFFE"),
    ((2, 64, 9, 9), "num_output: 64 kernel_size: 3 engine: CAFFE", "CAFFE"),
])
def test_which_convolutions(default, shape, fields, expected):
    assert engines(net(shape, fields)) == [expected]


def test_what_follows_takes_the_layout(default):
    pooling = 'layer { name: "pool" type: "Pooling" bottom: "y" top: "z" pooling_param { kernel_size: 2 stride: 2 } }'
    assert engines(net((2, 3, 9, 9), "num_output: 32 kernel_size: 3", more=pooling)) == ["ONEDNN", "ONEDNN"]
    assert engines(net((2, 3, 9, 9), "num_output: 20 kernel_size: 3", more=pooling)) == ["CAFFE", "CAFFE"]


def test_default_engine_refuses_silently(default, monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        assert engines(net((2, 3, 9, 9), "num_output: 32 kernel_size: 3", Dtype.DOUBLE)) == ["CAFFE"]
        monkeypatch.setattr(library, "_trouble", "there is none")
        made = net((2, 3, 9, 9), "num_output: 32 kernel_size: 3")
    assert made.engines()[0]["refused"]["ONEDNN"] == "there is none" and engines(made) == ["CAFFE"]
    assert not [record for record in caplog.records if "refuses" in record.getMessage()]


def test_caffe_without_onednn(default, monkeypatch):
    monkeypatch.setattr(library, "_trouble", "would have been opened")
    made = caffe.Net("models/lenet/deploy.prototxt", caffe.TEST)
    made.forward()
    assert not any("would have" in str(one) for one in made.engines())
    engine.prefer("CAFFE")
    made = net((2, 3, 9, 9), "num_output: 32 kernel_size: 3")
    found = made.engines()[0]
    assert (found["engine"], found["refused"]) == ("CAFFE", {})
