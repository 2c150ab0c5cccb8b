"""How much code runs for a training of LeNet: what a reader has to follow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"
SCRIPT = """
import inspect, json, pathlib, sys, threading      # pathlib looks for modules of Windows, by all finders
functions = set()

def is_ours(code):      # functions, not modules, bodies of classes, and expressions inside of a function
    return code.co_flags & inspect.CO_OPTIMIZED and "/minicaffe/" in code.co_filename and "editable" not in code.co_filename

def trace(frame, event, argument):
    if is_ours(frame.f_code) and not frame.f_code.co_name.startswith("<"):
        functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))

threading.settrace(trace)
sys.settrace(trace)
sys.argv[1:] = ["train", "models/lenet/net.prototxt", "--max-iter", "20"]
try:
    from minicaffe.cli import main
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.settrace(None)
print(json.dumps({"functions": sorted(functions), "files": len({path for path, _ in functions}),
                  "modules": len([name for name in sys.modules if name.partition(".")[0] == "minicaffe"])}))
"""
LIMITS = {"functions": (200, 250), "files": (40, 50), "modules": (100, 149)}


def test_size(tmp_path):

    # Files of an earlier training in this clone would be kept under other names, by two functions more.
    shutil.copytree(MODELS / "lenet", tmp_path / "models" / "lenet", ignore=shutil.ignore_patterns("net_iter*", "*.log"))
    shutil.copytree(MODELS / "data", tmp_path / "models" / "data")
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "MINICAFFE_DEVICE": "cpu"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    functions, found["functions"] = found["functions"], len(found["functions"])
    for name, (least, most) in LIMITS.items():
        assert least < found[name] <= most, (name, found, functions)
