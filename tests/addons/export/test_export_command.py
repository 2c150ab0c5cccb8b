"""minicaffe export: what it prints and refuses; the models are tested in tests/addons/export/onnx."""

from pathlib import Path

import numpy as np
import pytest
from export_cases import MODELS, layer, net_of

from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

onnx = pytest.importorskip("onnx", reason="no package onnx: pip install -r tests/requirements.txt")
pytest.importorskip("onnxruntime", reason="no package onnxruntime: pip install -r tests/requirements.txt")

from minicaffe.addons.export.exporting import random_inputs, run_net  # noqa: E402
from minicaffe.addons.export.onnx import export  # noqa: E402

LENET = MODELS / "lenet/deploy.prototxt"


def test_what_it_prints_and_writes(minicaffe, tmp_path):
    printed = minicaffe("export", LENET, "-o", "a.onnx", "--dynamic-batch", "--mean", "33", "--scale", "0.004").splitlines()
    assert printed[0].startswith("the parameters are those that the fillers gave") and printed[-1] == "wrote a.onnx"
    assert [line.split(":")[0] for line in printed[1:-1]] == ["prob 1 x 10", "prob 1 x 10", "prob 3 x 10"]
    assert onnx.load("a.onnx").producer_name == "minicaffe"
    assert "--force" in minicaffe("export", LENET, "-o", "a.onnx", status=1)
    param, positions = read_net(str(LENET), caffe_pb2.TEST)
    Net(param, positions=positions).save("w.caffemodel")
    np.savez("x.npz", data=np.ones((2, 1, 28, 28)))
    printed = minicaffe("export", LENET, "w.caffemodel", "-o", "b.onnx", "--batch", "2", "--inputs", "x.npz")
    assert printed.startswith("prob 2 x 10: differs by at most")
    assert minicaffe("export", LENET, "w.caffemodel", "-o", "c.onnx", "--no-check") == "wrote c.onnx, not compared with the net\n"
    for words, first in ((("--mean", "33"), "Sub"), (("--scale", "0.5"), "Mul"), (("--channel-swap", "0"), "Gather"), ((), "Conv")):
        minicaffe("export", LENET, "-o", "d.onnx", "--no-check", "--force", *words)
        assert onnx.load("d.onnx").graph.node[0].op_type == first


def test_import(minicaffe, tmp_path):
    minicaffe("export", LENET, "-o", "a.onnx", "--no-check")
    lines = minicaffe("import", "a.onnx", "-o", "o").splitlines()
    assert lines[0].startswith("prob 1 x 10: differs by at most") and lines[1:] == ["wrote o.prototxt and o.caffemodel: 10 layers"]
    net = Net(read_net("o.prototxt", caffe_pb2.TEST)[0])
    net.copy_from("o.caffemodel")
    assert minicaffe("import", "a.onnx", "-o", "p", "--no-check") == "wrote p.prototxt and p.caffemodel: 10 layers, not compared\n"
    assert "q.onnx: cannot be read" in minicaffe("import", "q.onnx", "-o", "q", status=1)
    assert "cannot be written" in minicaffe("import", "a.onnx", "-o", "no/q", status=1)
    assert not list(tmp_path.glob("q*"))
    for shape in "data", "data=1x0x28x28", "=1x1":
        assert "write INPUT=SIZExSIZE" in minicaffe("import", "a.onnx", "-o", "q", "--shape", shape, status=2)
    assert "input 'data' has the shape 1x1x28x28, which 2x1x28x28 does not fit" in minicaffe(
        "import", "a.onnx", "-o", "q", "--shape", "data=2x1x28x28", status=2)
    assert "has no input 'x'" in minicaffe("import", "a.onnx", "-o", "q", "--shape", "x=1x1x28x28", status=2)
    assert not list(tmp_path.glob("q*"))


def test_import_with_folded_layers(minicaffe, tmp_path, monkeypatch):
    """A BatchNormalization behind a convolution folds into it; one behind a ReLU cannot be folded."""
    text = (layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 }", tops="c", name="conv") + layer("BatchNorm", "", "c", "c", name="norm")
            + layer("ReLU", "", "c", "c", name="relu") + layer("BatchNorm", "", "c", name="last"))
    export(net_of(text, (2, 3, 6, 6)), "m.onnx", check=False)
    assert minicaffe("import", "m.onnx", "-o", "plain").splitlines()[-1] == "wrote plain.prototxt and plain.caffemodel: 5 layers"
    lines = minicaffe("import", "m.onnx", "-o", "o", "--fold").splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "y 2 x 4 x 4 x 4", "with folded layers, compared with the net before:", "y 2 x 4 x 4 x 4", "'last' is left",
        "wrote o.prototxt and o.caffemodel"] and lines[-1].endswith("4 layers of 5, 1 folded into others, 0 removed")
    found = []
    for name in ("plain", "o"):
        net = Net(read_net(f"{name}.prototxt", caffe_pb2.TEST)[0])
        net.copy_from(f"{name}.caffemodel")
        found.append(run_net(net, random_inputs(net))["y"].copy())
    assert [node.type for node in net.nodes] == ["Input", "Convolution", "ReLU", "BatchNorm"]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
    printed = minicaffe("import", "m.onnx", "-o", "p", "--fold", "--no-check").splitlines()
    assert len(printed) == 2 and printed[-1].endswith("0 removed, not compared")
    monkeypatch.setattr("minicaffe.addons.export.commands.TOLERANCE", -1)
    assert "output 'y' of the folded net differs by" in minicaffe("import", "m.onnx", "-o", "q", "--fold", status=1)
    assert not list(tmp_path.glob("q.*"))


@pytest.mark.parametrize("words, status, wrong", [
    ([MODELS / "lenet/net.prototxt", "-o", "a.onnx"], 2, "a model of ONNX reads no data; make the deploy net (minicaffe deploy)"),
    ([LENET, "none.caffemodel", "-o", "a.onnx"], 1, "none.caffemodel: no such file"),
    ([LENET, "-o", "no/a.onnx"], 1, "no/a.onnx: cannot be written"),
    ([LENET, "-o", "a.onnx", "--inputs", "wrong.npz"], 1, "wrong.npz: is not an .npz file"),
    ([LENET, "-o", "a.onnx", "--inputs", "no.npz"], 1, "no.npz: cannot be read"),
    ([LENET, "-o", "a.onnx", "--mean", "1,2"], 2, "must be one number, or one for each of the 1 channels"),
    ([LENET], 2, "'-o'")])
def test_wrong_words(minicaffe, tmp_path, words, status, wrong):
    (tmp_path / "wrong.npz").write_text("nothing")
    assert wrong in minicaffe("export", *words, status=status) and not Path("a.onnx").exists()
