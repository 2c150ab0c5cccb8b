"""minicaffe deploy: the net that predicts, its parameters, and what happens to mean and scale."""

import os

import numpy as np
import pytest
from test_classify import pictures  # noqa: F401  (a fixture)

from minicaffe import errors
from minicaffe.addons.export import deploy_command
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

TRAIN = """layer { name: "data" type: "%s" top: "x" top: "label" %s }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "d1" type: "Dropout" bottom: "a" top: "b" }
layer { name: "d2" type: "Dropout" bottom: "b" top: "b" }
layer { name: "r" type: "ReLU" bottom: "b" top: "b" }
layer { name: "c" type: "InnerProduct" bottom: "b" top: "c" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "acc" type: "Accuracy" bottom: "c" bottom: "label" top: "acc" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "c" bottom: "label" top: "loss" }
"""
MEMORY = TRAIN % ("MemoryData", "memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 } transform_param { mean_value: 9 scale: 0.5 }")


@pytest.fixture
def net(minicaffe, tmp_path):
    (tmp_path / "net.prototxt").write_text(MEMORY)
    net = Net(read_net("net.prototxt", caffe_pb2.TEST)[0])
    net.save("w.caffemodel")
    return net


def run(net, **arrays):
    net.feed(**{name: value.astype(np.float32) for name, value in arrays.items()})
    net.forward_from_to(0, len(net.nodes) - 1)
    return net.blobs["prob"].data.copy()


def made(name):
    net = Net(read_net(f"{name}.prototxt", caffe_pb2.TEST)[0])
    net.copy_from(f"{name}.caffemodel")
    return net


def test_layers_and_numbers(minicaffe, net, tmp_path):
    printed = minicaffe("deploy", "net.prototxt", "w.caffemodel", "-o", "o", "--batch", 3)
    assert printed == "wrote o.prototxt and o.caffemodel: 7 layers; a record is 3 x 4 x 5, minus mean 9, times 0.5\n"
    text = (tmp_path / "o.prototxt").read_text()
    assert text.startswith("# The deploy net of net.prototxt.\n# A record is 3 x 4 x 5, minus mean 9, times 0.5.\n")
    one = made("o")
    assert [node.type for node in one.nodes] == ["Input", "InnerProduct", "Dropout", "Dropout", "ReLU", "InnerProduct", "Softmax"]
    x = np.random.default_rng(0).uniform(0, 255, (3, 3, 4, 5))
    w = [blob.data.copy() for name in "ac" for blob in net.layer_dict[name].blobs]
    scores = np.maximum(((x - 9) * 0.5).reshape(3, -1) @ w[0].T + w[1], 0) @ w[2].T + w[3]
    wanted = np.exp(scores - scores.max(1, keepdims=True))
    wanted /= wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(run(one, x=(x - 9) * 0.5), wanted, rtol=1e-4, atol=1e-6)
    minicaffe("deploy", "net.prototxt", "w.caffemodel", "-o", "p", "--batch", 3, "--preprocessing", "layers")
    one = made("p")
    assert [node.name for node in one.nodes] == ["data", "minus_mean", "times_scale", "a", "d1", "d2", "r", "c", "prob"]
    np.testing.assert_allclose(run(one, pixels=x), wanted, rtol=1e-4, atol=1e-6)


def test_means():
    mean = np.arange(162, dtype=np.float32).reshape(3, 6, 9)
    net = parse_text(TRAIN.partition("\n")[0] % ("Input", ""), caffe_pb2.NetParameter)[0]
    arrays = deploy_command.add_preprocessing(net, mean, None, (3, 2, 3), "net.prototxt")      # the centre, as a crop of TEST
    assert np.array_equal(arrays["minus_mean"], -mean[:, 2:4, 3:6]) and net.layer[1].bias_param.num_axes == 3
    for size in (7, 2), (2, 10):
        with pytest.raises(errors.ConfigError, match=rf"net.prototxt: the mean has the shape \[3, 6, 9\], a record \[3, {size[0]}, {size[1]}\]"):
            deploy_command.add_preprocessing(net, mean, None, (3, *size), "net.prototxt")
    bias = deploy_command.add_preprocessing(net, [1, 2, 3], None, (3, 5, 2), "net.prototxt")["minus_mean"]
    assert bias.dtype == np.float32 and bias.tolist() == [-1, -2, -3] and net.layer[1].bias_param.num_axes == 1


def test_a_database_and_no_weights(minicaffe, pictures, tmp_path):  # noqa: F811
    pictures("scale: 0.004")
    assert "layers; a record is 3 x 7 x 8, times 0.004" in minicaffe("deploy", "net.prototxt", "-o", "o")
    assert not (tmp_path / "o.caffemodel").exists()
    assert "exists already; --force" in minicaffe("deploy", "net.prototxt", "-o", "o", status=1)


@pytest.mark.parametrize("text, words, status, wrong", [
    (MEMORY, ["--shape", "3x0x2"], 2, "write CHANNELSxHEIGHTxWIDTH"), (MEMORY, ["--preprocessing", "layers"], 2, "the mean is a parameter; give WEIGHTS"),
    (TRAIN % ("HDF5Data", 'hdf5_data_param { source: "s" batch_size: 1 }'), [], 2, "layer 'data' (HDF5Data): the shape of a record of 'HDF5Data' is not known"),
    ('layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 } } }', [], 2, "net.prototxt: is a deploy net, with the Input 'in'; give a training net"),
    ('layer { name: "p" type: "Parameter" top: "x" parameter_param { shape { dim: 1 } } }', [], 2, "net.prototxt: has no layer that reads data in phase TEST; give")])
def test_wrong_nets_and_words(minicaffe, tmp_path, text, words, status, wrong):
    (tmp_path / "net.prototxt").write_text(text)
    assert wrong in minicaffe("deploy", "net.prototxt", "-o", "o", *words, status=status)
    assert not list(tmp_path.glob("o.*"))


def test_name_that_is_not_utf8(minicaffe, tmp_path):
    name = os.fsdecode(b"net\xff.prototxt")
    (tmp_path / name).write_text(MEMORY)
    minicaffe("deploy", name, "-o", "deploy")
    assert (tmp_path / "deploy.prototxt").read_text().startswith("# The deploy net of net\\udcff.prototxt.\n")


def test_half_precision(minicaffe, net, tmp_path):
    net.layer_dict["a"].blobs[0].data[0, 0] = 1e-9
    net.layer_dict["a"].blobs[0].data[0, 1] = 100.03125      # between 100 and 100.0625
    net.save("w.caffemodel")
    minicaffe("deploy", "net.prototxt", "w.caffemodel", "-o", "o", "--half")
    for name in "ac":
        for blob, before in zip(made("o").layer_dict[name].blobs, net.layer_dict[name].blobs):
            np.testing.assert_array_equal(blob.data, before.data.astype(np.float16))
    assert "--half: it is for the parameters; give WEIGHTS" in minicaffe("deploy", "net.prototxt", "-o", "p", "--half", status=2)
    net.layer_dict["c"].blobs[1].data[2] = 1e5
    net.save("w.caffemodel")
    assert "p.caffemodel: layer 'c' (InnerProduct): blobs[1]: holds 100000" in minicaffe("deploy", "net.prototxt", "w.caffemodel", "-o", "p", "--half", status=1)
    assert not list(tmp_path.glob("p.*"))


@pytest.mark.parametrize("option", ["--plan=none", "--precision=bf16", "--exact", "--threads=1", "--device=cpu"])
def test_options_of_computing_are_refused(minicaffe, net, option):
    error = minicaffe("deploy", "net.prototxt", "-o", "o", option, status=2)
    assert "No such option" in error and option.partition("=")[0] in error
