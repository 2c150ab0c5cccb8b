"""How much code runs from a prototxt to the first layer of its net: what a reader has to follow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "models"
SCRIPT = """
import inspect, json, sys
lines = set()

class FirstLayer(BaseException):
    pass

def trace(frame, event, argument):
    code = frame.f_code     # lines of functions only, not of modules and of bodies of classes
    if not code.co_flags & inspect.CO_OPTIMIZED or "/minicaffe/" not in code.co_filename or "editable" in code.co_filename:
        return None
    if code.co_qualname == "Builder._create":
        sys.settrace(None)
        raise FirstLayer
    return trace_lines

def trace_lines(frame, event, argument):
    if event == "line":
        lines.add((frame.f_code.co_filename, frame.f_lineno))
    return trace_lines

sys.settrace(trace)
try:
    STATEMENTS
except FirstLayer:
    print(json.dumps(sorted(lines)))
"""
WAYS = {
    "Net": ('import minicaffe; minicaffe.Net("models/lenet/net.prototxt", minicaffe.TRAIN)', 200, 370),
    "train": ('sys.argv[1:] = ["train", "models/lenet/net.prototxt", "--max-iter", "20"]; from minicaffe.cli import main; main()', 400, 740),
}


@pytest.mark.parametrize("way", WAYS)
def test_lines_from_a_prototxt_to_the_first_layer(tmp_path, way):
    statements, least, most = WAYS[way]
    shutil.copytree(MODELS / "lenet", tmp_path / "models" / "lenet")
    shutil.copytree(MODELS / "data", tmp_path / "models" / "data")
    done = subprocess.run([sys.executable, "-c", SCRIPT.replace("STATEMENTS", statements)], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "MINICAFFE_DEVICE": "cpu"})
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout.splitlines()[-1])
    assert least < len(lines) <= most, len(lines)
    assert any(path.endswith("text_parser.py") for path, _ in lines)
