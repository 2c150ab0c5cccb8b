"""What ranks tell each other, and what a process knows of how it was started."""

import pickle

import pytest
import ranks

from minicaffe.errors import ConfigError, NotFiniteError
from minicaffe.parallel.launch import SIZES, launched


def meet():
    from minicaffe.parallel.group import Group
    group = Group()
    try:
        group.agree({"the net": "lenet", "the weights": 7 if group.rank == 1 else 3})
        differs = None
    except ConfigError as error:
        differs = str(error)
    group.agree({"the net": "lenet"})
    return {"size": group.size, "all": group.gather(group.rank * 10), "first": group.from_first(group.rank + 5),
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


def test_a_process_that_ended_before_mpi_started_lets_nobody_wait_for_ever():
    if ranks.open_mpi():
        pytest.skip("Open MPI ends all itself then, and on a busy machine its mpiexec sometimes hangs after that (PMIX_ERR_UNREACH)")
    program = ("import sys; from minicaffe.parallel import launch; launch.PATIENCE = 3; launch.rank() and sys.exit(3); launch.mpi()")
    process = ranks.start(2, "-c", program)
    _, errors = ranks.finish(process)
    assert process.returncode != 0
    assert "Timeout (0:00:03)!" in errors
