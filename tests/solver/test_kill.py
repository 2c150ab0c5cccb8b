"""A few kills of a training that takes snapshots all the time (tools/kill_test.py does many)."""

import kill_test
import pytest


@pytest.mark.slow(13)
@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_every_file_is_whole_after_kills(form):
    lines = []
    kill_test.run(3, form, seed=4, report=lines.append)
    assert len(lines) == 4 and lines[-1].startswith("3 kills")
