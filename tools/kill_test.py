"""Kill trainings at random moments and look at what they leave: every visible file must load, every resume must continue.

    python tools/kill_test.py --kills 50 --format HDF5

A small training (``minicaffe train``) takes a snapshot after every iteration. It is killed (SIGKILL) again and again and
resumed from the newest state it left. At the end its weights must equal, bit for bit, those of a training that was never
disturbed.
"""

import argparse
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NET = """
name: "killed"
layer { name: "data" type: "DummyData" top: "x" dummy_data_param {
  shape { dim: 8 dim: 30 } data_filler { type: "gaussian" } } }
layer { name: "label" type: "DummyData" top: "y" dummy_data_param {
  shape { dim: 8 dim: 30 } data_filler { type: "uniform" min: -1 max: 1 } } }
layer { name: "w" type: "Parameter" top: "w" parameter_param { shape { dim: 8 dim: 30 } } }
layer { name: "sum" type: "Eltwise" bottom: "x" bottom: "w" top: "s" }
layer { name: "drop" type: "Dropout" bottom: "s" top: "d" }
layer { name: "loss" type: "EuclideanLoss" bottom: "d" bottom: "y" top: "loss" }
"""
SOLVER = """
net: "{folder}/net.prototxt"
type: "Adam" base_lr: 0.01 lr_policy: "inv" gamma: 0.01 power: 0.5 momentum: 0.9 weight_decay: 0.001
max_iter: {iterations} snapshot: 1 snapshot_prefix: "{folder}/s" snapshot_format: {format} random_seed: 1
"""


def prepare(folder, form, iterations):
    """Write net and solver into `folder`; return the path of the solver."""
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER.format(folder=folder, format=form, iterations=iterations))
    return folder / "solver.prototxt"


def start(solver, state=None):
    """Start a training process, which writes to train.log beside the solver."""
    resume = [f"--snapshot={state}"] if state else []
    with open(solver.parent / "train.log", "ab") as log:
        return subprocess.Popen([sys.executable, "-m", "minicaffe", "train", f"--solver={solver}", *resume],
                                cwd=solver.parent, stdout=log, stderr=log)


def finish(solver, state=None):
    """Run a training to its end."""
    status = start(solver, state).wait()
    log = (solver.parent / "train.log").read_text()
    assert status == 0, f"the training from {state or 'the start'} failed:\n{log[-2000:]}"


def states(folder):
    """Return the state files by iteration."""
    found = {int(re.search(r"_iter_(\d+)", path.name)[1]): path for path in folder.glob("s_iter_*.solverstate*")}
    return dict(sorted(found.items()))


def check_files(solver, folder, seen):
    """Load every model and state in `folder` that is not in `seen` yet; return how many."""
    from minicaffe.solver import load_solver
    checker = load_solver(solver)
    new = [path for path in sorted(folder.glob("s_iter_*")) if path not in seen]
    for path in new:
        if ".solverstate" in path.name:
            checker.restore(path)
        else:
            checker.net.copy_from(str(path))
        seen.add(path)
    return len(new)


def final_weights(solver, folder, iterations):
    """Return the weights of the last state."""
    from minicaffe.solver import load_solver
    loaded = load_solver(solver)
    loaded.restore(states(folder)[iterations])
    return [blob.cpu_data.tobytes() for blob in loaded.net.learnable_params + loaded.history]


def run(kills, form="BINARYPROTO", iterations=None, seed=0, report=print):
    """Kill `kills` times, then let the training end, and compare it with an undisturbed one.

    Raises
    ------
    AssertionError
        If a training fails or the resumed one ends with other bits. A file that does not load raises minicaffe's errors.
    """
    chance = random.Random(seed)
    iterations = iterations or 60 * (kills + 1)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        folder, seen, loaded = Path(first), set(), 0
        solver = prepare(folder, form, iterations)
        for kill in range(kills):
            before = max(states(folder), default=0)
            process = start(solver, states(folder).get(before))
            while process.poll() is None and max(states(folder), default=0) == before:
                time.sleep(0.005)  # past the start: kill it while it writes, not while it imports
            assert process.poll() is None, f"the training ended by itself:\n{(folder / 'train.log').read_text()[-2000:]}"
            time.sleep(chance.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
            process.wait()
            loaded += check_files(solver, folder, seen)
            left = len(list(folder.glob(".s_iter_*.tmp")))
            report(f"kill {kill + 1}: at iteration {max(states(folder))}, {loaded} files loaded, {left} temporary files left")
        finish(solver, states(folder)[max(states(folder))])
        check_files(solver, folder, seen)
        reference = prepare(Path(second), form, iterations)
        finish(reference)
        equal = final_weights(solver, folder, iterations) == final_weights(reference, Path(second), iterations)
        assert equal, "the killed and resumed training ended with other weights than the undisturbed one"
        report(f"{kills} kills, {len(seen)} files, all whole; weights equal those of an undisturbed training bit for bit")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--format", choices=["BINARYPROTO", "HDF5"], default="BINARYPROTO")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    run(options.kills, options.format, seed=options.seed)


if __name__ == "__main__":
    main()
