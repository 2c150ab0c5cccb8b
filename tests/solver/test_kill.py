"""A few kills of a training that takes snapshots all the time (tools/kill_test.py does many)."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "kill_test.py"


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_every_file_is_whole_after_kills(form):
    spec = importlib.util.spec_from_file_location("kill_test", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    lines = []
    tool.run(3, form, seed=4, report=lines.append)
    assert len(lines) == 4 and lines[-1].startswith("3 kills")
