"""Programs that run in a process of their own: what happens before the driver starts, when it is lost, and at the end."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from sim_checks import under_checks

PATIENCE = 120  # seconds that a process may take for what should take one

TESTS = Path(__file__).resolve().parent.parent
FOLDERS = [str(TESTS / folder) for folder in ("cuda", "layers", "")]    # of modules that the programs import
PREAMBLE = """
import gc, os, sys
import numpy as np
import minicaffe
from minicaffe import cuda, errors, memory
from minicaffe.blob import Blob

def refused(kind, call, *words):
    "Call it, and check the error."
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {str(error)!r}"
        return error
    raise AssertionError(f"no {kind.__name__}")
"""


def run(code, device=None, settings="", status=0, cwd=None, before="", **environment):
    """Run Python text after PREAMBLE; check the exit status and that nothing crashed; return what it wrote, both streams.

    Parameters
    ----------
    device : str, optional
        MINICAFFE_DEVICE; unset if None.
    settings : str
        MINICAFFE_SIM.
    before : str
        Python text that runs before minicaffe is imported.
    """
    text = textwrap.dedent(before) + PREAMBLE + textwrap.dedent(code)
    return start([sys.executable, "-X", "faulthandler", "-c", text], device, settings, status, cwd, **environment)


def run_gpu(code, device="sim", *arguments, before="", **rest):
    """Run Python text in GPU mode, as `run` does."""
    return run("minicaffe.set_mode_gpu()\n" + textwrap.dedent(code), device, *arguments, before=before, **rest)


def command(*arguments, device=None, settings="", status=0, cwd=None, **environment):
    """Run ``minicaffe`` with arguments, as `run` does."""
    return start([sys.executable, "-m", "minicaffe", *map(str, arguments)], device, settings, status, cwd, **environment)


def start(arguments, device, settings, status, cwd, **environment):
    env = {k: v for k, v in os.environ.items() if k not in ("MINICAFFE_DEVICE", "MINICAFFE_SIM", "PYTHONFAULTHANDLER")}
    env.update(MINICAFFE_SIM=under_checks(settings), OPENBLAS_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(FOLDERS), **environment)
    if device is not None:
        env["MINICAFFE_DEVICE"] = device
    done = subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE)
    text = done.stdout + done.stderr
    assert done.returncode == status, f"exit status {done.returncode} instead of {status}\n{text}"
    for word in ("Fatal Python error", "Exception ignored", "core dumped"):
        assert word not in text, text
    return text
