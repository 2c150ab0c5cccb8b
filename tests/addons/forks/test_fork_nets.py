"""Nets of forks: fields that a layer type reads itself, fields left out on request, and what everything else says."""

import io
import logging
import re
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from helpers import layer_text

import minicaffe as caffe
from minicaffe import dnn
from minicaffe import layer as registry
from minicaffe.cli import main
from minicaffe.errors import ConfigError, MissingFieldError
from minicaffe.layers.convolution import ConvolutionLayer
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import layer_fields, parse_text, write_text

INPUT = 'layer { name: "in" type: "Input" top: "a" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }\n'
CONVOLUTION = """layer { name: "c" type: "Convolution" bottom: "a" top: "b"
  convolution_param { num_output: 2 kernel_size: 3
    %s } }
"""


@pytest.fixture
def types(monkeypatch):
    """Register types in a copy of the registry, so that other tests see none of them."""
    monkeypatch.setattr(registry, "_types", dict(registry.layer_types()))


@pytest.fixture
def net_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text, name="net.prototxt"):
        (tmp_path / name).write_text(text)
        return name
    return write


class Times(caffe.Layer):
    """y = k x, with k from an unknown message."""

    def setup(self, bottom, top):
        self.k = self.fields.times_param.k

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.k * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = self.k * top[0].diff


TIMES = 'layer { name: "t" type: "Times" bottom: "a" top: "b"\n  times_param { k: %s } }\n'


def test_the_page_does_what_it_says(types, net_file):
    blocks = re.findall(r"```(\w+)\n(.*?)```", (Path(__file__).resolve().parents[3] / "docs/forks.md").read_text(), re.S)
    prototxt, = (text for kind, text in blocks if kind == "prototxt")
    error, output = (text for kind, text in blocks if kind == "text")
    code, = (text for kind, text in blocks if kind == "python" and "class Mirror" in text)
    net_file(prototxt)
    with pytest.raises(ConfigError) as raised:
        caffe.Net("net.prototxt", caffe.TEST)
    first_line = prototxt[:prototxt.index('layer {\n')].count("\n") + 1
    assert str(raised.value).startswith(error.strip().replace(":7:", f":{first_line}:"))
    shown = io.StringIO()
    with redirect_stdout(shown):
        exec(code, {"__name__": "page"})
    assert shown.getvalue() == output


def test_own_type_and_missing_fields(types, net_file):
    caffe.register_layer("Times", Times)
    net = caffe.Net(net_file("force_backward: true " + INPUT + TIMES % 3), caffe.TEST)
    net.blobs["a"].data[...] = 2
    assert (net.forward()["b"] == 6).all()
    assert (net.backward(b=np.ones_like(net.blobs["b"].data))["a"] == 3).all()
    with pytest.raises(MissingFieldError, match=r"net.prototxt:2: layer 't' \(Times\): times_param.k: is not given"):
        caffe.Net(net_file(INPUT + (TIMES % 3).replace("k:", "kk:")), caffe.TEST)
    with pytest.raises(MissingFieldError, match=r"net.prototxt:2: layer 't' \(Times\): times_param: is not given"):
        caffe.Net(net_file(INPUT + TIMES.replace("times_param { k: %s }", "")), caffe.TEST)


def test_fields_of_user_classes(types, net_file):
    seen = []

    class Sees(Times):
        def setup(self, bottom, top):
            seen.append(self.fields)
            self.fields = {"k": 5}      # an attribute as any other
            self.k = self.fields["k"]

    caffe.register_layer("Sees", Sees)
    net = caffe.Net(net_file(INPUT + layer_text("Sees", "s", "a", "b", "pooling_param { pool: DEEPEST kernel_size: 3 shade: true }")
                             + layer_text("ReLU", "r", "b") + layer_text("ReLU", "r2", "b")), caffe.TEST)
    assert (seen[0].pooling_param.pool, seen[0].pooling_param.kernel_size, seen[0].pooling_param.shade) == ("DEEPEST", 3, True)
    net.blobs["a"].data[...] = 1
    assert (net.forward()["r"] == 5).all()

    class Padded(ConvolutionLayer):
        def layer_setup(self, bottom, top):
            self.param.convolution_param.pad.append(layer_fields(self.param).get("margin", 0))
            super().layer_setup(bottom, top)

    caffe.register_layer("Padded", Padded)
    text = INPUT + (CONVOLUTION % "").replace("Convolution", "Padded").replace("layer { name: \"c\"", "layer { margin: 1 name: \"c\"")
    with pytest.raises(ConfigError, match=r"layer 'c' \(Padded\): margin: unknown field in LayerParameter"):
        caffe.Net(net_file(text), caffe.TEST)
    Padded.takes_unknown_fields = True
    assert caffe.Net(net_file(text), caffe.TEST).blobs["b"].shape == (1, 2, 4, 4)


def test_saved_and_upgraded_nets_keep_them(types, net_file, tmp_path):
    caffe.register_layer("Times", Times)
    net_file('input: "a" input_dim: [1, 1, 1, 2]\n' + TIMES % 3, "old.prototxt")
    assert main(["upgrade", "net_text", "old.prototxt", "new.prototxt"]) == 0
    assert "  times_param {\n    k: 3\n  }\n" in (tmp_path / "new.prototxt").read_text()
    net = caffe.Net("new.prototxt", caffe.TEST)
    net.save("net.caffemodel")
    saved = caffe_pb2.NetParameter.FromString((tmp_path / "net.caffemodel").read_bytes())
    assert layer_fields(saved.layer[1]).times_param.k == 3
    net_file(write_text(saved), "again.prototxt")
    caffe.Net("again.prototxt", caffe.TEST).copy_from("net.caffemodel")


def test_inside_a_solver(types, net_file, device):
    caffe.register_layer("Times", Times)
    net = """layer { name: "d" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 } } }
      layer { name: "ip" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 3 %s } }
    """ + TIMES % 2 + 'layer { name: "l" type: "EuclideanLoss" bottom: "b" bottom: "y" top: "l" }'
    solver = net_file('base_lr: 0.1 lr_policy: "fixed" max_iter: 2 snapshot_after_train: false\nnet_param {\n' + net % "" + "}")
    caffe.SGDSolver(solver).solve()
    net_file('base_lr: 0.1 lr_policy: "fixed"\nnet_param {\n' + net % "normalize: false" + "}", "b.prototxt")
    with pytest.raises(ConfigError, match=r"b.prototxt:4:\d+: layer 'ip' \(InnerProduct\): inner_product_param.normalize: unknown field in Inn"):
        caffe.SGDSolver("b.prototxt")
    caffe.SGDSolver("b.prototxt", skip_unknown_fields=True)
    net_file('base_lr: 0.1 lr_policy: "fixed" net: "n.prototxt"', "c.prototxt")
    net_file("mem_param { }\n" + net % "normalize: false", "n.prototxt")
    with pytest.raises(ConfigError, match=r"n.prototxt:1:1: mem_param"):
        caffe.get_solver("c.prototxt")
    caffe.get_solver("c.prototxt", skip_unknown_fields=True)


def test_unmarked_fields(net_file):
    for field, place in (("submanifold_sparse: false", "results depend on it"), ("kernel_sizes: 3", "did you mean 'kernel_size'"),
                         ("negative_slope: 0.5", "results depend on it unless it is 0, its default"),
                         ("engine: MKL2", "must be one of DEFAULT, CAFFE, CUDNN, got MKL2"),
                         ("weight_filler { scale: 2 }", "unknown field in FillerParameter; the fork intel has it")):
        for options in ({}, {"skip_unknown_fields": True}):
            with pytest.raises(ConfigError, match=rf"net.prototxt:4:\d+: layer 'c' \(Convolution\): convolution_param[.\w]*: .*{re.escape(place)}"):
                caffe.Net(net_file(INPUT + CONVOLUTION % field), caffe.TEST, **options)


def test_marked_fields(net_file, caplog):
    text = net_file("default_forward_type: FLOAT16\n" + INPUT + CONVOLUTION % "engine: MKLDNN conv_algos_override: '1' negative_slope: 0")
    with pytest.raises(ConfigError, match="default_forward_type"):
        caffe.Net(text, caffe.TEST)
    with caplog.at_level(logging.WARNING):
        net = caffe.Net(text, caffe.TEST, skip_unknown_fields=True)
    assert net.blobs["b"].shape == (1, 2, 2, 2)
    warned = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert [re.search(r"(\w+): (unknown|must be)", text)[1] for text in warned] == \
        ["default_forward_type", "engine", "conv_algos_override", "negative_slope"]
    assert warned[1].startswith("net.prototxt:5:5: layer 'c' (Convolution): convolution_param.engine")


def test_fields_of_phases_and_rules(net_file):
    text = net_file(INPUT + 'layer { name: "d" type: "Dropout" bottom: "a" top: "b" dropout_param { sqrt_scale: true } }')
    caffe.Net(text, caffe.TEST, skip_unknown_fields=True)
    with pytest.raises(ConfigError, match="changes training only"):
        caffe.Net(text, caffe.TRAIN, skip_unknown_fields=True)
    text = net_file(INPUT + 'layer { name: "t" type: "ImageGtData" top: "x" include { phase: TRAIN } image_gt_data_param { a: 1 } }')
    assert [layer.name for layer in caffe.Net(text, caffe.TEST).layers] == ["in"]
    with pytest.raises(ConfigError, match="unknown layer type 'ImageGtData'"):
        caffe.Net(text, caffe.TRAIN)
    with pytest.raises(ConfigError, match=r"python_parm: unknown field in LayerParameter; did you mean 'python_param'"):
        caffe.Net(net_file('layer { name: "p" type: "Python" python_parm { module: "os" } }'), caffe.TEST)


def test_fields_not_for_files(net_file):
    param, _ = parse_text(INPUT + 'layer { name: "s" type: "Silence" bottom: "a" }', caffe_pb2.NetParameter)
    for name in "fork_fields", "name":
        param.layer[1].fork_fields = f'{name}: "x"'
        with pytest.raises(ConfigError, match=rf"layer 's' \(Silence\): {name}: unknown field in LayerParameter"):
            Net(param)
    with pytest.raises(ConfigError, match="net.prototxt:1.*fork_fields: unknown field in LayerParameter"):
        caffe.Net(net_file('layer { name: "s" type: "Silence" fork_fields: "a: 1" }'), caffe.TEST)
    text = 'layer { name: "e" type: "Eltwise" bottom: "a" bottom: "a" top: "e" eltwise_param { %s } }'
    for value in ": true", ': "SUM"', ": -1.5", " { a: 1 }":
        with pytest.raises(ConfigError, match=r"net.prototxt:2.*layer 'e' \(Eltwise\).*eltwise_param.operation"):
            caffe.Net(net_file(INPUT + text % f"operation{value}"), caffe.TEST)
    # No text can hold a message in place of an enum, but the fields that another writer stored can; it cannot be hashed.
    param, _ = parse_text(INPUT + text % "", caffe_pb2.NetParameter)
    param.layer[1].fork_fields = "eltwise_param { operation { a: 1 } }"
    with pytest.raises(ConfigError, match=r"layer 'e' \(Eltwise\): eltwise_param.operation: must be one of PROD, SUM, MAX, got a: 1"):
        Net(param)


def test_unknown_types_name_place_and_forks(net_file):
    for kind, hint in (("MultiStageMeanfield", "the fork crfasrnn has it"), ("ProposalTarget", "for training and scoring"), ("Convolutoin", "'Convolution'"),
                       ("NdConvolution", r"'Deconvolution'.*register_layer\('NdConvolution', Class\)")):
        for fields in "\n  some_param { a: 1 }", "":
            with pytest.raises(ConfigError, match=rf"net.prototxt:2: layer 'm' \({kind}\): type: unknown layer type '{kind}'.*{hint}"):
                caffe.Net(net_file(INPUT + layer_text(kind, "m", "a", "b", fields)), caffe.TEST)


V1 = """input: "a" input_dim: [1, 2, 5, 5]
layers { name: "s" type: %s bottom: "a" top: "b" times_param { k: 3 } }
"""


def test_own_type_in_v1(types, net_file):
    caffe.register_layer("Local", Times)
    net = caffe.Net(net_file(V1 % "LOCAL"), caffe.TEST)
    net.blobs["a"].data[...] = 2
    assert (net.forward()["b"] == 6).all()
    for kind, hint in (("CONVOLUTION3D", r"unknown layer type 'Convolution3D'.* call minicaffe.register_layer\('Convolution3D'"),
                       ("BN", "times_param: unknown field"), ("SILENCE", "times_param: unknown field")):
        with pytest.raises(ConfigError, match=rf"net.prototxt:2\b.*: layer 's' \(\w+\): .*{hint}"):
            caffe.Net(net_file((V1 % kind).replace('top: "b"', 'top: "b"' * (kind == "BN"))), caffe.TEST)


def test_ceil_mode_rounds(net_file):
    for ceil, side in (("true", 3), ("false", 2)):
        text = INPUT.replace("dim: 4", "dim: 5") + ("layer { name: 'p' type: 'Pooling' bottom: 'a' top: 'p' loss_weight: 1 "
                                                    f"pooling_param {{ kernel_size: 2 stride: 2 ceil_mode: {ceil} }} }}")
        net_file(f"base_lr: 0.1 lr_policy: 'fixed' net_param {{ {text} }}", "solver.prototxt")
        for net in caffe.Net(net_file(text), caffe.TEST), caffe.SGDSolver("solver.prototxt").net:
            assert net.blobs["p"].shape == (1, 2, side, side)


@pytest.mark.parametrize("command", [
    ["test", "--model", "net.prototxt", "--weights", "net.caffemodel", "--iterations", "1"], ["time", "net.prototxt", "--iterations", "1"],
    ["summary", "net.prototxt"], ["draw", "net.prototxt", "net.svg"], ["upgrade", "net_text", "net.prototxt", "new.prototxt"],
    pytest.param(["extract_features", "net.caffemodel", "net.prototxt", "b", "db", "1"], marks=pytest.mark.no_plan("it reads b, which a plan frees")),
    ["train", "net.prototxt", "--max-iter", "1"],
    ["train", "solver.prototxt", "--max-iter", "1"]])
def test_commands_take_the_option(net_file, command, capsys):
    data = layer_text("DummyData", "in", tops="a y", more="dummy_data_param { shape { dim: [1, 2, 4, 4] } shape { dim: [1, 2, 2, 2] } }")
    net_file("mem_param { }\n" + data + CONVOLUTION % "conv_algos_override: '1'" + layer_text("EuclideanLoss", "l", "b y"))
    net_file('base_lr: 0.1 lr_policy: "fixed" max_iter: 1 net: "net.prototxt"', "solver.prototxt")
    caffe.Net("net.prototxt", caffe.TEST, skip_unknown_fields=True).save("net.caffemodel")
    assert main(command) == 2
    assert "net.prototxt:1:1: mem_param: unknown field in NetParameter" in capsys.readouterr().err
    assert main([*command, "--skip-unknown-fields"]) == 0, capsys.readouterr().err


def test_other_readers_and_caffemodels(net_file):
    text = "mem_param { }\n" + INPUT + CONVOLUTION % ""
    for source in (net_file(text), text.encode()):
        with pytest.raises(ConfigError, match="mem_param"):
            dnn.readNetFromCaffe(source)
        assert not dnn.readNetFromCaffe(source, skip_unknown_fields=True).empty()
    net = caffe.Net(net_file(INPUT + CONVOLUTION % ""), caffe.TEST)
    blob, = net.params["c"][:1]
    blob.data[...] = np.arange(blob.count).reshape(blob.shape)
    net.save("net.caffemodel")
    with open("net.caffemodel", "ab") as file:
        file.write(b"\xa2\x7d\x03abc\x78\x05")  # fields 2004 and 15 of NetParameter
    blob.data[...] = -1
    net.copy_from("net.caffemodel")
    assert (blob.data.ravel() == np.arange(blob.count)).all()
