"""Two ranks of one thread against one process of two threads, and against two processes of PyTorch (DDP): by turns in one run.

    python tools/bench/distributed.py RESULT.json [--only NET] [--seconds 20] [--write]

A training step (forward, backward, exchange, SGD with momentum and weight decay) of the nets of `models/` with random pictures of
their size, the same global batch on all sides. PyTorch's DDP joins its processes by gloo, with its own sizes of buckets, eagerly,
in NCHW and channels-last; the better counts. Every side's processes sleep while another's turn runs: each waits for a line from a
socket, none in MPI or gloo. Measures what RESULT.json lacks, or the net that `--only` names; `--write` puts the table into
docs/benchmarks.md.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import bench  # noqa: E402
import nets  # noqa: E402
import report  # noqa: E402

from minicaffe.parallel import launch  # noqa: E402

# Nets with the batch of all ranks together. 32 is what BVLC's GoogLeNet trains with; of 8 what ranks add is a larger part.
CASES = [("googlenet", 8), ("googlenet", 32), ("resnet50", 8), ("resnet50", 32), ("lenet", 64), ("cifar10_quick", 100)]
RANKS = 2
ONE, OURS, THEIRS = "one process, 2 threads", "2 ranks of 1 thread", ("PyTorch DDP NCHW", "PyTorch DDP channels-last")
PATIENCE = 120      # seconds until a process must have built its net
# Open MPI starts no more processes than there are processors, and none for root, unless asked.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def mpiexec(n, *words):
    """The command that starts `n` processes of Python, by the mpiexec that fits mpi4py."""
    return [launch.mpiexec(), "-n", str(n), sys.executable, *map(str, words)]


class Together:
    """Processes that take steps at the same time on request, and sleep on a socket in between.

    Parameters
    ----------
    who, net : str
    batch : int
        Of each process.
    """

    def __init__(self, who, net, batch):
        self.folder = tempfile.TemporaryDirectory()
        address = f"{self.folder.name}/socket"
        count, threads = (1, RANKS) if who == ONE else (RANKS, 1)
        words = [__file__, "--steps", json.dumps([who, net, batch, threads, address])]
        environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            listener.settimeout(1)
            if who == OURS:
                self.processes = [subprocess.Popen(mpiexec(count, *words), env=environment)]
            else:       # PyTorch finds the others by a file
                self.processes = [subprocess.Popen([sys.executable, *words], env={**environment, "RANK": str(rank)})
                                  for rank in range(count)]
            self.links = []
            for _ in range(count):
                self.links.append(self._accept(listener, who).makefile("rw"))
        if not all(link.readline() for link in self.links):     # a line when the net is built
            self._fail(who)

    def _accept(self, listener, who):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and all(process.poll() is None for process in self.processes):
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            link.settimeout(None)
            return link
        self._fail(who)

    def _fail(self, who):
        self.close()
        raise RuntimeError(f"a process of '{who}' ended or did not begin")

    def seconds(self, calls):
        """What so many steps take, of the process that takes longest."""
        for link in self.links:
            link.write(f"{calls}\n")
            link.flush()
        return max(float(link.readline()) for link in self.links)

    def close(self):
        for link in self.links:
            link.close()
        for process in self.processes:
            try:
                process.wait(10)    # they end when their link is closed
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
        self.folder.cleanup()


def steps(who, net, batch, threads, address):
    """What a process of `Together` does: for each number that comes, so many steps; what they took goes back."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    link = link.makefile("rw")
    step = (_torch if who in THEIRS else _ours)(who, net, batch, threads, address)
    step()
    print("ready", file=link, flush=True)
    for line in link:
        print(nets.seconds_of(step, int(line)), file=link, flush=True)


def _ours(who, net, batch, threads, address):
    ours = bench.Minicaffe(nets.training_net(net, batch), threads, plan="memory")
    ours.fill(nets.random_inputs(ours.net))
    if who == OURS:
        ours.solver.distribute()
    ours.step()
    if not np.isfinite(ours.solver.smoothed_loss):
        raise ArithmeticError(f"{net}: the loss is {ours.solver.smoothed_loss}")
    return ours.step


def _torch(who, net, batch, threads, address):
    import torch
    from torch.nn.parallel import DistributedDataParallel
    torch.distributed.init_process_group("gloo", init_method=f"file://{address}.store", rank=int(os.environ["RANK"]),
                                         world_size=RANKS)
    ours = bench.Minicaffe(nets.training_net(net, batch), 1)
    runner = bench.Torch(ours.net, threads, who.endswith("channels-last"), fused=True)
    runner.fill(nets.random_inputs(ours.net))
    runner.net = DistributedDataParallel(runner.net)
    return runner.step


def measure(net, batch, seconds):
    """What is known of a net afterwards, for JSON."""
    made, missing = {}, {}
    try:
        for who in (ONE, OURS, *THEIRS):
            try:
                made[who] = Together(who, net, batch if who == ONE else batch // RANKS)
            except RuntimeError as error:
                if who in (ONE, OURS):
                    raise
                missing[who] = str(error)
        processors = nets.Processors(RANKS, nets.PATIENCE * seconds)
        times = nets.by_turns(made, seconds, processors, turn=1)    # one step alone is slower: ranks have slept
    finally:
        for side in made.values():
            side.close()
    quartiles = {who: statistics.quantiles(ms, n=4, method="inclusive") for who, ms in times.items()}
    return {"net": net, "batch": batch, **nets.host(), "missing": missing, "rounds": len(times[ONE]), **processors.count,
            "ms": {who: [round(ms, 4) for ms in found] for who, found in quartiles.items()}}


def table(rows):
    """The table in Markdown."""
    lines = [f"| net, global batch | {ONE}, ms (quartiles) | {OURS}, ms (quartiles) | throughput | PyTorch DDP, ms | step |",
             "|---" * 6 + "|"]
    for row in rows:
        cells = ["{1:.2f} ({0:.2f} to {2:.2f})".format(*row["ms"][who]) for who in (ONE, OURS)]
        ours = row["ms"][OURS][1]
        theirs = [row["ms"][who][1] for who in THEIRS if who in row["ms"]]
        against = [f"{min(theirs):.2f}", f"{ours / min(theirs):.2f}x"] if theirs else ["", ""]
        lines.append(" | ".join([f"| {report.label(row)}", *cells, f"{row['ms'][ONE][1] / ours:.2f}x", *against]) + " |")
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:2] == ["--steps"]:
        return steps(*json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    parser.add_argument("--only", choices=dict(CASES), action="append", help="measure this net, known or not; may be repeated")
    parser.add_argument("--seconds", type=float, default=20, help="of measuring for each net, about")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    known = json.loads(options.result.read_text()) if options.result.exists() else {}
    names = {f"{net}, {batch}": (net, batch) for net, batch in CASES}
    for name, (net, batch) in names.items():
        if net in options.only if options.only else name not in known:
            known[name] = measure(net, batch, options.seconds)
            options.result.write_text(json.dumps(known, indent=1) + "\n")
            print(name, known[name]["ms"], *known[name]["missing"].values(), flush=True)
    rows = [known[name] for name in names if name in known]
    text = f"{report.measured(rows)}\n{table(rows)}"
    print(text)
    if options.write:
        page = report.DOCS / "benchmarks.md"
        page.write_text(report.written(page.read_text(), "ranks", text))


if __name__ == "__main__":
    main()
