"""The job scripts of docs/clusters.md run as they are, with programs of the scheduler that only say what they were given."""

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "clusters.md").read_text()
SCRIPTS = dict(re.findall(r"^### ([^\n]+)\n(?:(?!^##).)*?^```bash\n(.*?)^```$", PAGE, re.M | re.S))


def run(name, folder, **environment):
    """Run a script of the page in `folder`; return the lines that mpiexec and srun were started with."""
    (folder / "bin").mkdir()
    for program in ("srun", "mpiexec"):
        path = folder / "bin" / program
        path.write_text('#!/bin/bash\necho "$(basename "$0") $* [$SRUN_CPUS_PER_TASK]"\n')
        path.chmod(0o755)
    activate = folder / "minicaffe" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    done = subprocess.run(["bash", "-eu", "-c", SCRIPTS[name]], capture_output=True, text=True, cwd=folder, check=True,
                          env={"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder), **environment})
    return done.stdout.splitlines()


@pytest.mark.parametrize("states, option", [([], ""), ([500, 1000], " --snapshot lenet_iter_1000.solverstate")])
def test_the_script_for_slurm(tmp_path, states, option):
    for state in states:
        os.utime(write(tmp_path / f"lenet_iter_{state}.solverstate"), (state, state))
    assert run("SLURM", tmp_path, SLURM_SUBMIT_DIR=str(tmp_path), SLURM_CPUS_PER_TASK="16") == [
        f"srun --mpi=pmix minicaffe train solver.prototxt{option} [16]"]


def test_the_script_for_pbs(tmp_path):
    nodes = write(tmp_path / "nodes", "node1\nnode1\nnode2\nnode2\n")
    state = write(tmp_path / "lenet_iter_20.solverstate")
    assert run("PBS", tmp_path, PBS_O_WORKDIR=str(tmp_path), PBS_NODEFILE=str(nodes)) == [
        f"mpiexec -n 4 -f {nodes} minicaffe train solver.prototxt --snapshot {state.name} []"]


def test_commands_for_host_list(tmp_path):
    assert run("A list of hosts", tmp_path)[0] == "mpiexec -f hosts -n 4 minicaffe train solver.prototxt []"
    assert (tmp_path / "hosts").read_text() == "node1:2\nnode2:2\n"


def write(path, text=""):
    path.write_text(text)
    return path
