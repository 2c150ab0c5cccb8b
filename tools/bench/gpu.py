"""minicaffe on a GPU against PyTorch and CuPy, by turns in one run.

    python tools/bench/gpu.py [--device gpu|sim] [--part NAME ...] [--json FILE] [--limit SECONDS]

Each part runs in a process of its own: pointwise, strided, host, gemm, lenet, resnet. With ``--device sim`` the sizes are tiny
and the figures mean nothing: a rehearsal of the script. Times are medians of turns, wall clock around loops that end with the
device idle, in both orders; a peer that is missing is named with the reason. Aims are those of docs/benchmarks.md.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_operations as operations  # noqa: E402
import gpu_training as training  # noqa: E402
from turns import Rows, find  # noqa: E402

PARTS = {"pointwise": operations.pointwise, "strided": operations.strided, "host": operations.host, "gemm": operations.gemm,
         "lenet": training.lenet, "resnet": training.resnet}
# PyTorch computes whole nets with TF32, too.
ENVIRONMENT = {"gemm": {"MINICAFFE_CUBLAS": "/there/is/none"}, "lenet": {"MINICAFFE_PRECISION": "tf32"},
               "resnet": {"MINICAFFE_PRECISION": "tf32"}}


def run_part(options):
    """Measure one part in this process and write its rows."""
    import minicaffe
    minicaffe.set_mode_gpu()
    rows = Rows(options.device == "sim")
    try:
        PARTS[options.child](options, rows)
    finally:
        Path(options.json).write_text(json.dumps(rows.rows, indent=1) + "\n")


def versions(options):
    """What took part."""
    found = {"device": options.device}
    if options.device == "gpu":
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                              capture_output=True, text=True)
        found["nvidia_smi"] = done.stdout.strip()
        for name in "torch", "cupy":
            module = find(name)
            found[name] = module if isinstance(module, str) else module.__version__
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["gpu", "sim"], default="gpu")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this one; may be given several times")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mib", type=int, default=256, help="of each tensor in the pointwise part")
    parser.add_argument("--gemm", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64, help="of ResNet-50")
    parser.add_argument("--limit", type=float, default=100, help="seconds that one part may take")
    parser.add_argument("--json", metavar="FILE", default="bench_gpu.json")
    parser.add_argument("--child", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["MINICAFFE_DEVICE"] = options.device
    if options.child:
        return run_part(options)
    results = {"versions": versions(options), "rehearsal": options.device == "sim", "rows": [], "failed": {}}
    if options.device == "sim":
        print("rehearsal on the simulated device: the figures mean nothing", flush=True)
    for part in options.part or PARTS:
        print(f"== {part}", flush=True)
        file = Path(f"{options.json}.{part}")
        file.unlink(missing_ok=True)
        arguments = [sys.executable, __file__, "--child", part, "--json", str(file)]
        for name in "device", "rounds", "mib", "gemm", "batch":
            arguments += [f"--{name}", str(getattr(options, name))]
        try:
            done = subprocess.run(arguments, env={**os.environ, **ENVIRONMENT.get(part, {})}, timeout=options.limit,
                                  stderr=subprocess.PIPE, text=True)
            if done.returncode:
                results["failed"][part] = done.stderr[-2000:] or f"status {done.returncode}"
        except subprocess.TimeoutExpired:
            results["failed"][part] = f"not done within {options.limit:g} s"
        if part in results["failed"]:
            print(f"FAILED: {results['failed'][part]}", flush=True)
        if file.exists():
            results["rows"] += [{"part": part, **row} for row in json.loads(file.read_text())]
            file.unlink()
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
