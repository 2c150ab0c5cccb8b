"""The simulated driver, called through cuda.bindings: every fault that it should find is planted once.

The cases are in ``cases/*.py``; a file of them runs in one process (sim_runner.py), and each function is a test here. The
library is ``MINICAFFE_SIM_LIBRARY`` or that of the installed package.
"""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cplusplus import compiler
from sim_checks import under_checks

from minicaffe import sim

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def library():
    return os.environ.get("MINICAFFE_SIM_LIBRARY") or sim.library()


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """The kernels of the tests as shared objects."""
    command = compiler()
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("no cuda-bindings")
    folder = tmp_path_factory.mktemp("kernels")
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-I", str(ROOT)]
    runs = []
    sources = [("kernels", [], "kernels"), ("user_kernels", [], "user_kernels"), ("user_kernels", ["-DOTHER"], "user_kernels_other")]
    for source, more, name in sources if importlib.util.find_spec("minicaffe.addons") else sources[:1]:
        build = [*command, *flags, *more, str(HERE / f"{source}.cpp"), "-o", str(folder / f"{name}.so")]
        runs.append(subprocess.Popen(build, stderr=subprocess.PIPE, text=True))
    for run in runs:
        _, text = run.communicate()
        assert run.returncode == 0, text
    return [str(folder / "kernels.so"), str(folder / "user_kernels.so")]


def run_cases(kernels, path, *names, settings=None):
    """The outcomes by name, the exit status and what went to stderr."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MINICAFFE_SIM", "PYTHONFAULTHANDLER")}
    first = path.read_text().splitlines()[0]
    settings = settings if settings is not None else first[len("# MINICAFFE_SIM=") :] if first.startswith("# MINICAFFE_SIM=") else ""
    if path != ALONE:   # these are about launches that have run when the process ends
        settings = under_checks(settings)
    environment.update(MINICAFFE_SIM=settings, OPENBLAS_NUM_THREADS="1")
    read, write = os.pipe()
    command = f'exec "$@" 3>&{write} {write}>&-'
    arguments = [sys.executable, str(HERE / "sim_runner.py"), library(), *kernels, str(path), *names]
    run = subprocess.Popen(["bash", "-c", command, "bash", *arguments], pass_fds=[write], env=environment, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    os.close(write)
    with os.fdopen(read) as lines:
        outcomes = dict(map(json.loads, lines))
    _, text = run.communicate(timeout=60)
    return outcomes, run.returncode, text


def functions(path):
    return [n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]


FILES = sorted((HERE / "cases").glob("*.py"))
TOGETHER = [p for p in FILES if not p.stem.startswith("alone_")]


@pytest.fixture(scope="session")
def outcomes(kernels):
    done = {}

    def get(path):
        if path not in done:
            done[path] = run_cases(kernels, path)
        return done[path]

    return get


@pytest.mark.parametrize("path, name", [
    pytest.param(p, n, id=f"{p.stem}-{n}", marks=pytest.mark.slow(1) if p.stem.startswith("random_") else ()) for p in TOGETHER for n in functions(p)])
def test_case(outcomes, path, name):
    found, status, text = outcomes(path)
    assert name in found, f"the process ended (status {status}) before this case: {text}"
    assert found[name] is None, found[name] + text


def test_calls_of_the_driver():
    table = (ROOT / "minicaffe" / "sim" / "driver.cpp").read_text().split("kEntries[] = {")[1].split("};")[0]
    names = set(re.findall(r"[EV]\((\w+)", table)) - {
        "cuDevicePrimaryCtxReset", "cuMemcpyHtoD", "cuMemcpyDtoH"}  # each of these cases begins with the first; users' programs copy by the others
    callers = [p for folder in ("minicaffe", "tests", "tools") for p in (ROOT / folder).rglob("*")
               if p.suffix in (".py", ".pyx", ".hpp", ".cpp") and not {"sim"} & set(p.parts[:-1])]
    assert len(names) > 40
    assert not names - set(re.findall(r"\b((?:cu|mcsim_)\w+?)(?:_v\d)?\b", "\n".join(p.read_text() for p in callers)))


ALONE = HERE / "cases" / "alone_process.py"


@pytest.mark.parametrize("name, settings, words", [
    ("ill_formed_environment", "race=1,colour=1", []),
    ("no_device", "devices=0", []),
    ("init_fails_once", "fail=cuInit:1", []),
    ("fork", "", []),
    ("leaks_at_exit", "leak=1", ["allocation #2 (1000 bytes", "stream #1", "event #1", "module #1", "4096 bytes of pinned"]),
])  # fmt: skip
def test_process(kernels, name, settings, words):
    found, status, text = run_cases(kernels, ALONE, name, settings=settings)
    assert found.get(name, text) is None, found.get(name, text)
    assert status == 0, text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize("name", ["host_reads_device_memory", "host_reads_with_faulthandler", "host_reads_with_late_faulthandler"])
def test_host_touches_device_memory(kernels, name):
    found, status, text = run_cases(kernels, ALONE, name)
    assert name not in found and status == -11, (found, status, text)
    assert "the host touched device address" in text and "byte 8 of allocation #1 (64 bytes" in text, text
    if "faulthandler" in name:
        assert "Fatal Python error: Segmentation fault" in text, text
