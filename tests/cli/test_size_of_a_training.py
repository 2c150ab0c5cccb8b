"""How much code `minicaffe train` of LeNet runs: what a reader has to follow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"
SCRIPT = """
import inspect, json, sys, threading
functions = set()
def profile(frame, event, argument):
    code = frame.f_code     # not those of modules, of bodies of classes, and of expressions inside of a function
    if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"):
        functions.add((code.co_filename, code.co_qualname))
sys.argv[1:] = ["train", "models/lenet/net.prototxt", "--max-iter", "20"]
sys.setprofile(profile)
threading.setprofile(profile)
try:
    from minicaffe.cli import main
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.setprofile(None)
ours = sorted(each for each in functions if "/minicaffe/" in each[0] and "editable" not in each[0])
print(json.dumps({"functions": ours, "modules": sorted(name for name in sys.modules if name.partition(".")[0] == "minicaffe")}))
"""


def test_lenet_trains_in_few_functions_files_and_modules(tmp_path):
    # Files of an earlier training in this clone would be kept under other names, by two functions more.
    shutil.copytree(MODELS / "lenet", tmp_path / "models" / "lenet", ignore=shutil.ignore_patterns("net_iter*", "*.log"))
    shutil.copytree(MODELS / "data", tmp_path / "models" / "data")
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "MINICAFFE_DEVICE": "cpu"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    files = {path for path, _ in found["functions"]}
    assert 200 < len(found["functions"]) <= 250, found["functions"]
    assert 40 < len(files) <= 50, sorted(files)
    assert 100 < len(found["modules"]) <= 149, found["modules"]
