"""Eleven scripts as people wrote them for pycaffe run unchanged: ``import caffe`` gives minicaffe (minicaffe/alias.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import minicaffe

SCRIPTS = Path(__file__).resolve().parent / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if "datalayers" not in path.name)


def run(*arguments, cwd, **environment):
    """Run Python with the arguments; ``PYTHONPATH`` is as the environment says."""
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "2", **environment})


@pytest.mark.parametrize("name", NAMES)
def test_script(name, tmp_path):
    pytest.importorskip("cv2")
    done = run("-m", "minicaffe.as_caffe", SCRIPTS / f"{name}.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_there_are_eleven():
    assert len(NAMES) == 11


ALIAS = """
import minicaffe
minicaffe.install_as_caffe()
import caffe, caffe.io, caffe.net_spec, caffe.draw, caffe.coord_map, caffe.classifier, caffe.detector, caffe.pycaffe, caffe._caffe
from caffe import layers as L, params as P, to_proto
from caffe.proto import caffe_pb2
import caffe.proto.caffe_pb2 as pb2
from caffe.pycaffe import Net, SGDSolver
assert caffe is minicaffe and Net is minicaffe.Net and pb2 is caffe_pb2 and caffe._caffe.get_solver is minicaffe.get_solver
assert caffe.io.caffe_pb2.Datum is caffe_pb2.Datum and caffe.net_spec.layers is L and caffe.params is P
minicaffe.install_as_caffe()
"""


def test_modules(tmp_path):
    (tmp_path / "caffe").mkdir()  # Caffe's sources beside a script are no caffe to import
    done = run("-c", ALIAS, cwd=tmp_path, PYTHONSAFEPATH="")
    assert done.returncode == 0, done.stderr


NAMES_OF_MODULES = """
import minicaffe.io as io, minicaffe.classifier, minicaffe.detector, minicaffe.net_spec, minicaffe.draw
from minicaffe import coord_map, dnn
from minicaffe.dnn import readNetFromCaffe
from minicaffe.pycaffe import Net, SGDSolver, get_solver, set_mode_cpu
assert Net is minicaffe.Net and io is minicaffe.io is minicaffe.pycaffe.io and minicaffe.net_spec.layers is minicaffe.layers
assert readNetFromCaffe is minicaffe.opencv.dnn.readNetFromCaffe and coord_map.L is minicaffe.layers
import pickle; assert pickle.loads(pickle.dumps(io.Transformer)) is minicaffe.io.Transformer
"""


def test_modules_of_minicaffe_have_the_names_that_users_know(tmp_path):
    done = run("-c", NAMES_OF_MODULES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_another_caffe_is_not_hidden_unless_asked(tmp_path):
    (tmp_path / "caffe.py").write_text("__version__ = 'theirs'\n")
    ask = "import minicaffe\ntry:\n    minicaffe.install_as_caffe()\nexcept ValueError as error:\n    print(error)\n{}import caffe; print(caffe.__version__)"
    done = run("-c", ask.format(""), cwd=tmp_path, PYTHONSAFEPATH="")
    assert "another caffe is there" in done.stdout and "caffe.py" in done.stdout and done.stdout.endswith("theirs\n"), done.stderr
    done = run("-c", "import caffe\n" + ask.format("minicaffe.install_as_caffe(force=True)\n"), cwd=tmp_path, PYTHONSAFEPATH="")
    assert done.stdout.endswith(f"{minicaffe.__version__}\n"), done.stderr


def test_the_runner(tmp_path):
    (tmp_path / "beside.py").write_text("word = 'hello'\n")
    (tmp_path / "script.py").write_text("import sys, beside, caffe\nprint(beside.word, sys.argv[1:], __name__)\nsys.exit(3)\n")
    done = run("-m", "minicaffe.as_caffe", tmp_path / "script.py", "a", "-b", cwd="/")
    assert (done.returncode, done.stdout) == (3, "hello ['a', '-b'] __main__\n"), done.stderr
    assert run("-m", "minicaffe.as_caffe", "nowhere.py", cwd=tmp_path).returncode == 2
    assert "usage" in run("-m", "minicaffe.as_caffe", cwd=tmp_path).stderr
