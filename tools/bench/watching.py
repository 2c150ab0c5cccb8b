"""What train --watch costs: processor time of LeNet's iterations with it over that without, by turns.

    python tools/bench/watching.py [--rounds 9]

Processor time of one thread and not seconds, so that a busy machine may measure it, too; a factor is the median over the rounds.
"""

import argparse
import statistics
import time
from contextlib import closing, nullcontext

from minicaffe import set_num_threads
from minicaffe.inspection.watch import Watch
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

ITERATIONS = 100    # of each turn; solver.prototxt displays as often
SOLVER = 'net: "models/lenet/net.prototxt" base_lr: 0.01 momentum: 0.9 lr_policy: "fixed" random_seed: 1'


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    set_num_threads(1)
    solver = create_solver(parse_text(SOLVER, caffe_pb2.SolverParameter)[0], plan="memory")
    ways = {
        "without": nullcontext,
        "--watch, every 100": lambda: closing(Watch(solver, ITERATIONS, keep=False)),
        "--watch 1": lambda: closing(Watch(solver, 1, keep=False)),
    }
    solver.step(ITERATIONS)
    factors = {name: [] for name in ways}
    for turn in range(rounds):
        spent = {}
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            solver.iter = 0     # a watch measures the first of these, and not another
            with ways[name]():
                begin = time.process_time()
                solver.step(ITERATIONS)
                spent[name] = time.process_time() - begin
        for name, seconds in spent.items():
            factors[name].append(seconds / spent["without"])
        plain = spent["without"] / ITERATIONS * 1e3
        print(f"round {turn + 1}: {plain:.2f} ms an iteration without", flush=True)
    for name, found in factors.items():
        print(f"{name:20} {statistics.median(found):.2f}x ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
