"""minicaffe on a GPU against PyTorch and CuPy, by turns in one run.

    python tools/bench/gpu.py [--device gpu|sim] [--only REGEX] [--json FILE] [--minutes 8] [--limit SECONDS] [--table]

Each part runs in a process of its own: the operations of gpu_operations.py (pointwise, strided, host, gemm, engines, and the
layers of nets by precision, "layers bf16"), then the nets of gpu_nets.py by precision ("resnet50 tf32"), of which ``--table``
measures only what is in the table that gpu_table.py makes of the JSON, and which is printed at the end. A row is printed and
written as soon as it is measured, so that a run that is cut off has the rows until then; a part that is not done within its limit
is named, and so are those that no time was left for. One row of a net has the times of its steps (``minicaffe time --json``).
With ``--device sim`` the sizes are tiny and the figures mean nothing: a rehearsal of the script. Times are medians of turns, wall
clock around loops that end with the device idle, in both orders; a peer that is missing is named with the reason. Aims are those
of docs/benchmarks.md.
"""

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_nets  # noqa: E402
import gpu_operations as operations  # noqa: E402
import gpu_table  # noqa: E402
from turns import Rows, find, write_json  # noqa: E402

PARTS = {made.__name__: made for made in (operations.pointwise, operations.strided, operations.host, operations.gemm,
                                          operations.engines)}
PARTS |= {f"layers {precision}": operations.layers for precision in ("tf32", "bf16")}
PARTS |= {f"{net} {precision}": functools.partial(gpu_nets.measure, net, precision)
          for precision in gpu_nets.PRECISIONS for net in gpu_nets.BATCHES}


def environment(part):
    """The variables of a part's process."""
    precision = part.partition(" ")[2] or "float32"
    found = {**os.environ, "MINICAFFE_PRECISION": precision}
    if part in ("gemm", "pointwise", "host"):   # our kernels, not those of libraries
        found |= {"MINICAFFE_CUBLAS": "/there/is/none", "MINICAFFE_ENGINE": "caffe"}
    return found


def run_part(options):
    """Measure one part in this process."""
    import minicaffe
    minicaffe.set_mode_gpu()
    PARTS[options.child](options, Rows(options.json, options.child, options.device == "sim"))


def versions(options):
    """What took part."""
    found = {"device": options.device}
    if options.device == "gpu":
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                              capture_output=True, text=True)
        found["nvidia_smi"] = done.stdout.strip()
    for name in "torch", "cupy":
        module = find(name, gpu=options.device == "gpu")
        found[name] = module if isinstance(module, str) else module.__version__
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["gpu", "sim"], default="gpu")
    parser.add_argument("--only", default="", metavar="REGEX", help="the parts with this in their names")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mib", type=int, default=256, help="of each tensor in the pointwise part")
    parser.add_argument("--gemm", type=int, default=4096)
    parser.add_argument("--minutes", type=float, default=60, help="no part begins later, or ends later")
    parser.add_argument("--limit", type=float, default=100, help="seconds that one part may take")
    parser.add_argument("--table", action="store_true", help="of nets only what the table has")
    parser.add_argument("--json", metavar="FILE", default="bench_gpu.json")
    parser.add_argument("--child", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["MINICAFFE_DEVICE"] = options.device
    if options.child:
        return run_part(options)
    end = time.monotonic() + 60 * options.minutes
    write_json(options.json, {"versions": versions(options), "rehearsal": options.device == "sim", "rows": [], "failed": {}})
    if options.device == "sim":
        print("rehearsal on the simulated device: the figures mean nothing", flush=True)
    failed = {}
    for part in filter(re.compile(options.only).search, PARTS):
        limit = min(options.limit, end - time.monotonic())
        print(f"== {part}", flush=True)
        arguments = [sys.executable, __file__, "--child", part]
        for name in "device", "rounds", "mib", "gemm", "json":
            arguments += [f"--{name}", str(getattr(options, name))]
        arguments += ["--table"] * options.table
        try:
            if limit < 5:
                raise subprocess.TimeoutExpired(arguments, limit)
            done = subprocess.run(arguments, env=environment(part), timeout=limit, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                failed[part] = done.stderr[-2000:] or f"status {done.returncode}"
            elif done.stderr:   # such as warnings of plans of cuDNN that fail
                print(done.stderr[-2000:], flush=True)
        except subprocess.TimeoutExpired:
            failed[part] = f"not done within {limit:.0f} s" if limit >= 5 else "no time was left"
        if part in failed:
            print(f"FAILED: {failed[part]}", flush=True)
        write_json(options.json, {**json.loads(Path(options.json).read_text()), "failed": failed})
    rows = json.loads(Path(options.json).read_text())["rows"]
    if any("net" in row for row in rows):
        print("", *gpu_table.table(rows), sep="\n", flush=True)
    if failed:
        print(f"not done: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
