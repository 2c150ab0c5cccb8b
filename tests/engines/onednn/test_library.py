"""Where oneDNN is looked for, what is said when it is missing, and our declarations of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cplusplus import compiler

from minicaffe import errors
from minicaffe.engines.onednn import library

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NET = """
import minicaffe as caffe
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
text = '''
layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 1 dim: 16 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 16 kernel_size: 3
        weight_filler { type: "xavier" } } }
layer { name: "conv2" type: "Convolution" bottom: "y" top: "z" convolution_param { num_output: 16 kernel_size: 3
        weight_filler { type: "xavier" } } }'''
open("net.prototxt", "w").write(text)
net = caffe.Net("net.prototxt", caffe.TEST)
net.blobs["x"].data[...] = 1
"""


def run(code, folder, **environment):
    """Run a program that makes `net` in a process of its own; return what it writes, and what it logs."""
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


def test_places(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    assert library.candidates(prefixes=[str(tmp_path), None]) == ["libdnnl.so.3"]
    (tmp_path / "lib" / "libdnnl.so.3").touch()
    assert library.candidates(prefixes=[str(tmp_path), str(tmp_path)]) == [str(tmp_path / "lib" / "libdnnl.so.3"), "libdnnl.so.3"]
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert str(tmp_path / "lib" / "libdnnl.so.3") in library.candidates()
    assert library.candidates("mine.so") == ["mine.so"]


def test_library_that_cannot_open_tried_once(monkeypatch):
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
