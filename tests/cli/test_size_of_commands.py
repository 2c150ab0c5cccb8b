"""How much code runs for a net and for a training of LeNet: what a reader has to follow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "models"
SCRIPT = """
import inspect, json, pathlib, sys, threading      # pathlib looks for modules of Windows, by all finders
functions, lines, built = set(), set(), []

def is_ours(code):      # functions, not modules, bodies of classes, and expressions inside of a function
    return code.co_flags & inspect.CO_OPTIMIZED and "/minicaffe/" in code.co_filename and "editable" not in code.co_filename

def trace(frame, event, argument):
    code = frame.f_code
    if not is_ours(code):
        return None
    if not code.co_name.startswith("<"):
        functions.add((code.co_filename, code.co_qualname))
    if code.co_qualname == "Builder._create":       # the first layer
        built.append(True)
    return trace_lines if not built else None

def trace_lines(frame, event, argument):
    if event == "line" and not built:
        lines.add((frame.f_code.co_filename, frame.f_lineno))
    return trace_lines if not built else None

threading.settrace(trace)
sys.settrace(trace)
try:
    STATEMENTS
except SystemExit as end:
    assert not end.code, end.code
sys.settrace(None)
print(json.dumps({"functions": sorted(functions), "lines": len(lines), "files": len({path for path, _ in functions}),
                  "modules": len([name for name in sys.modules if name.partition(".")[0] == "minicaffe"])}))
"""
NET = 'import minicaffe; minicaffe.Net("models/lenet/net.prototxt", minicaffe.TRAIN)'
TRAIN = 'sys.argv[1:] = ["train", "models/lenet/net.prototxt", "--max-iter", "20"]; from minicaffe.cli import main; main()'


@pytest.mark.parametrize("statements, limits", [
    (NET, {"lines": (200, 370)}), (TRAIN, {"lines": (400, 740), "functions": (200, 250), "files": (40, 50), "modules": (100, 149)})], ids=["Net", "train"])
def test_size(tmp_path, statements, limits):
    """Lines are those from a prototxt to the first layer."""
    # Files of an earlier training in this clone would be kept under other names, by two functions more.
    shutil.copytree(MODELS / "lenet", tmp_path / "models" / "lenet", ignore=shutil.ignore_patterns("net_iter*", "*.log"))
    shutil.copytree(MODELS / "data", tmp_path / "models" / "data")
    done = subprocess.run([sys.executable, "-c", SCRIPT.replace("STATEMENTS", statements)], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "MINICAFFE_DEVICE": "cpu"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    functions, found["functions"] = found["functions"], len(found["functions"])
    for name, (least, most) in limits.items():
        assert least < found[name] <= most, (name, found, functions)
