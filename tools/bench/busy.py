"""The default number of threads against one thread, on an idle machine and beside other programs.

    python tools/bench/busy.py models/lenet/net.prototxt [--batch 64] [--load 4] [--rounds 15] [--json FILE]

Prints milliseconds of a training step with one thread and with all, by turns in one process, first as the machine is, then beside
`--load` programs that only compute. Aims: beside others all threads take at most 1.5x the time of one; idle they are faster.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import minicaffe

sys.path.insert(0, str(Path(__file__).parent))
from bench import runners
from turns import samples


def by_turns(run, counts, rounds, seconds):
    """Median, least and greatest milliseconds of `run` for each number of threads, which take turns."""
    def with_threads(n):
        minicaffe.set_num_threads(n)
        run()

    times = samples({n: functools.partial(with_threads, n) for n in counts}, lambda: None, rounds, seconds)
    return {n: tuple(1000 * f(t) for f in (statistics.median, min, max)) for n, t in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prototxt")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--load", type=int, default=4, help="programs that compute beside the second part")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="time of one turn")
    parser.add_argument("--forward", action="store_true", help="forward instead of a training step")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()

    threads = minicaffe.get_num_threads()
    ours, _ = runners(options.prototxt, options.batch, threads, which="minicaffe")
    run = ours.forward if options.forward else ours.step
    rows = []
    print(f"{options.prototxt}, batch {options.batch}; load average at the start: {os.getloadavg()[0]:.2f}\n")
    print(f"| programs beside | 1 thread ms (least to greatest) | {threads} threads ms | ratio |\n|---|---|---|---|")
    for load in (0, options.load):
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            times = by_turns(run, [1, threads], options.rounds, options.seconds)
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        one, all_of_them = times[1], times[threads]
        rows.append({"load": load, "one_thread_ms": one, "threads": threads, "ms": all_of_them, "ratio": all_of_them[0] / one[0]})
        shown = ["{:.2f} ({:.2f} to {:.2f})".format(*t) for t in (one, all_of_them)]
        print(f"| {load} | {shown[0]} | {shown[1]} | {rows[-1]['ratio']:.2f}x |", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"options": vars(options), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
