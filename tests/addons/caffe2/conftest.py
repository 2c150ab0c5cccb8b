"""Lives of objects of a workspace."""

import gc

import pytest


@pytest.fixture
def no_gc():
    """What is freed is freed by the last reference, and not by the collector of cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
