"""minicaffe fold and fold(): the same numbers, and what is left with its reason."""

import os

import numpy as np
import pytest
from export_cases import filled
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import errors
from minicaffe.addons.export import commands as command
from minicaffe.addons.export.exporting import difference, random_inputs, run_net
from minicaffe.addons.export.fold import fold
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text, write_text

CONV = "convolution_param { num_output: 4 kernel_size: 3 %s }"


def layer(name, kind, bottom, top, fields=""):
    bottoms = " ".join(f'bottom: "{one}"' for one in bottom.split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{top}" {fields} }}\n'


def net_of(text, *shapes, phase=caffe_pb2.TEST):
    inputs = "".join(f'layer {{ name: "in{i}" type: "Input" top: "x{i}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape)} }} }} }}\n'
                     for i, shape in enumerate(shapes or [(2, 4, 7, 6)]))
    param = parse_text(inputs + text, caffe_pb2.NetParameter)[0]
    param.state.phase = phase
    return filled(Net(param)), param


def folded(text, *shapes):
    """Fold; the outputs are the same, and the written definition builds the same net. Returns names of the layers left, and reasons."""
    net, param = net_of(text, *shapes)
    made = fold(net, param)
    inputs = random_inputs(net)
    wanted, found = run_net(net, inputs), run_net(made.net, inputs)
    for blob in net.output_blobs:
        assert difference(blob.name, wanted[blob.name], found[blob.name]).relative < 1e-5
    assert [blob.name for blob in made.net.output_blobs] == [blob.name for blob in net.output_blobs]
    again = parse_text(write_text(made.param), caffe_pb2.NetParameter)[0]
    assert [one.name for one in again.layer] == [one.name for one in made.param.layer]
    left = [one.name for one in made.param.layer if one.type != "Input"]
    assert sorted([*left, *made.layers]) == sorted(node.name for node in net.nodes if node.type not in ("Input", "Split"))
    return left, made.kept


NORM, SCALE = layer("n", "BatchNorm", "%s", "%s"), layer("s", "Scale", "%s", "%s", "scale_param { bias_term: true }")
FOLDED = {      # text, shapes, names left
    "in place": (layer("c", "Convolution", "x0", "c", CONV % "") + NORM % ("c", "c") + SCALE % ("c", "c"), "c"),
    "not in place": (layer("c", "Convolution", "x0", "c", CONV % "bias_term: false pad: 1") + NORM % ("c", "d") + SCALE % ("d", "e"), "c"),
    "with a ReLU": (layer("c", "Convolution", "x0", "c", CONV % "group: 2") + SCALE % ("c", "e") + layer("r", "ReLU", "e", "e"), "c r"),
    "deconvolution": (layer("c", "Deconvolution", "x0", "c", CONV % "group: 2 stride: 2") + NORM % ("c", "c"), "c"),
    "depthwise": (layer("c", "DepthwiseConvolution", "x0", "c", CONV % "group: 4") + NORM % ("c", "c"), "c"),
    "depthwise of another fork": (layer("c", "ConvolutionDepthwise", "x0", "c", CONV % "") + NORM % ("c", "c"), "c"),
    "inner product": (layer("c", "InnerProduct", "x0", "c", "inner_product_param { num_output: 5 }") + NORM % ("c", "c") + SCALE % ("c", "c"), "c"),
    "transposed": (layer("c", "InnerProduct", "x0", "c", "inner_product_param { num_output: 5 transpose: true bias_term: false }") + SCALE % ("c", "c"), "c"),
    "bias": (layer("c", "Convolution", "x0", "c", CONV % "bias_term: false") + layer("b", "Bias", "c", "b"), "c"),
    "two behind a scale": (layer("c", "Convolution", "x0", "c", CONV % "") + SCALE % ("c", "d") + layer("b", "Bias", "d", "e") + NORM % ("e", "f"), "c"),
    "dropout": (layer("c", "Convolution", "x0", "c", CONV % "") + layer("d", "Dropout", "c", "d") + NORM % ("d", "d"), "c"),
    "a dropout behind a ReLU in place": (layer("c", "Convolution", "x0", "c", CONV % "") + layer("r", "ReLU", "c", "c") + layer("d", "Dropout", "c", "d")
                                         + layer("a", "AbsVal", "d", "y"), "c r a"),
    "3 axes": (layer("c", "Convolution", "x0", "c", CONV % "") + NORM % ("c", "c"), "c", (1, 2, 4, 5, 6)),
    "several readers behind": (layer("c", "Convolution", "x0", "c", CONV % "") + NORM % ("c", "d") + layer("a", "AbsVal", "d", "a") + layer("r", "ReLU", "d", "r"), "c a r"),
}
LEFT = {        # text, names left, shapes, the layer that is left, its reason
    "several readers": (layer("c", "Convolution", "x0", "c", CONV % "") + NORM % ("c", "d") + layer("a", "AbsVal", "c", "a"), "c n a", "n", "'c' has other readers"),
    "an input alone": (NORM % ("x0", "n"), "n", "n", "it follows no convolution or inner product"),
    "before a convolution": (NORM % ("x0", "n") + layer("c", "Convolution", "n", "c", CONV % ""), "n c", "n", "it follows no convolution or inner product"),
    "several bottoms": (layer("c", "Convolution", "x0 x0", "c", 'top: "d" ' + CONV % "") + NORM % ("c", "n"), "c n", "n", "'c' has other readers"),
    "an inner product of rows": (layer("c", "InnerProduct", "x0", "c", "inner_product_param { num_output: 5 axis: 2 }") + layer("s", "Bias", "c", "s"), "c s", "s", "'c' does not begin at axis 1"),
    "statistics of the batch": (layer("c", "Convolution", "x0", "c", CONV % "") + layer("n", "BatchNorm", "c", "c", "batch_norm_param { use_global_stats: false }"),
                                "c n", "n", "it computes the statistics of the batch"),
    "another axis": (layer("c", "Convolution", "x0", "c", CONV % "") + layer("s", "Scale", "c", "c", "scale_param { axis: 2 }"), "c s", "s", "one number for each channel"),
    "a number": (layer("c", "Convolution", "x0", "c", CONV % "") + layer("s", "Scale", "c", "c", "scale_param { num_axes: 0 }"), "c s", "s", "one number for each channel"),
    "a ReLU between": (layer("c", "Convolution", "x0", "c", CONV % "") + layer("r", "ReLU", "c", "c") + NORM % ("c", "c"), "c r n", "n", "it follows no convolution"),
    "shared weights": (layer("c", "Convolution", "x0", "c", 'param { name: "w" } ' + CONV % "") + NORM % ("c", "c")
                       + layer("d", "Convolution", "x0", "d", 'param { name: "w" } ' + CONV % ""), "c n d", "n", "the parameters of 'c' are shared"),
    "shared scales": (layer("c", "Convolution", "x0", "c", CONV % "") + layer("s", "Scale", "c", "c", 'param { name: "w" }')
                      + layer("t", "Scale", "x0", "t", 'param { name: "w" }'), "c s t", "s", "its parameters are shared"),
    "a dropout of an input": (layer("d", "Dropout", "x0", "d"), "d", "d", "its bottom is an input"),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folded(name):
    text, left, *shapes = FOLDED[name]
    assert folded(text, *shapes) == (left.split(), {})


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    text, left, kept, reason = LEFT[name]
    names, reasons = folded(text)
    assert names == left.split() and reason in reasons[kept]


def test_equal_names(caplog):
    text = (layer("c", "Convolution", "x0", "a", CONV % "") + layer("c", "BatchNorm", "a", "a") + layer("c", "Convolution", "a", "b", CONV % "pad: 1")
            + layer("d", "ReLU", "b", "b") + layer("d", "Convolution", "x0", "e", CONV % ""))
    net, param = net_of(text)
    made, inputs = fold(net, param), random_inputs(net)
    wanted, found = run_net(net, inputs), run_net(made.net, inputs)
    assert all(difference(name, wanted[name], found[name]).relative < 1e-5 for name in ("b", "e"))
    assert [one.name for one in made.param.layer] == ["in0", "c", "c_3", "d", "d_2"] and made.layers == {"c_2": "c"}
    assert "the net has several layers 'c'; the folded net has 'c_3' for one of them" in caplog.text
    caplog.clear()
    net, param = net_of("".join(layer(name, "ReLU", bottom, top) for name, bottom, top in (("c", "x0", "a"), ("c", "a", "b"), ("c_2", "b", "d"))))
    assert [one.name for one in fold(net, param).param.layer] == ["in0", "c", "c_3", "c_2"]
    assert [record.getMessage() for record in caplog.records] == ["the net has several layers 'c'; the folded net has 'c_3' for one of them"]


def test_other_bottoms_and_phases():
    text = layer("c", "Convolution", "x0", "c", CONV % "") + layer("s", "Scale", "c x1", "c", "scale_param { axis: 0 }")
    assert folded(text, (2, 4, 7, 6), (2, 4)) == (["c", "s"], {"s": "its second bottom is not constant"})
    net, param = net_of(layer("c", "Convolution", "x0", "c", CONV % "") + NORM % ("c", "c"))
    net.nodes[-1].layer.blobs[2].data[...] = 0
    made, inputs = fold(net, param), random_inputs(net)
    assert difference("c", run_net(net, inputs)["c"], run_net(made.net, inputs)["c"]).relative < 1e-5
    net, param = net_of(layer("a", "AbsVal", "x0", "y"), phase=caffe_pb2.TRAIN)
    with pytest.raises(errors.ConfigError, match="the net is in phase TRAIN; build it for TEST"):
        fold(net, param)


KINDS = st.sampled_from(["Convolution", "BatchNorm", "Scale", "Bias", "ReLU", "Dropout", "InnerProduct"])


@given(st.lists(st.tuples(KINDS, st.integers(0, 5), st.booleans(), st.booleans()), min_size=1, max_size=9))
def test_any_net(parts):
    text, shapes, read = "", {"x0": 4}, set()     # a blob that was read is not computed in place
    for i, (kind, back, in_place, pad) in enumerate(parts):
        bottom = list(shapes)[-1 - back % len(shapes)]
        if kind == "InnerProduct" or shapes[bottom] == 2:
            kind, fields = "InnerProduct", "inner_product_param { num_output: 4 }"
        else:
            fields = CONV % f"pad: {1 + pad}" if kind == "Convolution" else "scale_param { bias_term: true }" if kind == "Scale" and pad else ""
        top = bottom if in_place and bottom not in read and kind not in ("Convolution", "InnerProduct") else f"b{i}"
        read |= {bottom} - {top}
        shapes[top] = 2 if kind == "InnerProduct" else 4
        text += layer(f"l{i}", kind, bottom, top, fields)
    folded(text, (2, 4, 5, 5))


@pytest.mark.parametrize("model, layers", [("mobilenet", 58), pytest.param("resnet50", 123, marks=pytest.mark.slow(4))])
def test_models(model, layers):
    param, _ = read_net(f"models/{model}/deploy.prototxt", caffe_pb2.TEST)
    made = fold(Net(param), param)
    assert len(made.param.layer) == layers and not made.kept
    assert not any(one.type in ("BatchNorm", "Scale") for one in made.param.layer)


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
    net = filled(Net(read_net("net.prototxt", caffe_pb2.TEST)[0]))
    net.save("w.caffemodel")
    return net


def test_what_it_prints_and_writes(minicaffe, net, monkeypatch):
    lines = minicaffe("fold", "net.prototxt", "w.caffemodel", "-o", "o").splitlines()
    assert lines[0].startswith("y 2 x 4 x 4 x 4: differs by at most") and lines[1:] == [
        "'last' is left: it follows no convolution or inner product",
        "wrote o.prototxt and o.caffemodel: 4 layers of 6, 1 folded into others, 1 removed"]
    made = Net(read_net("o.prototxt", caffe_pb2.TEST)[0])
    made.copy_from("o.caffemodel")
    inputs = random_inputs(net)
    np.testing.assert_allclose(run_net(made, inputs)["y"], run_net(net, inputs)["y"], rtol=1e-4, atol=1e-5)
    assert "o.prototxt: exists already; --force" in minicaffe("fold", "net.prototxt", "w.caffemodel", "-o", "o", status=1)
    monkeypatch.setattr(command, "TOLERANCE", -1)
    assert "output 'y' of the folded net differs by" in minicaffe("fold", "net.prototxt", "w.caffemodel", "-o", "p", status=1)
    assert not os.path.exists("p.prototxt") and not os.path.exists("p.caffemodel")
    minicaffe("fold", "net.prototxt", "w.caffemodel", "-o", "p", "--no-check")
    assert os.path.exists("p.prototxt") and os.path.exists("p.caffemodel")


@pytest.mark.parametrize("words, status, wrong", [
    (["none.prototxt", "w.caffemodel", "-o", "o"], 1, "none.prototxt: no such file"), (["net.prototxt", "none.caffemodel", "-o", "o"], 1, "none.caffemodel: no such file"),
    (["net.prototxt", "w.caffemodel", "-o", "no/o"], 1, "no/o.prototxt: cannot be written"), (["net.prototxt", "w.caffemodel"], 2, "'-o'"), (["net.prototxt"], 2, "WEIGHTS")])
def test_wrong_words(minicaffe, net, words, status, wrong):
    assert wrong in minicaffe("fold", *words, status=status)
