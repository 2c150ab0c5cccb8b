"""Random programs of two simulated GPUs; `random_device_programs.py` has the model. With --every many more."""

import sys
from pathlib import Path

import pytest
from cplusplus import compiler
from processes import start

SCRIPT = Path(__file__).with_name("random_device_programs.py")


@pytest.mark.parametrize(("check", "allocators"), [("deferred=1", "caching,buddy,plain"), ("race=1", "plain"), ("uninitialized=1", "caching,buddy,plain")])
def test_random_programs_of_two_gpus(request, check, allocators):
    compiler()
    programs = 400 if request.config.getoption("--every") else 24
    assert "done" in start([sys.executable, str(SCRIPT), allocators, "0", str(programs)], "sim", f"devices=2,peers=0-1,{check}", 0, None)
