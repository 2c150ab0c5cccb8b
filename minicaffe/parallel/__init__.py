"""Processes that train and score together: ranks, as MPI calls them (Caffe parallel.cpp, which joined the GPUs of one machine).

Here is how the present process was started: alone, or as one of several by mpiexec, srun and the like. Other modules of this
package are imported, and MPI is started, only if mpiexec started the process or the program requests it.
"""

import os
import re

# Variables with the number of processes started together, and with the rank of each: MPICH and its kin (PMI), Open MPI and
# Slurm (PMIx).
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


class SingleProcess:
    """The `Group` (group.py) of a process that was started alone, without MPI: each method returns the value that it gets.

    It has the methods that data layers, solvers and tests call in any process. What needs other processes, such as
    `Group.check_equal`, is called only where `size` is above 1.
    """

    rank, size, local_rank = 0, 1, 0

    def gather(self, value):
        """Return the values of all ranks in their order: [`value`]."""
        return [value]

    gather_to_root = gather

    def broadcast_from_root(self, value=None):
        """Return `value`."""
        return value

    def run_on_root(self, function, *arguments):
        """Call the function here, and return what it returns."""
        return function(*arguments)

    def sum(self, values):
        """Return the array itself: the sum over one rank."""
        return values


SINGLE_PROCESS = SingleProcess()


def launched():
    """Return how many processes were started together with this one, as the environment says: 1 if it was started alone."""
    sizes = [os.environ[name] for name in SIZES if os.environ.get(name, "").isdecimal()]
    if sizes:
        return max(1, int(sizes[0]))
    # srun gives its numbers to every program; only one that PMI or PMIx serves, too, can join the others.
    if os.environ.keys() & {"PMIX_RANK", "PMI_RANK", "PMI_FD"} and os.environ.get("SLURM_NTASKS", "").isdecimal():
        return int(os.environ["SLURM_NTASKS"])
    return 1


def rank():
    """Return the number of this process among those that were started together, as the environment says; 0 if it is alone."""
    return _number(RANKS) or 0 if launched() > 1 else 0


def local_rank():
    """Return the number of this process among those of the same machine; `rank` if the environment does not have it."""
    local = _number(LOCAL_RANKS)
    return rank() if local is None or launched() == 1 else local


def _number(names):
    """Return the number in the first of the environment variables `names` that holds one, or None."""
    return next((int(os.environ[name]) for name in names if re.fullmatch("[0-9]{1,9}", os.environ.get(name, ""))), None)
