"""A test that hangs is ended, wherever it is, by the settings of pyproject.toml, and the tests after it run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(20)    # all together
TESTS = Path(__file__).resolve().parent
PLANTED = """
import ctypes, subprocess, sys, time
import pytest

WAITS = [sys.executable, "-c", "import time; time.sleep(600)"]

def note(process):
    print(f"child {process.pid}.")
    return process

def lock(library):
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):      # the second call waits for what the first one has, and no signal ends it
        library.pthread_mutex_lock(mutex)

def test_loops():
    while True:
        pass

def test_waits_for_a_process():
    note(subprocess.Popen(WAITS)).wait()

def test_waits_for_one_by_a_shell():
    note(subprocess.Popen(["sh", "-c", "sleep 600; true"], stdout=subprocess.PIPE)).communicate()

@pytest.fixture
def one():
    time.sleep(600)

def test_has_a_fixture_that_waits(one):
    pass

def test_is_in_c_without_the_gil():
    lock(ctypes.CDLL(None))

def test_is_in_c_with_the_gil():
    lock(ctypes.PyDLL(None))

def test_passes():
    pass
"""


def run(folder, *options):
    """Run the planted tests with the settings and the conftest.py of these tests, but one and two seconds; return status and text."""
    (folder / "test_planted.py").write_text(PLANTED)
    command = [sys.executable, "-m", "pytest", "-c", TESTS.parent / "pyproject.toml", "--rootdir", folder, "--confcutdir", folder, "-p", "conftest",
               "-p", "no:cacheprovider", "--timeout=1", "-o", "process_timeout=2", *options, "test_planted.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    text = done.stdout + done.stderr
    for process in re.findall(r"^child (\d+)\.", text, re.M):
        assert not Path("/proc", process).exists(), text
    return done.returncode, text


def test_tests_that_hang(tmp_path):
    status, text = run(tmp_path, "-k", "not in_c")
    assert status == 1 and "3 failed, 1 passed, 2 deselected, 1 error" in text, text
    assert text.count("Failed: Timeout (>1.0s) from pytest-timeout") >= 4 and text.count("\nchild ") == 2, text
    status, text = run(tmp_path, "-n", "1")
    assert status == 1 and "5 failed, 1 passed, 1 error" in text and text.count("\nchild ") == 2, text
    for held in "without", "with":
        assert f"crashed while running 'test_planted.py::test_is_in_c_{held}_the_gil'" in text, text
