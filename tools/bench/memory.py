"""Peak memory of a process that trains, of minicaffe with and without the memory plan and of PyTorch.

    python tools/bench/memory.py [caffenet googlenet resnet50] [--threads 2] [--steps 3] [--json FILE]

Each runs in a process of its own: the nets of nets.py, forward, backward and SGD with momentum, float32, PyTorch in NCHW with its
gradients set to None after each step. Linux counts: what is resident at most during the steps (VmHWM, reset when the nets are
built), with all libraries. PyTorch's net is made from a net of minicaffe, so what minicaffe's import takes is subtracted there; a
PyTorch that is missing or fails is left out. Goal: 0.6.
"""

import argparse
import ctypes
import gc
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WHO = ("memory", "none", "torch")


def resident(field):
    """MiB of this process, `field` of /proc/self/status."""
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def child(who, name, threads, steps):
    """Train `steps` steps in this process and print the peak."""
    sys.path.insert(0, str(HERE))
    import numpy  # noqa: F401
    before = resident("VmRSS")
    import bench
    import nets
    imported = resident("VmRSS") - before
    param = nets.training_net(name, nets.BATCHES[name])
    if who == "torch":
        net = nets.Net(param)
        arrays = nets.random_inputs(net)
        runner = bench.Torch(net, threads, False, True)
        for blob in [*net.blob_list, *net.learnable_params]:    # PyTorch's net knows the blobs by name only
            blob.data_memory.recycle(), blob.diff_memory.recycle()
    else:
        imported = 0
        runner = bench.Minicaffe(param, threads, None if who == "none" else who)
        arrays = nets.random_inputs(runner.net)
    runner.fill(arrays)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")   # resets the peak
    for _ in range(steps):
        runner.step()
    print(resident("VmHWM") - imported)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="*", default=["caffenet", "googlenet", "resnet50"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", choices=WHO, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.nets[0], options.threads, options.steps)
        return
    rows = {}
    print("| net | minicaffe, MiB | without a plan | PyTorch | ratio |\n|---|---|---|---|---|")
    for name in options.nets:
        found = {}
        for who in WHO:
            numbers = ["--threads", str(options.threads), "--steps", str(options.steps)]
            command = [sys.executable, __file__, name, "--child", who, *numbers]
            run = subprocess.run(command, check=who != "torch", stdout=subprocess.PIPE, text=True)
            found[who] = float(run.stdout) if run.returncode == 0 else None
        rows[name] = found
        peer = [f"{found['torch']:.0f}", f"{found['memory'] / found['torch']:.2f}"] if found["torch"] else ["-", "-"]
        print(f"| {name} | {found['memory']:.0f} | {found['none']:.0f} | {' | '.join(peer)} |", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
