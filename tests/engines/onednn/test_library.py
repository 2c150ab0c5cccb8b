"""Where oneDNN is looked for, what is said when it is missing, our declarations of it, and what it computes where no engine was named: what was
measured to be faster (minicaffe/ops/conv/engine_onednn.pyx)."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cplusplus import compiler
from helpers import layer_text, make_net

import minicaffe as caffe
from minicaffe import errors
from minicaffe.blob import Dtype
from minicaffe.common import TEST
from minicaffe.engines import engine
from minicaffe.engines.onednn import library

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONV = 'convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } }'
TEXT = (layer_text("Input", "x", more="input_param { shape { dim: [1, 16, 8, 8] } }") + layer_text("Convolution", "conv", "x", "y", CONV)
        + layer_text("Convolution", "conv2", "y", "z", CONV))
NET = """
import minicaffe as caffe
net = caffe.Net("net.prototxt", caffe.TEST)
net.blobs["x"].data[...] = 1
"""


def run(code, folder, **environment):
    """Run a program that makes `net` in a process of its own; return what it writes, and what it logs."""
    (folder / "net.prototxt").write_text(TEXT)
    done = subprocess.run([sys.executable, "-c", NET + code], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "MINICAFFE_DEVICE": "cpu", **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


FORWARD = """
net.forward(); net.forward()
print(*[op.describe()["engine"] for layer in net.layers for op in layer.operations()])
"""


@pytest.mark.parametrize(("value", "said"), [
    ("off", "oneDNN is switched off by MINICAFFE_ONEDNN=off"),
    ("/no/such/libdnnl.so.3", "oneDNN cannot be loaded (/no/such/libdnnl.so.3"),
    ("libm.so.6", "libm.so.6 has no dnnl_version"),
])
def test_caffe_engine_without_library_said_once(tmp_path, value, said):
    out, log = run(FORWARD, tmp_path, MINICAFFE_ENGINE="onednn", MINICAFFE_ONEDNN=value)
    assert out.split() == ["CAFFE", "CAFFE"]
    assert log.count(said) == 1, log


def test_library_not_opened_early(tmp_path):
    out, _ = run(FORWARD + "print('libdnnl' in open('/proc/self/maps').read())", tmp_path, MINICAFFE_ENGINE="caffe")
    assert out.split() == ["CAFFE", "CAFFE", "False"]


def test_places_tried_once(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    assert library.candidates(prefixes=[str(tmp_path), None]) == ["libdnnl.so.3"]
    (tmp_path / "lib" / "libdnnl.so.3").touch()
    assert library.candidates(prefixes=[str(tmp_path), str(tmp_path)]) == [str(tmp_path / "lib" / "libdnnl.so.3"), "libdnnl.so.3"]
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert str(tmp_path / "lib" / "libdnnl.so.3") in library.candidates()
    assert library.candidates("mine.so") == ["mine.so"]
    tried = []
    def fail():
        tried.append(1)
        raise errors.DependencyError(f"none, try {len(tried)}")
    for name, value in (("_path", None), ("_trouble", None), ("_open", fail)):
        monkeypatch.setattr(library, name, value)
    for _ in range(3):
        with pytest.raises(errors.DependencyError, match="none, try 1"):
            library.version()
    assert tried == [1]


def test_a_forked_child_computes_on(onednn, tmp_path):
    """Threads do not survive a fork, OpenMP would wait for them for ever; our pool starts others."""
    out, _ = run(FORWARD + """
import os, sys
before = net.blobs["z"].data.copy()
net.forward()
sys.stdout.flush()
if os.fork() == 0:
    same = (net.blobs["y"].data == net.blobs["y"].data).all() and abs(net.forward()["z"] - before).max() < 1e-4
    print(bool(same), *[op.describe()["engine"] for layer in net.layers for op in layer.operations()], flush=True)
    os._exit(0)
os.wait()
""", tmp_path, MINICAFFE_ENGINE="onednn")
    assert out.split() == ["ONEDNN", "ONEDNN", "True", "ONEDNN", "ONEDNN"]


def test_declarations_against_the_headers():
    folder = os.environ.get("MINICAFFE_ONEDNN_INCLUDE") or next(
        (folder for folder in (Path(sys.prefix) / "include", Path("/usr/include"))
         if (folder / "oneapi/dnnl/dnnl.h").exists()), None)
    if folder is None:
        pytest.skip("no oneapi/dnnl/dnnl.h: install onednn-devel-cpu-gomp, or name its folder in MINICAFFE_ONEDNN_INCLUDE")
    done = subprocess.run([*compiler(), "-std=c++17", "-fsyntax-only", "-w", f"-I{ROOT}", "-isystem", str(folder),
                           str(HERE / "declarations.cpp")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- where no engine was named

@pytest.fixture
def default(onednn):
    engine.prefer("")


def net(shape, fields, dtype=Dtype.FLOAT, more=""):
    text = (layer_text("Input", "x", more=f"input_param {{ shape {{ dim: {list(shape)} }} }}")
            + layer_text("Convolution", "conv", "x", "y", f"convolution_param {{ {fields} }}"))
    made = make_net(text + more, TEST, dtype)
    made.forward_from_to(0, len(made.layers) - 1)
    return made


def engines(made):
    return [one["engine"] for one in made.engines()]


@pytest.mark.parametrize(("shape", "fields", "expected"), [
    ((2, 3, 9, 9), "num_output: 32 kernel_size: 3", "ONEDNN"),      # few channels: a first layer, which has kernels of its own
    ((2, 64, 9, 9), "num_output: 48 kernel_size: 1", "ONEDNN"), ((2, 24, 9, 9), "num_output: 144 kernel_size: 1", "ONEDNN"),
    ((2, 32, 9, 9), "num_output: 32 kernel_size: 3 group: 32", "ONEDNN"),
    ((2, 96, 9, 9), "num_output: 96 kernel_size: 3 group: 2", "ONEDNN"),
    ((2, 1, 28, 28), "num_output: 20 kernel_size: 5", "CAFFE"),     # LeNet's
    ((1, 20, 12, 12), "num_output: 40 kernel_size: 5", "CAFFE"), ((2, 8, 9, 9), "num_output: 16 kernel_size: 3", "CAFFE"),
    ((2, 20, 9, 9), "num_output: 20 kernel_size: 3 group: 20", "CAFFE"),
    ((2, 96, 9, 9), "num_output: 96 kernel_size: 3 group: 8", "ONEDNN"),
    ((2, 64, 9, 9), "num_output: 64 kernel_size: 3 group: 8", "CAFFE"),
    ((2, 64, 9, 9), "num_output: 64 kernel_size: 3 engine: CAFFE", "CAFFE"),
])
def test_which_convolutions(default, shape, fields, expected):
    assert engines(net(shape, fields)) == [expected]


def test_layouts_and_silent_refusals(default, monkeypatch, caplog):
    few, pooling = ((2, 3, 9, 9), "num_output: 32 kernel_size: 3"), layer_text("Pooling", "pool", "y", "z", "pooling_param { kernel_size: 2 stride: 2 }")
    assert engines(net(*few, more=pooling)) == ["ONEDNN", "ONEDNN"]
    assert engines(net((2, 3, 9, 9), "num_output: 20 kernel_size: 3", more=pooling)) == ["CAFFE", "CAFFE"]
    with caplog.at_level(logging.INFO):
        assert engines(net(*few, Dtype.DOUBLE)) == ["CAFFE"]
        monkeypatch.setattr(library, "_trouble", "there is none")
        made = net(*few)
    assert made.engines()[0]["refused"]["ONEDNN"] == "there is none" and engines(made) == ["CAFFE"]
    assert not [record for record in caplog.records if "refuses" in record.getMessage()]
    made = caffe.Net("models/lenet/deploy.prototxt", caffe.TEST)
    made.forward()
    assert not any("there is none" in str(one) for one in made.engines())      # it would not have been opened
    engine.prefer("CAFFE")
    found = net(*few).engines()[0]
    assert (found["engine"], found["refused"]) == ("CAFFE", {})
