"""The fuzzer itself: its seeds work, each kind of fault is found, faults of the past stay fixed, and a short search."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FUZZ = HERE.parents[1] / "tools/fuzz.py"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fuzzer measures by /proc, which Linux has")


def fuzz(*arguments):
    """Run the fuzzer on the CPU; return its exit status and what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MINICAFFE")}
    done = subprocess.run([sys.executable, FUZZ, *map(str, arguments)], capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow(2)
def test_seeds_work():
    status, output = fuzz("--seeds")
    assert status == 0, output
    assert output.count(" ok") > 60


@pytest.mark.slow(13)
@pytest.mark.parametrize("fault, outcome", [
    ("raise", "FAILED exception KeyError at"), ("die", "FAILED signal SIGABRT at"), ("hang", "FAILED timeout"),
    ("memory", "FAILED memory a growth of more than 1 GiB")])
def test_kinds_of_faults(tmp_path, fault, outcome):
    case = tmp_path / "net-broken.prototxt"
    case.write_text('layer { name: "l" type: "Python" python_param { module: "fuzz_python_layer" layer: "Broken" '
                    f'param_str: "{fault}" }} }}')
    good = tmp_path / "net-good.prototxt"
    good.write_text((HERE / "nets/ReLU.prototxt").read_text())
    status, output = fuzz("--patience", 1 if fault == "hang" else 10, "--replay", case, good)
    assert status == 1 and outcome in output, output
    assert f"{good}: ok" in output  # a new worker continues


def test_earlier_faults():
    reads_onnx = find_spec("onnx") and find_spec("onnxruntime")
    corpus = sorted(path for path in (HERE / "corpus").iterdir() if path.suffix != ".onnx" or reads_onnx)
    assert len(corpus) > 20
    status, output = fuzz("--replay", *corpus)
    assert status == 0, output


@pytest.mark.slow(7)
def test_short_search(tmp_path):
    status, output = fuzz("--cases", 1000, "--seed", 1, "--output", tmp_path / "failures")
    assert status == 0, output
    assert "1000 cases in" in output
