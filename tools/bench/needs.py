"""What `minicaffe summary` says that a training needs, against what `minicaffe train` takes.

    python tools/bench/needs.py lenet cifar10_quick caffenet:64

A name is that of a folder of models/, with a batch size where it is not the file's. `summary` finds no data; `train` runs four
iterations and a test of one batch on databases of noise. Measured are the most bytes in blocks of the host
(``memory.stats(CPUPlace()).peak``) plus those of NumPy's arrays at the end, which are the batches made ready. Beside it, what the
operating system sees: how much more was resident at most than after the import (Linux, VmHWM). Writes a line of JSON for each net.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIDES = {"caffenet": (3, 256, 256), "cifar10_quick": (3, 32, 32), "lenet": (1, 28, 28)}
RECORDS = 300

TRAIN = """
import json, sys, tracemalloc
import numpy as np
from pathlib import Path
from minicaffe import memory
from minicaffe.cli import app, train
from minicaffe.memory import CPUPlace

def status(field):
    return 1024 * int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0])

def measured(ctx, solver, given, run=train.run):
    result = run(ctx, solver, given)
    arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    ahead = sum(trace.size for trace in arrays.traces)
    print(json.dumps({"blocks": memory.stats(CPUPlace()).peak, "numpy": ahead, "resident": status("VmHWM") - imported}))
    return result

train.run = measured
imported = status("VmRSS")
tracemalloc.start()
sys.exit(app.run(["train", *sys.argv[1:]]))
"""


def make_data(net, shape):
    """Write the databases and mean pictures that a net names, with noise, below the working directory."""
    import numpy as np

    from minicaffe.data.db import open_db
    from minicaffe.proto import caffe_pb2
    random = np.random.default_rng(1)
    for source in re.findall(r'source: "(.*?)"', net):
        os.makedirs(os.path.dirname(source), exist_ok=True)
        with open_db(source, "lmdb", "w") as db:
            for i in range(RECORDS):
                pixels = random.integers(0, 256, shape, np.uint8).tobytes()
                datum = caffe_pb2.Datum(channels=shape[0], height=shape[1], width=shape[2], data=pixels, label=i % 10)
                db.put(b"%08d" % i, datum.SerializeToString())
    for path in re.findall(r'mean_file: "(.*?)"', net):
        mean = caffe_pb2.BlobProto(channels=shape[0], height=shape[1], width=shape[2], num=1, data=[0.0] * int(np.prod(shape)))
        Path(path).write_bytes(mean.SerializeToString())


def compare(name, batch=None):
    """Return what summary says and train takes, of a net of models/."""
    net = ROOT / "models" / name / "net.prototxt"
    sizes = [f"--batch-size={batch}"] if batch else []
    with tempfile.TemporaryDirectory() as folder:
        def run(*command):
            return subprocess.run([sys.executable, *command], cwd=folder, text=True, check=True, stdout=subprocess.PIPE).stdout

        said = run("-m", "minicaffe", "summary", str(net), *sizes, "--json")
        here = os.getcwd()
        try:
            os.chdir(folder)
            make_data(net.read_text(), SIDES[name])
        finally:
            os.chdir(here)
        took = run("-c", TRAIN, str(net), *sizes, "--max-iter=4", "--test-iter=1", "--test-interval=4", "--quiet",
                   f"--snapshot-prefix={folder}/of_{name}")
    took = json.loads(next(line for line in took.splitlines() if line.startswith('{"blocks"')))
    said = json.loads(said)["needs"][0]["peak"]
    measured = took["blocks"] + took["numpy"]
    return {"net": name, "batch": batch, "said": said, "measured": measured, "ratio": said / measured, "resident": took["resident"]}


if __name__ == "__main__":
    for word in sys.argv[1:]:
        name, _, batch = word.partition(":")
        print(json.dumps(compare(name, int(batch) if batch else None)), flush=True)
