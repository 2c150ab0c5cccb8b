"""Small databases for the tests of the data room; all content is synthetic and seeded."""

import numpy as np
import pytest
from leveldb_package import need_leveldb

from minicaffe.data.db import open_db


@pytest.fixture
def pixels():
    """Ten pictures, uint8 (10, 3, 7, 5)."""
    return np.random.default_rng(1).integers(0, 256, (10, 3, 7, 5), np.uint8)


def need(backend):
    """Skip the test if the library of a backend is not installed."""
    if backend.upper() == "LEVELDB":
        need_leveldb()


@pytest.fixture(params=["LMDB", "LEVELDB"])
def backend(request):
    need(request.param)
    return request.param


@pytest.fixture
def leveldb():
    need("LEVELDB")


@pytest.fixture
def make_db(tmp_path):
    """Return a function that writes values under 8-digit keys and returns the path."""

    def make(values, backend="LMDB", name="db"):
        need(backend)
        path = tmp_path / name
        with open_db(path, backend, "w") as db:
            for i, value in enumerate(values):
                db.put(b"%08d" % i, value)
        return path

    return make
