#!/usr/bin/env python
"""Feed minicaffe with broken and hostile files, and look for what is no error of minicaffe.errors.

    python tools/fuzz.py --seconds 60 --seed 1        the same cases each time, as many as the time allows
    python tools/fuzz.py --kind net --cases 5000
    python tools/fuzz.py --replay tests/fuzz/corpus/net-tile-of-nothing.prototxt

A case is well met if it works or raises a minicaffe.errors.Error. It is a failure if the process dies, another exception
comes out, it takes more than 10 seconds of processor time, or memory grows by more than 1 GiB where
MINICAFFE_MAX_BLOB_BYTES is 1 MiB. Failures are written to a folder, from where --replay runs them again; the exit status is
then 1. Needs Linux. See docs/untrusted_files.md.
"""

import argparse
import base64
import collections
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read by minicaffe and OpenCV when they are imported
os.environ["OPENCV_LOG_LEVEL"] = "SILENT"
os.environ.setdefault("MINICAFFE_MAX_BLOB_BYTES", "1MiB")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzzing import pool, targets  # noqa: E402

EXAMPLES = 2  # files kept of failures at one place


def main():
    """Run the command; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and their folders go too
    all_kinds = targets.kinds()
    options = parse_options(list(all_kinds))
    os.environ["MINICAFFE_DEVICE"] = options.device
    if options.replay:
        return replay(all_kinds, options)
    if options.seeds:
        return run_seeds(all_kinds, options)
    return search(all_kinds, options)


def parse_options(names):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, help="stop after this time; 60 unless --cases is given")
    parser.add_argument("--cases", type=int, help="stop after so many cases")
    parser.add_argument("--seed", type=int, default=1, help="cases are a function of this number")
    parser.add_argument("--kind", action="append", choices=names, help="only such cases; may be given several times")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--output", type=Path, default=Path("fuzz-failures"), help="folder for what failed")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="run these cases; the kind is the name up to '-'")
    parser.add_argument("--seeds", action="store_true", help="run the nets and solvers as they are, which must work")
    parser.add_argument("--device", choices=["cpu", "sim"], default="cpu",
                        help="sim: the simulated GPU, which finds every access beyond a block; much slower")
    parser.add_argument("--patience", type=float, default=pool.CPU_SECONDS, help="seconds of processor time of a case")
    options = parser.parse_args()
    options.kind = options.kind or names
    if options.seconds is None and options.cases is None:
        options.seconds = 60.0
    return options


def search(all_kinds, options):
    """Run cases, keep what fails, and report at the end; return the exit status."""
    started = time.monotonic()
    counts, places = collections.Counter(), collections.Counter()
    slowest, largest = {"seconds": -1}, {"growth": -1}
    for result in pool.results(all_kinds, options.kind, options.seed, options.jobs, options.seconds, options.cases,
                               options.patience):
        counts[result["kind"], result["outcome"]] += 1
        slowest = max(slowest, result, key=lambda r: r["seconds"])
        largest = max(largest, result, key=lambda r: r["growth"])
        if result["outcome"] in pool.FAILURES:
            place = result["outcome"], result["where"]
            places[place] += 1
            if places[place] <= EXAMPLES:
                print(f"{result['outcome']}: {result['where']}: {keep(all_kinds, options, result)}", flush=True)
    report(counts, places, slowest, largest, time.monotonic() - started)
    return 1 if places else 0


def keep(all_kinds, options, result):
    """Write a failed case, and beside it what happened; return its path."""
    kind, data = result["kind"], base64.b64decode(result["data"]) if "data" in result else b""
    if kind not in all_kinds:
        return f"no case ran: {result['detail']}"
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{kind}-{hashlib.sha256(data).hexdigest()[:10]}.{all_kinds[kind].extension}"
    path.write_bytes(data)
    path.with_suffix(path.suffix + ".txt").write_text(
        f"{result['outcome']} {result['where']}\nseed {options.seed}, case {result['number']}\n{result['detail']}\n")
    return path


def report(counts, places, slowest, largest, seconds):
    """Print the summary."""
    total = sum(counts.values())
    print(f"\n{total} cases in {seconds:.0f} s, {total / seconds:.0f} a second")
    for kind in sorted({kind for kind, _ in counts}):
        found = sorted(((n, outcome) for (k, outcome), n in counts.items() if k == kind), reverse=True)
        print(f"  {kind:12} {sum(n for n, _ in found):7}   " + ", ".join(f"{outcome} {n}" for n, outcome in found))
    if total:
        print(f"slowest: {slowest['seconds']:.2f} s, case {slowest['number']} ({slowest['kind']})")
        print(f"largest: {largest['growth'] >> 20} MiB, case {largest['number']} ({largest['kind']})")
    for (outcome, where), n in places.most_common():
        print(f"FAILED {n:5} {outcome}: {where}")


def replay(all_kinds, options):
    """Run the cases of files; return 1 if one fails."""
    given = []
    for path in options.replay:
        kind = path.name.partition("-")[0]
        if kind not in all_kinds:
            print(f"{path}: the name must begin with a kind and '-': {', '.join(all_kinds)}")
            return 2
        given.append((kind, path.read_bytes()))
    bad = 0
    for result in pool.replay(all_kinds, given, options.patience):
        failed = result["outcome"] in pool.FAILURES
        bad += failed
        print(f"{options.replay[result['number']]}: {'FAILED ' if failed else ''}{result['outcome']} {result['where']}\n"
              f"    {result['detail'].strip()}\n    {result['seconds']:.2f} s, {result['growth'] >> 20} MiB")
    return int(bad > 0)


def run_seeds(all_kinds, options):
    """Run the seeds that are text without a change; return 1 if one does not work."""
    seeds = [(name, kind, data) for kind in all_kinds for name, data in all_kinds[kind].seeds]
    bad = 0
    for result in pool.replay(all_kinds, [(kind, data) for _, kind, data in seeds], options.patience):
        bad += result["outcome"] != "ok"
        print(seeds[result["number"]][0], result["outcome"], result["detail"])
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
