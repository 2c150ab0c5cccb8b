"""minicaffe export --to torch: what it prints, writes and refuses; the modules are tested in tests/addons/export/pytorch."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
from export_cases import MODELS

from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

LENET = MODELS / "lenet/deploy.prototxt"
PYTHON = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "own" type: "Python" bottom: "x" top: "y" python_param { module: "no_such_module" layer: "Own" } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "other" type: "Python" bottom: "y" top: "z" python_param { module: "no_such_module" layer: "Other" } }
"""


def test_files_without_pytorch(minicaffe, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "PyTorch is needed to compare" in minicaffe("export", LENET, "--to", "torch", "-o", "lenet", status=1) and not Path("lenet.py").exists()
    lines = minicaffe("export", LENET, "--to", "torch", "-o", "lenet", "--no-check").splitlines()
    assert lines == ["the parameters are those that the fillers gave: no WEIGHTS were given", "wrote lenet.py and lenet.pt, not compared with the net"]
    assert ast.parse(Path("lenet.py").read_text()).body[-1].name == "LeNet" and Path("lenet.pt").stat().st_size > 4 * 430_000
    assert "lenet.py: exists already; --force replaces it" in minicaffe("export", LENET, "--to", "torch", "-o", "lenet", status=1)
    Path("lenet.py").unlink()
    assert "lenet.pt: exists already; --force replaces it" in minicaffe("export", LENET, "--to", "torch", "-o", "lenet.py", status=1)
    assert not Path("lenet.py").exists()
    assert minicaffe("export", LENET, "--to", "torch", "-o", "lenet.pt", "--force", "--no-check").endswith("wrote lenet.py and lenet.pt, not compared with the net\n")


def test_the_comparison(minicaffe, tmp_path):
    pytest.importorskip("torch", reason="no package torch, which is large: pip install torch")
    param, positions = read_net(str(LENET), caffe_pb2.TEST)
    Net(param, positions=positions).save("w.caffemodel")
    np.savez("x.npz", data=np.ones((2, 1, 28, 28)))
    lines = minicaffe("export", LENET, "w.caffemodel", "--to", "torch", "-o", "b", "--batch", "2", "--inputs", "x.npz", "--mean", "33", "--scale", "0.004").splitlines()
    assert len(lines) == 2 and lines[0].startswith("prob 2 x 10: differs by at most ") and lines[1] == "wrote b.py and b.pt"
    assert "        data = 0.004 * (data - 33.0)\n" in Path("b.py").read_text() and "# 2 x 20 x 24 x 24" in Path("b.py").read_text()


@pytest.mark.parametrize("words, status, wrong", [
    ([MODELS / "lenet/net.prototxt", "-o", "a"], 2, "a module of PyTorch reads no data; make the deploy net (minicaffe deploy)"),
    (["python.prototxt", "-o", "a"], 2, "python.prototxt:2: layer 'own' (Python): a module of PyTorch cannot call a Python layer; write its formula with other layers, or "
     "register a function that exports it (minicaffe.addons.export.pytorch.writer('Python')); also 'other' (Python)"),
    ([LENET, "none.caffemodel", "-o", "a"], 1, "none.caffemodel: no such file"),
    ([LENET, "-o", "no/a"], 1, "no/a.py: cannot be written"),
    ([LENET, "-o", "my-net"], 2, "a module 'my-net' cannot be imported"),
    ([LENET, "-o", "a", "--dynamic-batch"], 2, "--dynamic-batch does not go with --to torch: a module takes any batch"),
    ([LENET, "-o", "a", "--mean", "1,2", "--no-check"], 2, "must be one number, or one for each of the 1 channels"),
    ([LENET, "-o", "a", "--to", "tf"], 2, "'tf' is not one of 'onnx', 'torch'")])
def test_wrong_words_for_torch(minicaffe, tmp_path, words, status, wrong):
    (tmp_path / "python.prototxt").write_text(PYTHON)
    assert wrong in minicaffe("export", "--to", "torch", *words, status=status)
    assert [path.name for path in tmp_path.iterdir()] == ["python.prototxt"]
