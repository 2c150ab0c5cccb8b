"""Functions of a file run by several processes that mpiexec starts: `run` gives back what each rank's call returned."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from minicaffe.errors import DependencyError
from minicaffe.parallel import launch

# Open MPI starts no more processes than there are processors, and none for root, unless asked.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1"}
SECONDS = 120   # a test that takes longer hangs


def mpiexec():
    """The path of this environment's mpiexec; a visible skip where there is none."""
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        pytest.skip("mpi4py is not installed: pip install mpi4py mpich")
    try:
        return launch.mpiexec()
    except DependencyError as error:
        pytest.skip(str(error))


def open_mpi():
    """Whether `mpiexec` is Open MPI's."""
    version = subprocess.run([mpiexec(), "--version"], capture_output=True, text=True).stdout
    return "Open MPI" in version or "OpenRTE" in version    # as that of version 4 calls itself


def start(n, *words, folder=None, **environment):
    """Start `n` processes of ``python *words``; return the Popen of mpiexec, its output as text in pipes."""
    return subprocess.Popen([mpiexec(), "-n", str(n), sys.executable, *map(str, words)], text=True, cwd=folder,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **ENVIRONMENT, **environment})


def command(n, *words, folder=None, **environment):
    """Run ``mpiexec -n n minicaffe *words``; return exit status, output and errors."""
    process = start(n, "-m", "minicaffe", *words, folder=folder, **environment)
    output, errors = finish(process)
    return process.returncode, output, errors


def finish(process):
    """Return output and errors of a process that `start` began; one that hangs is killed, and the test fails."""
    try:
        return process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        pytest.fail(f"hangs: {output[-2000:]} {errors[-4000:]}")


def said(errors):
    """Return what minicaffe says in `errors`, a list of lines without ``minicaffe: ``.

    It may begin within a line: Open MPI's mpiexec writes characters of its own, of which some are not printable.
    """
    return re.findall(r"\bminicaffe: (.*)", errors)


def run(n, file, function, *arguments, **environment):
    """Call ``function(*arguments)`` of the Python file `file` on `n` ranks; return what the calls returned, by rank.

    Arguments and results are of JSON's types. A call that fails on any rank fails the test.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = start(n, __file__, file, function, json.dumps(arguments), folder, **environment)
        output, errors = finish(process)
        assert process.returncode == 0, f"{output[-2000:]}\n{errors[-6000:]}"
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(n)]


def main(file, function, arguments, folder):
    """What each process does: the call, and its result into a file named by the rank."""
    import importlib.util

    from minicaffe.parallel.launch import mpi
    MPI = mpi()
    if os.environ.get("MINICAFFE_DEVICE", "cpu") != "cpu":
        import minicaffe
        minicaffe.set_mode_gpu()
    sys.path[:0] = [str(Path(file).parent), str(Path(__file__).parent.parent)]
    spec = importlib.util.spec_from_file_location("program", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        result = getattr(module, function)(*json.loads(arguments))
        Path(folder, f"{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(result))
    except BaseException:
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
