"""The package that LevelDB needs: pip builds it from Python 3.13 on, so that tests/requirements.txt leaves it out there."""

import importlib.util

import pytest


def need_leveldb():
    """Skip a test if plyvel is not installed."""
    if importlib.util.find_spec("plyvel") is None:
        pytest.skip("no LevelDB library: pip install plyvel (no wheels from Python 3.13 on: it needs libleveldb-dev)")
