"""Processes that train and score together: ranks, as MPI calls them (Caffe parallel.cpp, which joined the GPUs of one machine).

Only launch.py is imported, and MPI is not started, unless mpiexec started the process or the program requests it.
"""


class SingleProcess:
    """The methods of `Group` (group.py) for a single process, without MPI: each returns the value that it gets.

    So no code has to check whether there is a group.
    """

    rank, size, local_rank = 0, 1, 0

    def gather(self, value):
        """Return the values of all: [`value`]."""
        return [value]

    gather_to_root = gather

    def broadcast_from_root(self, value=None):
        """Return `value`."""
        return value

    def run_on_root(self, function, *arguments):
        """Return what the function returns."""
        return function(*arguments)

    def sum(self, values):
        """Return the array itself."""
        return values


SINGLE_PROCESS = SingleProcess()
