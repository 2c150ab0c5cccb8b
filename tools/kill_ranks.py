"""Kill, stop and end ranks of a training at random moments: all must end soon, and the last snapshot must load and continue.

    python tools/kill_ranks.py --kills 30 --ranks 4
    MPI4PY_LIBMPI=/path/to/libmpi.so.40 python tools/kill_ranks.py      # by another MPI, such as Open MPI

Several processes train together, with a snapshot after every tenth iteration. One of them gets a signal at a random moment:
SIGKILL, one time in six SIGSTOP, which lets it hang, one time in six SIGTERM, upon which all stop by themselves. Each round resumes
from what the one before left. Printed: which signal which rank got, how long until all had ended, mpiexec's exit status, the newest
snapshot. The exit status is 0 if all ended within 15 s, with a status other than 0, and no process and no broken snapshot was left.
"""

import argparse
import logging
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kill_test

from minicaffe.parallel import launch
from minicaffe.solver import load_solver

SECONDS = 15    # within which all must have ended
SIGNALS = (signal.SIGKILL,) * 4 + (signal.SIGSTOP, signal.SIGTERM)
# Open MPI starts no more processes than there are processors, and none for root, unless asked.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1"}


def start(solver, ranks, token, state=None, *options):
    """Start a training of several ranks, which writes to train.log beside the solver; `token` marks their environment."""
    command = [launch.mpiexec(), "-n", str(ranks), sys.executable, "-m", "minicaffe", "train", f"--solver={solver}", *options,
               *([f"--snapshot={state}"] if state else [])]
    with open(solver.parent / "train.log", "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=solver.parent,
                                env={**os.environ, **ENVIRONMENT, "KILL_RANKS": token})


def processes(token):
    """Return the processes that carry `token`, mpiexec's own among them: the rank of each, None where it is no rank."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdecimal() or (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            environment = dict(line.partition("=")[::2] for line in (folder / "environ").read_text().split("\0"))
        except (OSError, UnicodeDecodeError):   # it has ended since, or is another user's
            continue
        if environment.get("KILL_RANKS") == token:
            rank = environment.get("PMI_RANK", environment.get("OMPI_COMM_WORLD_RANK"))
            found[int(folder.name)] = int(rank) if rank is not None else None
    return found


def one_round(solver, ranks, chooser):
    """Start or resume a training, let a rank have a signal, and return what came of it, as a dict."""
    before = max(kill_test.states(solver.parent).items(), default=(-1, None))
    token = secrets.token_hex(8)
    process = start(solver, ranks, token, before[1])
    begin = time.monotonic()
    while max(kill_test.states(solver.parent), default=-1) <= before[0]:
        assert process.poll() is None and time.monotonic() < begin + 120, tail(solver)
        time.sleep(0.02)
    time.sleep(chooser.random())
    which = chooser.choice(SIGNALS)
    victim = chooser.randrange(ranks)
    pid, = (pid for pid, rank in processes(token).items() if rank == victim)
    os.kill(pid, which)
    begin = time.monotonic()
    try:
        status = process.wait(4 * SECONDS)
    except subprocess.TimeoutExpired:
        status = None
    took = time.monotonic() - begin
    left = processes(token)
    while left and time.monotonic() < begin + SECONDS:      # those that mpiexec has killed need a moment to be gone
        time.sleep(0.05)
        left = processes(token)
        took = time.monotonic() - begin
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    iteration = max(kill_test.states(solver.parent))
    return {"signal": which.name, "rank": victim, "seconds": took, "status": status, "left": len(left), "iteration": iteration}


def run(kills, ranks, folder, seed=0, show=print):
    """Do so many rounds; return those that went wrong.

    Raises
    ------
    AssertionError, Error
        If a snapshot does not load, or no training continues from the last.
    """
    solver = kill_test.prepare(folder, "BINARYPROTO", 10 ** 9)
    solver.write_text(solver.read_text().replace("snapshot: 1 ", "snapshot: 10 snapshot_after_train: true display: 0 "))
    chooser, wrong = random.Random(seed), []
    show(f"{'round':>5}  {'signal':<8} {'rank':>4} {'seconds':>8} {'status':>7} {'left':>5} {'newest snapshot':>16}")
    for number in range(kills):
        found = one_round(solver, ranks, chooser)
        newest = max(kill_test.states(folder).items())[1]
        load_solver(solver).restore(newest)
        good = found["seconds"] <= SECONDS and found["status"] and not found["left"]
        show(f"{number:5}  {found['signal']:<8} {found['rank']:4} {found['seconds']:8.2f} {found['status']!s:>7} {found['left']:5} "
             f"{found['iteration']:16}{'' if good else '  WRONG'}")
        if not good:
            wrong.append(found)
        for old in list(kill_test.states(folder).values())[:-2]:     # the folder stays small
            old.unlink()
            old.with_suffix(".caffemodel").unlink()
    iteration, state = max(kill_test.states(folder).items())
    status = start(solver, ranks, "", state, f"--max-iter={iteration + 20}").wait()
    assert status == 0 and iteration + 20 in kill_test.states(folder), tail(solver)
    return wrong


def tail(solver):
    return (solver.parent / "train.log").read_text()[-4000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.getLogger("minicaffe").setLevel(logging.ERROR)  # one process loads what several have written
    print(f"{launch.mpiexec()}, {args.ranks} ranks")
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(args.kills, args.ranks, Path(folder), args.seed, lambda line: print(line, flush=True))
        if wrong:
            print(tail(Path(folder, "solver.prototxt")))
    print(f"{args.kills - len(wrong)} of {args.kills} rounds ended as they should, and training continued from the last snapshot")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
