"""Ranks that die, hang, leave, differ or get wrong numbers: all end soon, and the message says which rank it was and why."""

import gc
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import ranks

from minicaffe.cli.signals import Signals
from minicaffe.errors import Error
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

NET = """
layer { name: "data" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "%(folder)s/%(list)s" batch_size: 4 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
pytestmark = pytest.mark.slow(30)    # all together
SILENCE = 2.0   # seconds: less than a user's, so that the tests take less long, and what a busy machine does not reach


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    random = np.random.default_rng(0)
    for name, rows in (("list", 40), ("short", 36)):
        data = random.random((rows, 6), np.float32)
        if name == "list":
            data[13] = np.nan       # the second rank's, in iteration 1
        ranks.write_rows(folder, name, name, data=data, label=random.integers(0, 3, rows))
    return str(folder)


def solver_of(folder, records="short", fields=""):
    param = parse_text(f'base_lr: 0.1 lr_policy: "fixed" random_seed: 3 {fields}', caffe_pb2.SolverParameter)[0]
    param.net_param.CopyFrom(parse_text(NET % {"folder": folder, "list": records}, caffe_pb2.NetParameter)[0])
    return create_solver(param)


def program(folder, what):
    """What a rank does that has no trouble: it trains on; rank 1 does `what` after three iterations."""
    from minicaffe.parallel import heartbeat
    rank = __import__("mpi4py.MPI").MPI.COMM_WORLD.rank
    solver = solver_of(folder)
    heartbeat.Heartbeat.__init__.__defaults__ = (600, SILENCE, SILENCE / 4)
    solver.distribute(timeout=1.5 if what == "hang" else 600)
    solver.step(3)
    if what == "sleep":
        os.write(1, f"I am {os.getpid()}\n".encode())    # at once, or lines of both are mixed
        end = time.monotonic() + SILENCE + 2.5
        while solver.group.broadcast_from_root(time.monotonic() < end):
            solver.step(1)
        time.sleep(1.5 * SILENCE * rank)      # the last takes longer, and no rank reports the first
        os.write(1, b"done\n")
        return
    if rank == 1:
        if what == "raise":
            raise ValueError("the camera is gone")
        if what == "leave":
            return
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if what == "hang":
            solver.add_callback(lambda: time.sleep(60), lambda: None)
    solver.step(10 ** 9)


SAID = {"raise": "rank 1 of 2 (HOST): ValueError: the camera is gone; all ranks end",
        "leave": "rank 1 of 2 (HOST) has ended or left the group, and rank 0 of 2 (HOST) waits for it at ",
        "stop": "rank 1 of 2 (HOST) has sent no heartbeat for 2 s: ",
        "hang": "rank 1 of 2 (HOST) has made no progress for 1.5 s; it is at "}


def start(n, *arguments):
    return ranks.start(n, __file__, *arguments, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))


@pytest.mark.parametrize("what", SAID)
def test_rank_in_trouble_named(folder, what):
    process = start(2, folder, what)
    output, errors = ranks.finish(process)
    assert process.returncode == 1
    said = ranks.said(re.sub(r"\([^ ]*?\)", "(HOST)", errors))
    assert len(said) == 1 and said[0].startswith(SAID[what]), errors
    if what == "raise":
        assert "Traceback" in errors
    if what == "hang":
        assert "test_trouble_of_ranks.py:" in said[0]


def test_sleeping_ranks_name_none(folder):
    process = start(2, folder, "sleep")
    lines = [process.stdout.readline() for _ in range(2)]
    pids = [int(line.split()[2]) for line in lines]
    for number in signal.SIGSTOP, signal.SIGCONT:
        for pid in pids:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(SILENCE + 1)
    output, errors = ranks.finish(process)
    assert process.returncode == 0 and "minicaffe:" not in errors and output.count("done") == 2, errors


def differ(folder):
    """What rank 0 says when the ranks' records, solvers or nets differ, and what a path alone does."""
    rank = __import__("mpi4py.MPI").MPI.COMM_WORLD.rank
    found = []
    for records, fields, change in (("short", "", None), ("list", "", None), ("short", "momentum: 0.5", None), ("short", "", "lr")):
        solver = solver_of(folder, *((records, fields) if rank == 1 else ()))
        if change and rank == 1:
            solver.net.layers[1].param.inner_product_param.bias_term = False
        try:
            solver.distribute()
            found.append(None)
        except Error as error:
            found.append(re.sub(r"\([^ ]*?\)", "(HOST)", str(error)))
        del solver
        gc.collect()
    return found


def test_what_differs_between_ranks_is_named(folder):
    for found in ranks.run(3, __file__, "differ", folder):
        same, records, fields, net = found
        assert same is None
        assert records == ("the number of records of layer 'data' of the train net differs: 40 on rank 1 of 3 (HOST), 36 on the others; "
                           "it must be the same on all ranks")
        assert fields.startswith("momentum of the solver differs: 0.5 on rank 1 of 3 (HOST), nothing on the others")
        assert net.startswith("layer 'ip' of the train net differs: ")


def meet_nan(folder, effect):
    """What a rank's log and its error say of a record that is not finite, on rank 1 alone."""
    solver = solver_of(folder, "list")
    solver.distribute()
    solver.nan = effect
    messages = ranks.heard("minicaffe.solver", "WARNING")
    try:
        solver.step(3)
    except Error as error:
        messages.append(str(error))
    return [re.sub(r"\([^ ]*?\)", "(HOST)", line) for line in messages]


def test_nan_names_its_rank(folder):
    first, second = ranks.run(2, __file__, "meet_nan", folder, "stop")
    assert first[0].startswith("Iteration 1: the loss is nan, with learning rate 0.1; on rank 1 of 2 (HOST) the first blob that is not "
                               "finite is 'data' of layer 'data' (HOST); correct the data")
    assert re.match("iteration 2: parameters are no longer finite, .*, after the loss of rank 1 of 2 .HOST.; correct the data", first[-1])
    assert second == first[1:]     # rank 0 alone warns


def test_second_interrupt_does_not_wait():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)     # the terminal and mpiexec both pass one on
        assert [signals.poll(), signals.poll()] == ["stop", "none"]
        signals.first_interrupt -= 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with Signals("none") as signals:
        signals.first_interrupt = 0
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert [signals.poll(), signals.poll(), signals.poll(), signals.terminated] == ["stop", "none", "none", False]


def test_kills_leave_whole_snapshots(tmp_path, monkeypatch):
    ranks.mpiexec()
    tools = Path(__file__).resolve().parents[2] / "tools"
    monkeypatch.syspath_prepend(tools)
    import kill_ranks
    lines = []
    assert not kill_ranks.run(3, 2, tmp_path, seed=9, show=lines.append), lines     # SIGKILL, SIGTERM, SIGKILL
    assert len(lines) == 4


if __name__ == "__main__":
    program(*sys.argv[1:])
