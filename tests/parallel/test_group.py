"""What ranks send each other, and what a process knows of how it was started."""

import os
import pickle
import threading
from types import SimpleNamespace

import pytest
import ranks
from fake_mpi import Job

from minicaffe.errors import ConfigError, NotFiniteError
from minicaffe.parallel import group as groups
from minicaffe.parallel import heartbeat, launch
from minicaffe.parallel.group import Group
from minicaffe.parallel.heartbeat import Heartbeat
from minicaffe.parallel.launch import LOCAL_RANKS, RANKS, SIZES, launched


def meet():
    from minicaffe.parallel.group import Group
    group = Group()
    try:
        group.agree({"the net": "lenet", "the weights": 7 if group.rank == 1 else 3})
        differs = None
    except ConfigError as error:
        differs = str(error)
    group.agree({"the net": "lenet"})
    return {"size": group.size, "all": group.gather(group.rank * 10), "first": group.broadcast_from_root(group.rank + 5),
            "name": group.name(1), "launched": launched(), "local": [group.local_rank, group.local_size], "differs": differs}


def test_ranks_tell_each_other_what_they_have_and_name_who_differs():
    found = ranks.run(3, __file__, "meet")
    assert [rank["local"] for rank in found] == [[0, 3], [1, 3], [2, 3]]
    for rank in found:
        assert (rank["size"], rank["all"], rank["first"], rank["launched"]) == (3, [0, 10, 20], 5, 3)
        assert rank["differs"].startswith(f"the weights differs: 7 on {rank['name']}, 3 on the others")


def test_errors_go_to_other_processes_whole():
    error = NotFiniteError("weights are not finite", remedy="lower the rate", since=7, file="solver.prototxt").at(field="nan")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is NotFiniteError and str(again) == str(error) and (again.since, again.remedy) == (7, "lower the rate")


@pytest.mark.parametrize("environment, count", [({}, 1), ({"PMI_SIZE": "4"}, 4), ({"OMPI_COMM_WORLD_SIZE": "2"}, 2),
                                                ({"PMI_SIZE": "four"}, 1), ({"SLURM_NTASKS": "8"}, 1),
                                                ({"SLURM_NTASKS": "8", "PMIX_RANK": "3"}, 8)])
def test_how_many_processes_were_started_together(monkeypatch, environment, count):
    for name in (*SIZES, "PMIX_RANK", "PMI_RANK", "PMI_FD", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launched() == count


@pytest.mark.parametrize("environment, numbers", [
    ({}, (0, 0)), ({"PMI_SIZE": "4", "PMI_RANK": "3"}, (3, 3)), ({"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1"}, (3, 1)),
    ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, (1, 0)),
    ({"SLURM_NTASKS": "8", "PMIX_RANK": "5", "SLURM_PROCID": "5", "SLURM_LOCALID": "2"}, (5, 2)),
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "2"}, (0, 0)),     # srun gives its numbers to every program
    ({"OMPI_COMM_WORLD_LOCAL_RANK": "3"}, (0, 0)), ({"PMI_SIZE": "1", "PMI_RANK": "0", "MPI_LOCALRANKID": "1"}, (0, 0))])
def test_the_place_of_a_process_among_those_started_together(monkeypatch, environment, numbers):
    for name in (*SIZES, *RANKS, *LOCAL_RANKS, "PMI_FD", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (launch.rank(), launch.local_rank()) == numbers


def test_a_process_that_ended_before_mpi_started_lets_nobody_wait_for_ever():
    if ranks.open_mpi():
        pytest.skip("Open MPI ends all itself then, and on a busy machine its mpiexec sometimes hangs after that (PMIX_ERR_UNREACH)")
    program = ("import sys; from minicaffe.parallel import launch; launch.MPI_START_TIMEOUT = 3; launch.rank() and sys.exit(3); launch.mpi()")
    process = ranks.start(2, "-c", program)
    _, errors = ranks.finish(process)
    assert process.returncode != 0
    assert "Timeout (0:00:03)!" in errors


@pytest.mark.parametrize("bound, processors", [([{0, 1}, {2, 3}, {4}], [2, 2, 1]), ([{0, 1, 2, 3}] * 3, [1, 1, 1]), ([{0, 1, 2, 3}, {2, 3}, {5, 6}], [2, 1, 2])])
def test_ranks_share_the_processors_that_they_may_both_use(monkeypatch, bound, processors):
    """Not those of ranks that mpiexec has bound to others; at least one for each."""
    job, mine = Job(3), threading.local()
    job.use(monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: bound[mine.rank], raising=False)
    monkeypatch.setattr(groups, "usable_processors", lambda: len(bound[mine.rank]))

    def run(rank):
        mine.rank = rank
        return Group(job.comm(rank)).processors()
    assert job.together(run) == processors


NAMES = "rank 1 of 2 (here)", "rank 0 of 2 (here)"


@pytest.mark.parametrize(("inside", "count", "progress", "latest"), [
    (True, 5, 10, 10), (True, 6, 100, 100), (False, 5, 100, 10), (False, 6, 100, 10)])
def test_what_counts_as_progress(monkeypatch, inside, count, progress, latest):
    """A step counts, and any time outside of minicaffe, but for this rank alone."""
    job = Job(2, mirror=True, threads=False)
    job.use(monkeypatch)
    monkeypatch.setattr(heartbeat, "_place", lambda thread: (inside, False, "here"))
    signs = Heartbeat(Group(), 60)
    signs.steps, signs.last_count, signs.left, signs.sent = SimpleNamespace(count=count), 5, None, None
    signs.last_heartbeat = signs.progress = signs.latest_progress = 10
    signs._exchange(100)
    assert (signs.progress, signs.latest_progress) == (progress, latest)


@pytest.mark.parametrize("timeout, seconds, words", [
    (60, {}, None),
    (60, {"last_heartbeat": 11}, f"{NAMES[0]} has sent no heartbeat for 10 s: "),
    (60, {"last_heartbeat": 9}, None),
    (60, {"last_heartbeat": 50, "left": 50}, None),
    (60, {"left": 11, "progress": 11, "waits": True}, f"{NAMES[0]} has ended or left the group, and {NAMES[1]} waits for it at here"),
    (60, {"left": 11, "progress": 9, "waits": True}, None),
    (60, {"progress": 61, "latest_progress": 0}, f"{NAMES[1]} has made no progress for 60 s; it is at here"),
    (60, {"progress": 59}, None),
    (0, {"progress": 10 ** 6, "latest_progress": 10 ** 6}, None),
    (60, {"progress": 63, "latest_progress": 63, "waits": True}, f"no rank has made progress for 60 s; {NAMES[1]} waits for others at here"),
    (60, {"progress": 63, "latest_progress": 1, "waits": True}, None),
    (60, {"progress": 61.5, "latest_progress": 61.5, "waits": True}, None),    # news take 2 s
    (0, {"progress": 10 ** 6, "latest_progress": 10 ** 6, "waits": True}, None)])
def test_what_is_trouble(monkeypatch, timeout, seconds, words):
    """Seconds since this rank last_heartbeat of the one before, since that left, and since this and any rank made progress; 0: for ever."""
    job = Job(2, mirror=True, threads=False)
    job.use(monkeypatch)
    signs = Heartbeat(Group(), timeout)
    signs.waits, signs.place, signs.left = seconds.pop("waits", False), "here", None
    for name, ago in {"last_heartbeat": 0, "progress": 0, "latest_progress": 0, **seconds}.items():
        setattr(signs, name, 10 ** 7 - ago)
    found = signs._find_failure(10 ** 7)
    assert found is None if words is None else found.startswith(words), found
