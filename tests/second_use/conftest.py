"""State machines that use one object again after changes and errors, and compare it with a fresh object.

Written sequences of calls run always, random ones with --every, always the same; ``pytest tests/second_use --examples 5000`` tries so
many other ones.
"""

import ctypes
import gc
import os
import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import minicaffe
from minicaffe.errors import DependencyError


@pytest.fixture
def random_ones(request):
    """A visible skip of a random test where no option asks for it."""
    if not any(request.config.getoption(option) for option in ("--every", "--examples")) and request.config.getoption("--program") is None:
        pytest.skip("random calls: run them with --every, as .ci/run does, or with --examples N")


@pytest.fixture
def search(request, random_ones):
    """``search(machine, examples, steps)`` runs a machine in `examples` sequences of at most `steps` calls, or as --examples says."""
    asked = request.config.getoption("--examples")

    def run(machine, examples, steps):
        run_state_machine_as_test(machine, settings=settings(
            max_examples=asked or examples, stateful_step_count=2 * steps if asked else steps, derandomize=not asked, database=None,
            deadline=None, phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck), report_multiple_bugs=False))

    return run


@pytest.fixture
def programs(request, random_ones):
    """``programs(run, count)`` calls `run` with the seeds below `count`; with --examples with so many others, with --program with one."""
    examples, program = request.config.getoption("--examples"), request.config.getoption("--program")

    def run_all(run, count):
        begin = random.SystemRandom().randrange(1 << 40) if examples else 0
        for seed in range(begin, begin + (examples or count)) if program is None else [program]:
            try:
                run(seed)
            except BaseException as error:
                error.add_note(f"random program {seed}: repeat it with --program {seed}")
                raise

    return run_all


@pytest.fixture(autouse=True)
def disk(monkeypatch):
    """Snapshots and databases do not wait for the disk, which took most of the time of these tests; fsync may still be let fail."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def gpu(device, monkeypatch):
    """Whether there is a GPU; the simulated one where tests compute on the CPU."""
    monkeypatch.setenv("MINICAFFE_DEVICE", "gpu" if device == "gpu" else "sim")
    try:
        minicaffe.set_mode_gpu()
        found = True
    except DependencyError:     # a build without CUDA: the sequences stay on the CPU
        found = False
    minicaffe.set_mode_cpu()
    yield found
    gc.collect()
    minicaffe.set_mode_cpu() if device == "cpu" else minicaffe.set_mode_gpu()


@pytest.fixture
def sim(gpu, device):
    """``sim("fail=cuMemAlloc:2")`` changes the settings of the simulated device; planned failures and checks end with the test.

    ``sim.planned("cuMemAlloc")`` calls come until it fails; 0: it has failed.
    """
    if device == "gpu" or not gpu:
        pytest.skip("faults can be planned on the simulated device only")
    from minicaffe import sim as simulated
    library = ctypes.CDLL(simulated.library())
    planned = set()

    def configure(text):
        if text.startswith("fail="):
            planned.add(text.partition(":")[0])
        assert library.mcsim_configure(text.encode()) == 0, text

    library.mcsim_planned.restype = ctypes.c_ulonglong
    configure.planned = lambda call: library.mcsim_planned(call.encode())
    yield configure
    for call in planned:
        configure(f"{call}:999999999")  # so late that it never comes
