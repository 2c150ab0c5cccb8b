"""minicaffe.gradcheck and ``minicaffe gradcheck``: they find what is wrong, say where, and take a kink for a kink."""

import os

import numpy as np
import pytest
from helpers import layer_text

import minicaffe
from minicaffe import layer as registry
from minicaffe.addons.gradcheck.gradient_check import double_net
from minicaffe.blob import Dtype
from minicaffe.cli import app
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, WrongTypeError
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 3 dim: 2 dim: 6 dim: 6 } } }'
LABELS = 'layer { name: "labels" type: "Input" top: "label" input_param { shape { dim: 3 } } }'
NET = INPUT + LABELS + "".join((
    layer_text("Convolution", "conv", "x", more='convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } }'),
    layer_text("BatchNorm", "bn", "conv"), layer_text("ReLU", "relu", "bn", "bn"),
    layer_text("Pooling", "pool", "bn", more="pooling_param { pool: MAX kernel_size: 2 stride: 2 }"), layer_text("Dropout", "drop", "pool", "pool"),
    layer_text("InnerProduct", "ip", "pool", more='''param { lr_mult: 1 } param { lr_mult: 0 }
               inner_product_param { num_output: 4 weight_filler { type: "xavier" } }'''),
    layer_text("SoftmaxWithLoss", "loss", "ip label"), layer_text("Accuracy", "accuracy", "ip label")))


def message(text):
    return parse_text(text, caffe_pb2.NetParameter, keep_layer_fields=True)[0]


class Square(minicaffe.Layer):
    """y = x^2."""

    def setup(self, bottom, top):
        self.runs = 1

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.runs * bottom[0].data ** 2

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = self.runs * 2 * bottom[0].data * top[0].diff


class Wrong(Square):
    """The gradient is wrong at element 4 of its bottom, by a tenth."""

    def backward(self, top, propagate_down, bottom):
        super().backward(top, propagate_down, bottom)
        bottom[0].diff.reshape(-1)[4] *= 1.1


class Fickle(Square):
    """Each forward gives other values."""

    def forward(self, bottom, top):
        self.runs += 1
        super().forward(bottom, top)


@pytest.fixture
def types(monkeypatch):
    monkeypatch.setattr(registry, "_types", registry.layer_types())
    for kind in Wrong, Fickle:
        minicaffe.register_layer(kind.__name__, kind)


WRONG = INPUT + layer_text("Wrong", "square", "x", "y")


def test_arrays_that_are_compared():
    report = minicaffe.gradcheck(message(NET))
    assert report.ok, f"\n{report}"
    compared = [(c.layer, c.what.partition(" ")[0]) for c in report.comparisons if "split" not in c.layer]
    assert compared == [("conv", "bottom[0]"), ("conv", "blobs[0]"), ("conv", "blobs[1]"), ("bn", "bottom[0]"), ("relu", "bottom[0]"),
                        ("pool", "bottom[0]"), ("drop", "bottom[0]"), ("ip", "bottom[0]"), ("ip", "blobs[0]"), ("loss", "bottom[0]")]
    left_out = {(layer, what) for layer, _, what, _ in report.not_checked}
    assert {("in", None), ("bn", "blobs[0]"), ("ip", "blobs[1]")} <= left_out
    assert any(layer == "accuracy" for layer, *_ in report.not_checked)
    assert all(reason for *_, reason in report.not_checked)
    text = """force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
    layer { name: "square" type: "Eltwise" bottom: "a" bottom: "a" bottom: "x" top: "b" eltwise_param { operation: PROD } }
    layer { name: "loss" type: "EuclideanLoss" bottom: "b" bottom: "x" top: "l" }"""
    report = minicaffe.gradcheck(message(text))
    assert report.ok, f"\n{report}"
    assert [c.what for c in report.comparisons if c.layer == "square"] == ["bottom[0] 'a_ip_0_split_0' and bottom[1] 'a_ip_0_split_1'", "bottom[2] 'x_in_0_split_1'"]
    net = double_net(message(NET))
    caffe.seed(7)
    caffe.generator.reserve_counters(12)
    before = [blob.data.copy() for blob in net.param_table.params]
    needs = [list(node.bottom_needs) for node in net.nodes]
    assert minicaffe.gradcheck(net).ok
    double_net(message(NET))
    assert [list(node.bottom_needs) for node in net.nodes] == needs
    for blob, data in zip(net.param_table.params, before):
        np.testing.assert_array_equal(blob.data, data)
    assert (caffe.generator.seed, caffe.generator.offset) == (7, 12)


def test_nets_and_seeds():
    report = minicaffe.gradcheck(message(NET), whole=True)
    assert report.ok and {(c.layer, c.what) for c in report.comparisons} == {("conv", "blobs[0]"), ("conv", "blobs[1]"), ("ip", "blobs[0]")}
    with pytest.raises(ConfigError, match="no loss to differentiate"):
        minicaffe.gradcheck(message(INPUT + 'layer { name: "p" type: "Power" bottom: "x" top: "y" }'), whole=True)
    net = message(NET)
    pick = [[c.index for c in minicaffe.gradcheck(net, elements=3, seed=seed, layers=["conv"]).comparisons] for seed in (1, 1, 2)]
    assert pick[0] == pick[1] != pick[2]
    report = minicaffe.gradcheck(net, elements=3, layers=["conv"])
    for every in 0, None:
        compared = minicaffe.gradcheck(net, elements=every, layers=["conv"]).comparisons
        assert compared and all(c.checked + c.kinks >= np.prod(c.shape) for c in compared)
    assert [c.checked for c in report.comparisons] == [3, 3, 3] and {c.layer for c in report.comparisons} == {"conv"}
    with pytest.raises(KeyError, match="no layer 'cnv'.*conv"):
        minicaffe.gradcheck(net, layers=["cnv"])


def test_wrong_gradients(types):
    report = minicaffe.gradcheck(message(WRONG), elements=None)
    [comparison] = report.failed
    assert comparison.index == (0, 0, 0, 4) and comparison.shape == (3, 2, 6, 6) and comparison.checked == 216
    assert comparison.analytic / comparison.numerical == pytest.approx(1.1)
    assert comparison.relative == pytest.approx(0.1 / 1.1, rel=0.01)
    assert "layer 'square' (Wrong): bottom[0] 'x': element [0, 0, 0, 4]: backward says" in str(report)
    assert minicaffe.gradcheck(message(WRONG), elements=None, threshold=0.2).ok
    report = minicaffe.gradcheck(message(WRONG + 'layer { name: "r" type: "ReLU" bottom: "y" top: "y" }'), elements=None)
    assert [c.layer for c in report.failed] == ["square"] and report.failed[0].kinks == 0
    report = minicaffe.gradcheck(message(INPUT + layer_text("Fickle", "f", "x", "y")))
    assert not report.comparisons and not report.ok
    assert ("f", "Fickle", None, "it computes something else each time it runs on the same data") in report.not_checked


def test_kinks():
    """At and nearer than a step to a kink the function has no derivative, or another one: no error of backward."""
    for layer, values, kinks in (('type: "ReLU"', [0.0, 1.0, -1.0, 3e-5], 2),
                                 ('type: "AbsVal"', [0.0, 1.0, -1.0, -3e-5], 1),     # at 0 its gradient is 0, as that of differences
                                 ('type: "Pooling" pooling_param { pool: MAX kernel_size: 2 }', [0.5, 0.5, -1.0, 0.2], 2)):
        net = Net(message(INPUT.replace("dim: 3 dim: 2 dim: 6 dim: 6", "dim: [1, 1, 2, 2]")
                          + f'layer {{ name: "kinked" bottom: "x" top: "y" {layer} }}'), Dtype.DOUBLE)
        net.blobs["x"].data[...] = np.reshape(values, (1, 1, 2, 2))
        report = minicaffe.gradcheck(net)
        assert report.ok and report.comparisons[0].kinks == kinks, f"\n{report}"
    # Zeros in overlapping windows: backward chooses one in some of them, which lies between the derivatives of each, not of their sum.
    net = Net(message(INPUT + layer_text("Pooling", "p", "x", "y", "pooling_param { pool: MAX kernel_size: 3 }")), Dtype.DOUBLE)
    report = minicaffe.gradcheck(net, elements=None)
    assert report.ok and report.comparisons[0].kinks > 30, f"\n{report}"


def test_refused_nets_and_chosen_layers(tmp_path):
    report = minicaffe.gradcheck(message('layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 0 } } }'
                                         'layer { name: "p" type: "Power" bottom: "x" top: "y" }'))
    assert report.comparisons[0].checked == 0 and not report.failed and not report.ok
    param = message(NET)
    with pytest.raises(ConfigError, match="computes in float32.*Dtype.DOUBLE"):
        minicaffe.gradcheck(Net(param))
    (tmp_path / "net.prototxt").write_text(INPUT + 'layer { name: "sq" type: "Power" bottom: "x" top: "y" power_param { power: 2 } }')
    for path in (tmp_path / "net.prototxt", os.fsencode(tmp_path / "net.prototxt")):
        assert [c.layer for c in minicaffe.gradcheck(path, layers="sq").comparisons] == ["sq"]
    assert minicaffe.gradcheck(tmp_path / "net.prototxt", layers=(name for name in ["sq"])).ok


def test_the_command(tmp_path, monkeypatch, capsys, types):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "wrong.prototxt").write_text(WRONG)
    assert app.run(["gradcheck", "net.prototxt", "--elements", "4"]) == 0
    out = capsys.readouterr().out
    row = next(line.split() for line in out.splitlines() if line.startswith("conv ") and "blobs[0]" in line)
    assert row[2:4] == ["3x2x3x3", "4"] and row[-1] == "ok"
    assert "not checked: bn (BatchNorm): blobs[0]: it is not learned: its lr_mult is 0" in out
    assert out.splitlines()[-1].endswith("all agree")
    assert app.run(["gradcheck", "wrong.prototxt", "--elements", "0"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out and "0,0,0,4" in out and "1 of 1 arrays differ" in out
    assert app.run(["gradcheck", "wrong.prototxt", "--batch-size", "2"]) == 2
    assert "no layer of the net has a batch_size" in capsys.readouterr().err
    assert app.run(["gradcheck", "net.prototxt", "--whole", "--layer", "ip", "--elements", "4"]) == 0


def test_batches_and_elements_of_command(folder, minicaffe):
    h5py = pytest.importorskip("h5py")
    with h5py.File("data.h5", "w") as file:
        file["x"], file["y"] = [[1.0, 2.0]] * 4, [0.0, 1.0, 1.0, 1.0]
    (folder / "list").write_text("data.h5\n")
    (folder / "net.prototxt").write_text(
        layer_text("HDF5Data", "in", tops="x y", more='hdf5_data_param { source: "list" batch_size: 1 }')
        + layer_text("InnerProduct", "ip", "x", more='inner_product_param { num_output: 3 weight_filler { type: "xavier" } }')
        + layer_text("SoftmaxWithLoss", "loss", "ip y"))
    for words, size in (((), 4), (("--batch-size=3",), 3)):
        row = next(line.split() for line in minicaffe("gradcheck", "net.prototxt", "--elements=2", *words).splitlines() if line.startswith("ip ") and "bottom" in line)
        assert f"{size}x2" in row
    (folder / "none.prototxt").write_text(INPUT + layer_text("Silence", "s", "x", ""))
    assert app.run(["gradcheck", "none.prototxt"]) == 1
    (folder / "net.prototxt").write_text(INPUT.replace("dim: 3 dim: 2 dim: 6 dim: 6", "dim: [2, 50]")
                                         + layer_text("Power", "power", "x", "y", "power_param { scale: 2 }"))
    for words, count in (((), 50), (("--elements=7",), 7), (("--elements=0",), 100)):
        assert f"\n{count} elements of 1 arrays compared" in "\n" + minicaffe("gradcheck", "net.prototxt", *words)
    assert "--layer: the net has no layer 'powr'; did you mean 'power'" in minicaffe("gradcheck", "net.prototxt", "--layer=powr", status=2)


def test_numbers_of_gradcheck():
    for given, error, words in (
            ({"threshold": 0}, ConfigError, "threshold: must be a finite number above 0"), ({"step": None}, WrongTypeError, "step must be a number"),
            ({"step": float("inf")}, ConfigError, "step: must be a finite number above 0, got inf"),
            ({"elements": 1.5}, WrongTypeError, "elements must be an int"),
            ({"elements": -1}, ConfigError, "elements: must be at least 0, which means all, got -1")):
        with pytest.raises(error, match=words):
            minicaffe.gradcheck(message(NET), **given)
