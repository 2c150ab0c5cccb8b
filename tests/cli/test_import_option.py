"""``--import MODULE``: layer types of one's own on the command line."""

import json
import subprocess
import sys

import pytest
import small_ssd
from tiny import SOLVER, commands, run

MODULE = """
import minicaffe
from minicaffe.addons.export.onnx import exporter

class Twice(minicaffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = 2 * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 2 * top[0].diff

minicaffe.register_layer("Twice", Twice)

@exporter("Twice")
def twice(graph, node):
    return [graph.op("Add", graph.bottom(), graph.bottom())]
"""
NET = """
layer { name: "in" type: "DummyData" top: "data" top: "target" dummy_data_param { shape { dim: 4 dim: 3 dim: 6 dim: 6 } shape { dim: 4 dim: 2 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" } } }
layer { name: "twice" type: "Twice" bottom: "data" top: "twice" }
layer { name: "ip" type: "InnerProduct" bottom: "twice" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "target" top: "loss" }
"""
DEPLOY = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 6 dim: 6 } } }
layer { name: "twice" type: "Twice" bottom: "data" top: "twice" }
layer { name: "ip" type: "InnerProduct" bottom: "twice" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
"""
COMMANDS = """train net.prototxt --max-iter=2
train solver.prototxt --untrusted
test net.prototxt --weights=net_iter_2.caffemodel --iterations=1
time net.prototxt --iterations=1
trace net.prototxt
summary net.prototxt
gradcheck net.prototxt --elements=1
draw net.prototxt net.svg --shapes --phase=TRAIN
deploy net.prototxt net_iter_2.caffemodel --shape=3x6x6 -o d.prototxt
fold deploy.prototxt net_iter_2.caffemodel -o folded
export deploy.prototxt net_iter_2.caffemodel -o x.onnx
extract_features net_iter_2.caffemodel net.prototxt ip features 1 lmdb
classify x.png --model=deploy.prototxt --weights=net_iter_2.caffemodel --mean= --scale=1
detect x.png --model=boxes.prototxt --weights=net_iter_2.caffemodel --mean= --scale=1 --out=d.csv""".splitlines()
PROGRAM = """import contextlib, io, json, sys
from minicaffe.cli import app
done = []
for more in [], ["--import=twice"]:
    for words in json.loads(sys.argv[1]):
        with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
            status = app.run([*words.split(), *more, "--quiet"])
        done.append((status, err.getvalue()))
print(json.dumps(done))
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in (("twice.py", MODULE), ("net.prototxt", NET), ("deploy.prototxt", DEPLOY), ("solver.prototxt", SOLVER.replace(
            'snapshot_prefix: "tiny"', "snapshot_after_train: false"))):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow(1)
def test_commands(folder):
    for module in "cv2", "onnx", "onnxruntime":
        pytest.importorskip(module)
    import cv2
    import numpy as np
    cv2.imwrite(str(folder / "x.png"), np.zeros((6, 6, 3), np.uint8))
    (folder / "x.list").write_text("x.png\n")
    of_boxes = (small_ssd.DETECTOR % (6, 6)).partition("\n")[2].replace('bottom: "data" top: "loc"', 'bottom: "ip" top: "loc"')
    (folder / "boxes.prototxt").write_text(DEPLOY + of_boxes)
    out = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(COMMANDS)], cwd=folder, capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    done = json.loads(out.stdout)
    for words, (before, why), (status, error) in zip(COMMANDS, done, done[len(COMMANDS):], strict=False):
        assert before != 0 and ("unknown layer type 'Twice'" in why or "no exporter" in why or "no such weights file" in why), (words, why)
        assert status == 0, (words, error)


def test_commands_that_read_nets():
    for words, command in commands():
        names = {option for param in command.params for option in param.opts}
        assert ("--import" in names) == ("--untrusted" in names), words


@pytest.mark.parametrize("module, words", [
    ("twice.py", None), *(pytest.param(name, None, marks=pytest.mark.slow(1)) for name in ("./twice.py", "time.py", "./my-twice.py", "sub/../queue.py")),
    ("nowhere", "--import: module 'nowhere' cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    ("fails", "fails.py:2: --import: module 'fails' cannot be imported: ZeroDivisionError: division by zero"),
    ("typo", "typo.py:1: --import: module 'typo' cannot be imported: SyntaxError: "), ("ends", "ends.py:1: --import: module 'ends' cannot be imported: SystemExit: 3"),
    ("needs", "needs.py:1: --import: module 'needs' cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    ("of.nothing", "No module named 'of' in the working directory or on Python's path"),
    ("queue.py", None), ("../{}.py", None),
    ("../nowhere.py", "must be a file that ends in .py, or the dotted name of a module, got '../nowhere.py'"), ("sub/mine", "must be a file that ends in .py, or "),
    ("sub/", "must be a file that ends in .py, or the dotted name of a module, got 'sub/'"), ("", "or the dotted name of a module, got ''"),
    ("sub", "module 'sub' cannot be imported: ImportError: a folder without __init__.py"),
    ("again", "again.py:2: --import: module 'again' cannot be imported: ConfigError: "), ("calls.py", "calls.py:2: --import: module 'calls.py'"),
    ("text", "text.py:1: --import: module 'text' cannot be imported: SyntaxError: ")])  # fmt: skip
def test_modules(folder, module, words, run_forked):
    for name, text in (("fails", "x = 0\ny = 1 / x"), ("typo", "def f(:"), ("ends", "import sys; sys.exit(3)"), ("needs", "import nowhere"),
                       ("queue", MODULE), ("time", MODULE), ("my-twice", MODULE), ("calls", "import json\njson.loads('x')"),
                       ("again", "import minicaffe\nminicaffe.register_layer('ReLU', int)"), ("text", "import ast; ast.literal_eval('1 +')")):
        (folder / f"{name}.py").write_text(text)
    (folder / "sub").mkdir()
    (folder.parent / f"{folder.name}.py").write_text(MODULE)
    done = run_forked("minicaffe", "--import", module.format(folder.name), "summary", "net.prototxt", cwd=folder)
    assert done.returncode == (2 if words else 0), done.stderr
    assert not words or words in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_resume_command(folder):
    done = run("train", "solver.prototxt", "--import", "twice", "--patience=1", "--snapshot-after-train=true", "--snapshot-prefix=x", "--base-lr=0",
               cwd=folder)
    assert done.returncode == 0 and "--import=twice" in done.stdout.splitlines()[-1], done.stdout + done.stderr
