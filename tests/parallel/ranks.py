"""Functions of a file run by several processes that mpiexec starts: `run` gives back what each rank's call returned.

Processes of one number and environment serve one call after the other, as their start takes a second. They end with this one, and
when a call fails.
"""

import atexit
import base64
import functools
import gc
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
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
    except BaseException:   # the time of the test has ended
        process.kill()
        raise


def said(errors):
    """Return what minicaffe says in `errors`, a list of lines without ``minicaffe: ``.

    It may begin within a line: Open MPI's mpiexec writes characters of its own, of which some are not printable.
    """
    return re.findall(r"\bminicaffe: (.*)", errors)


def write_rows(folder, name="rows", lists="list.txt", **arrays):
    """Write arrays into an HDF5 file, and a list of this file; return the folder as text."""
    with h5py.File(Path(folder, f"{name}.h5"), "w") as file:
        for key, array in arrays.items():
            file[key] = np.asarray(array, np.float32)
    Path(folder, lists).write_text(f"{folder}/{name}.h5")
    return str(folder)


def heard(name, level):
    """Return what a logger says from now on, as a list that grows."""
    found, handler, log = [], logging.Handler(level), logging.getLogger(name)
    handler.emit = lambda record: found.append(record.getMessage())
    log.addHandler(handler)
    log.setLevel(level)
    return found


def run(n, file, function, *arguments, **environment):
    """Call ``function(*arguments)`` of the Python file `file` on `n` ranks; return what the calls returned, by rank.

    Arguments and results are of JSON's types; results may have arrays of float32 in them. A call that fails on any rank fails the test.
    """
    return jobs(n, mpiexec(), *sorted(environment.items())).run(file, function, arguments)


@functools.cache
def jobs(n, mpiexec, *environment):
    return Job(n, dict(environment))


started = []


@atexit.register
def end_all():
    """End all jobs at once: a process of pytest-xdist that takes long to end is killed."""
    for job in started:
        if job.process is not None:
            job.process.terminate()
    for job in started:
        job.end()


class Job:
    """Processes that wait for calls."""

    def __init__(self, n, environment):
        self.n, self.environment, self.process = n, environment, None
        started.append(self)

    def run(self, file, function, arguments):
        if self.process is None:
            self.folder = tempfile.TemporaryDirectory()
            self.errors = open(Path(self.folder.name, "errors"), "w+")
            self.process = subprocess.Popen([mpiexec(), "-n", str(self.n), sys.executable, __file__, self.folder.name], text=True,
                                            stdin=subprocess.PIPE, stdout=self.errors, stderr=self.errors,
                                            env={**os.environ, **ENVIRONMENT, **self.environment})
        at = self.errors.seek(0, os.SEEK_END)
        found = [Path(self.folder.name, f"{rank}.json") for rank in range(self.n)]
        for path in found:
            path.unlink(missing_ok=True)
        self.process.stdin.write(json.dumps([file, function, arguments]) + "\n")
        self.process.stdin.flush()
        end = time.monotonic() + SECONDS
        try:
            while not all(path.exists() for path in found):
                if self.process.poll() is not None or time.monotonic() > end:
                    what = "hangs" if self.process.poll() is None else f"status {self.process.returncode}"
                    self.errors.seek(at)
                    said = self.errors.read()
                    pytest.fail(f"{what}: {said[:2000]}\n{said[-6000:]}")
                time.sleep(2e-3)
        except BaseException:   # also that the time of the test has ended: the next test starts others
            self.end()
            raise
        return [json.loads(path.read_text(), object_hook=_array) for path in found]

    def end(self):
        if self.process is None:
            return
        self.process.stdin.close()      # which ends rank 0, and so all; but not by Open MPI
        for stop in (self.process.terminate, self.process.kill):    # a kill would leave the ranks of Open MPI
            try:
                self.process.wait(1)
                break
            except subprocess.TimeoutExpired:
                stop()
        self.process.wait()
        self.process = None
        self.errors.close()
        self.folder.cleanup()


def main(folder):
    """What each process does: call after call, each with its result into a file named by the rank."""
    from minicaffe.parallel.launch import mpi
    MPI = mpi()
    if os.environ.get("MINICAFFE_DEVICE", "cpu") != "cpu":
        import minicaffe
        minicaffe.set_mode_gpu()
    comm = MPI.COMM_WORLD.Dup()
    here = Path(__file__).parent
    sys.path[:0] = [str(here), *(str(here.parent / name) for name in (".", "layers", "addons/ssd", "../tools"))]
    try:
        while call := next_call(comm):
            os.chdir(folder)    # an earlier call may have left it for a folder that is gone
            result = json.dumps(answer(call), default=_text)
            gc.collect()
            path = Path(folder, f"{comm.rank}.json")
            path.with_suffix(".part").write_text(result)
            path.with_suffix(".part").rename(path)
    except BaseException:
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        comm.Abort(1)


def answer(call):
    """Return what a call returns."""
    import importlib.util
    file, function, arguments = json.loads(call)
    spec = importlib.util.spec_from_file_location("program", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)(*arguments)


def _text(array):
    """An array for JSON; the list of its elements would take a hundred times as long."""
    return {"shape": array.shape, "float32": base64.b64encode(array.astype(np.float32)).decode()}


def _array(found):
    return np.frombuffer(base64.b64decode(found["float32"]), np.float32).reshape(found["shape"]) if "float32" in found else found


def next_call(comm):
    """Return the line that rank 0 reads, "" at the end; the others look for it from time to time, as waiting in MPI takes a processor."""
    if comm.rank == 0:
        line = sys.stdin.readline()
        for rank in range(1, comm.size):
            comm.send(line, rank)
        return line
    while not comm.Iprobe(0):
        time.sleep(2e-3)
    return comm.recv(source=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
