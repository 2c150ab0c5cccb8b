"""A whole command against a whole script: `minicaffe train models/lenet/net.prototxt` and tools/bench/lenet_torch.py, by turns.

    python tools/bench/whole.py [--rounds 5] [--json FILE]

Wall time of the processes from start to end: import, data, building, 1,500 iterations with four tests, what they print, and the
files that they save. Each side runs with 2 threads; the better of PyTorch's NCHW and channels-last counts.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2

ROOT = Path(__file__).resolve().parents[2]


def arrays():
    """The pictures and labels of models/data as arrays of bytes (number, 1, 28, 28) and of integers."""
    found = {}
    for name in ("train", "test"):
        with open_db(str(ROOT / f"models/data/fashion_mnist_{name}_lmdb"), caffe_pb2.DataParameter.LMDB) as db:
            data = [caffe_pb2.Datum.FromString(bytes(value)) for _, value in db.records()]
        found[name] = np.stack([np.frombuffer(d.data, np.uint8).reshape(d.channels, d.height, d.width) for d in data])
        found[name + "_labels"] = np.array([d.label for d in data], np.int64)
    return found


def run(command):
    """Seconds of a command, and the last accuracy that it printed."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, float(re.findall(r"accuracy\s*[=:]?\s*(0\.\d+)", done.stdout + done.stderr)[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, model = f"{folder}/pictures.npz", f"{folder}/model.pt"
        np.savez(data, **arrays())
        script = [sys.executable, str(Path(__file__).parent / "lenet_torch.py"), data, model]
        commands = {"minicaffe": [sys.executable, "-m", "minicaffe", "train", "models/lenet/net.prototxt", "--threads", "2",
                                  "--snapshot-prefix", f"{folder}/lenet"],
                    "PyTorch NCHW": script, "PyTorch channels-last": [*script, "--channels-last"]}
        results = {name: [] for name in commands}
        for turn in range(options.rounds):
            for name in list(commands)[:: -1 if turn % 2 else 1]:
                results[name].append(run(commands[name]))
    medians = {name: statistics.median(seconds for seconds, _ in rows) for name, rows in results.items()}
    for name, rows in results.items():
        times = [seconds for seconds, _ in rows]
        print(f"{name}: {medians[name]:.2f} s ({min(times):.2f} to {max(times):.2f}), accuracy "
              f"{min(a for _, a in rows):.3f} to {max(a for _, a in rows):.3f}")
    peer = min(value for name, value in medians.items() if name != "minicaffe")
    print(f"ratio: {medians['minicaffe'] / peer:.2f}x")
    if options.json:
        Path(options.json).write_text(json.dumps({"seconds": medians, "ratio": medians["minicaffe"] / peer}, indent=1) + "\n")


if __name__ == "__main__":
    main()
