"""The operations of minicaffe/ops and their kernels, without a driver: on the CPU, and on a device of fibers (device.hpp).

A program of C++ cases compares both with naive loops. That the kernels of the built modules fit into registers is in
tests/cuda/test_instances.py.
"""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from compile_kernels import compile_all
from cplusplus import compiler

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = sorted(HERE.glob("*.cpp"))
CASES = [name for source in SOURCES for name in re.findall(r"^CASE\((\w+)\)", source.read_text(), re.M)]
KERNEL = re.compile(r"^KERNEL (\d+) (\d+) .*\[with K = (.*)\]$", re.M)
pytestmark = pytest.mark.slow(120)   # all together


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    command = compiler()
    folder = tmp_path_factory.mktemp("kernels")

    def build(source):
        out = folder / f"{source.stem}.o"
        # A 16-byte access that is not aligned traps, as on a device; this machine's processor would let it pass.
        done = subprocess.run([*command, "-std=c++17", "-O1", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
                               f"-I{ROOT}", "-c", str(source), "-o", str(out)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return str(out)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(build, SOURCES))
    subprocess.run([*command, "-pthread", *objects, "-o", str(folder / "check")], check=True)
    return str(folder / "check")


@pytest.fixture(scope="module")
def run(program):
    """Run a case once and keep what it printed."""
    seen = {}

    def case(name):
        if name not in seen:
            seen[name] = subprocess.run([program, name], capture_output=True, text=True, timeout=300)
        return seen[name]

    return case


@pytest.mark.parametrize("case", CASES)
def test_case(run, case):
    done = run(case)
    assert done.returncode == 0, f"exit status {done.returncode}\n" + done.stdout[-4000:] + done.stderr[-1000:]


@pytest.fixture(scope="module")
def kernels(run):
    """The kernels that the cases launched: {type: bytes of its parameters}."""
    return {kernel: int(size) for case in CASES for size, _, kernel in KERNEL.findall(run(case).stdout)}


def test_registers_of_large_tiles(nvrtc, kernels, architecture):
    """65536 registers of a multiprocessor hold two blocks of 256 threads with 128 each."""
    large = {k: size for k, size in kernels.items() if k.startswith("Gemm<float, 128")}
    assert large
    for kernel, numbers in compile_all(nvrtc, large, architecture)[0].items():
        assert numbers[3] <= 128, (kernel, numbers)


def test_a_wrong_size_is_refused(nvrtc):
    table, log = compile_all(nvrtc, {"Fill<float>": 4}, "sm_90")
    assert not table and "run" in log
    table, log = compile_all(nvrtc, {"Each<Fill<float> >": 4}, "sm_90")
    assert not table and "lay this kernel's parameters out differently" in log
