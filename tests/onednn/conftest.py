"""Tests of engine ONEDNN skip visibly where there is no oneDNN (pip install onednn-cpu-gomp)."""

import pytest

from minicaffe.errors import DependencyError
from minicaffe.onednn import library
from minicaffe.ops import engine


@pytest.fixture
def onednn(on_cpu):
    """Let layers on the CPU ask engine ONEDNN first; gives a function that does so, or not."""
    try:
        library.version()
    except DependencyError as error:
        pytest.skip(str(error))
    before = engine.preferred()
    engine.prefer("ONEDNN")
    yield lambda use: engine.prefer("ONEDNN" if use else "CAFFE")
    engine.prefer(before)
