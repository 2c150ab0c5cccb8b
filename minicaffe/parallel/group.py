"""Group: the processes that compute together, on an MPI communicator."""

import collections
import contextlib
import hashlib
import os
import time
from types import SimpleNamespace

import numpy as np

from minicaffe.device.threads import usable_processors
from minicaffe.errors import ConfigError, Error
from minicaffe.parallel.launch import mpi, world


class Group:
    """All ranks of an MPI communicator, by default all processes that were started together.

    Every method but `name` must be called by all of them, in the same order. Raises DependencyError if there is no MPI, ConfigError
    if the mpiexec that has started the processes belongs to another MPI.

    `comm`, a duplicate, is for uses for which `gather` is not enough. Do not use its `allreduce` and other methods in lower case:
    mpi4py makes a communicator for each first, and blocks all other threads until all ranks have called it.
    """

    def __init__(self, comm=None):
        MPI = mpi()
        self.comm = (world() if comm is None else comm).Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        # Counts received messages, this rank's progress. heartbeat.py references it, not the group, which its last owner deletes.
        self.steps = SimpleNamespace(count=0)
        self.hosts = self.gather(MPI.Get_processor_name())      # the machine of each rank
        local = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = local.rank, local.size       # of the ranks of the same machine
        local.Free()

    def name(self, rank=None):
        """Return how messages call a rank, by default this one: ``rank 2 of 4 (host)``."""
        rank = self.rank if rank is None else rank
        return f"rank {rank} of {self.size} ({self.hosts[rank]})"

    def gather(self, value):
        """Return the values that all ranks give, anything that can be pickled, in the order of the ranks."""
        return self._count_message(self.comm.allgather(value))

    def gather_array(self, values):
        """Return the arrays that all ranks give, of one shape and type, stacked along a new first axis; without pickling."""
        everyone = np.empty((self.size, *values.shape), values.dtype)
        self.comm.Allgather(values, everyone)
        return self._count_message(everyone)

    def gather_to_root(self, value):
        """Give a value to rank 0; return there the values of all ranks, in their order, and None on the others."""
        return self._count_message(self.comm.gather(value))

    def sum(self, values):
        """Return the sum of the arrays that all ranks give, of one shape and type; all get the same."""
        total = np.empty_like(values)
        self.comm.Allreduce(values, total)
        return self._count_message(total)

    def broadcast_from_root(self, value=None):
        """Return the value that rank 0 gives."""
        return self._count_message(self.comm.bcast(value))

    def _count_message(self, value):
        """Count a message of the other ranks as progress of this one (heartbeat.py), and return its `value`."""
        self.steps.count += 1
        return value

    def run_on_root(self, function, *arguments):
        """Call a function on rank 0 only, for example to write a file; return its result on all ranks.

        If it fails on rank 0, an Error is raised on all ranks: what it raised, if that is an Error.
        """
        outcome = failed = None
        if self.rank == 0:
            try:
                outcome = function(*arguments), None
            except Exception as error:
                failed = error
                outcome = None, error if isinstance(error, Error) else Error(f"{self.name(0)} failed: {error!r}")
        result, error = self.broadcast_from_root(outcome)
        if failed is not None:
            raise failed
        if error is not None:
            raise error
        return result

    def check_equal(self, facts):
        """Raise on all ranks unless `facts` is equal on all of them: a dict of values, by the names that messages have for them.

        The ConfigError names the first value that differs, the ranks outside of the majority, and both values.
        """
        if len(set(self.gather(hashlib.sha256(repr(facts).encode()).digest()))) == 1:
            return
        everyone = self.gather(facts)
        for what in dict.fromkeys(what for facts in everyone for what in facts):
            values = [repr(theirs[what]) if what in theirs else "nothing" for theirs in everyone]
            usual = collections.Counter(values).most_common(1)[0][0]
            others = [rank for rank, value in enumerate(values) if value != usual]
            if others:
                names, other = ", ".join(map(self.name, others[:8])), values[others[0]]
                raise ConfigError(f"{what} differs: {_excerpt(other, usual)} on {names}, {_excerpt(usual, other)} on the others; "
                                  "it must be the same on all ranks")

    def processors(self):
        """Return how many processors this rank has for itself: those that it may use, divided by the ranks that may use them, too.

        mpiexec or a scheduler may give each rank some of the machine's processors; otherwise each may use all of them.
        """
        mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
        theirs = self.gather(mine)
        sharing = sum(host == self.hosts[self.rank] and bool(mine & use) for host, use in zip(self.hosts, theirs, strict=True))
        return max(1, usable_processors() // sharing)


def _excerpt(value, other):
    """Return at most 100 characters of `value` for the error of `check_equal`: of a long one those around its first difference."""
    begin = len(os.path.commonprefix([value, other])) - 40 if len(value) > 100 else 0
    return f"...{value[begin:][:100]}" if begin > 0 else value[:100]


def abort(comm, status):
    """End all processes of an MPI communicator at once and silently: the caller has printed the reason. Does not return."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    comm.Abort(status)


def wait_for_root_error(rank):
    """Wait, on ranks but 0, before an error is printed: rank 0 prints that of all ranks and ends them; Open MPI takes a second."""
    if rank:
        time.sleep(1 + 0.3 * min(rank, 5))
