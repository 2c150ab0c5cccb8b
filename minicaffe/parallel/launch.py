"""MPI itself: the program that starts processes, the module, and the communicator of those that were started together."""

import faulthandler
import os
import shutil
import sys
from pathlib import Path

from minicaffe.errors import ConfigError, DependencyError
from minicaffe.parallel import launched

SETTINGS = {        # of MPI libraries, unless the environment has them
    "MPIR_CVAR_SUPPRESS_ABORT_MESSAGE": "1",            # MPICH would add a line that says less than our own
    "OMPI_MCA_coll_libnbc_iallreduce_algorithm": "3",   # Open MPI: a ring; its tree sends all gradients 2 log2(ranks) times
}
MPI_START_TIMEOUT = 120      # seconds that MPI may take to start


def mpiexec():
    """Return the path of the mpiexec that fits the MPI library which mpi4py opens.

    That is the one of MPI4PY_LIBMPI if this is a path, else the one of this Python's environment, else that of PATH. Raises
    DependencyError if there is none. `minicaffe train --gpu 0,1` is replaced by it.
    """
    library = Path(os.environ.get("MPI4PY_LIBMPI") or "")
    places = [str(library.parent.parent / "bin")] if library.is_absolute() else []
    found = shutil.which("mpiexec", path=os.pathsep.join([*places, str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")]))
    if found is None:
        raise DependencyError('there is no mpiexec, which starts processes that compute together: pip install "minicaffe[mpi]", or '
                              "load the MPI of the cluster")
    return found


def mpi():
    """Return the module ``mpi4py.MPI``, which starts MPI with the first call.

    MPICH waits without limit for a process that ended before this call. One that waits longer than MPI_START_TIMEOUT
    ends, and all with it. Raises DependencyError, which says what to install, if mpi4py or an MPI library is missing.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    waits = launched() > 1 and "mpi4py.MPI" not in sys.modules
    try:
        if waits:       # in a C thread, as MPI starts with the GIL held
            faulthandler.dump_traceback_later(MPI_START_TIMEOUT, exit=True)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as cause:    # RuntimeError: mpi4py finds no MPI library
        missing = isinstance(cause, ModuleNotFoundError)
        what = "is not installed" if missing else f"cannot be used ({str(cause).splitlines()[0][:200]})"
        raise DependencyError(f'mpi4py {what}, and processes that compute together need it and an MPI library: '
                              'pip install "minicaffe[mpi]", or mpi4py alone where the cluster has an MPI of its own') from None
    finally:
        if waits:
            faulthandler.cancel_dump_traceback_later()
    return MPI


def world():
    """Return MPI's communicator of all processes that were started together.

    Raises ConfigError if MPI reports another number of processes: each would train alone, as rank 0.
    """
    comm = mpi().COMM_WORLD
    if launched() not in (1, comm.size):
        library = mpi().Get_library_version().partition("\n")[0][:60].strip("\0 ")
        raise ConfigError(f"{launched()} processes were started together, and mpi4py's MPI library ({library}) reports "
                          f"{comm.size}: the mpiexec belongs to another MPI; use the mpiexec of this library, or set MPI4PY_LIBMPI "
                          "to the library of this mpiexec")
    return comm
