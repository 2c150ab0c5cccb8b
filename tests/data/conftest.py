"""Small databases for the tests of the data room; all content is synthetic and seeded."""

import numpy as np
import pytest

from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2


def datum(pixels, label=0, **fields):
    """Return a serialized Datum of an array (C, H, W): bytes for uint8, float_data otherwise."""
    message = caffe_pb2.Datum(channels=pixels.shape[0], height=pixels.shape[1], width=pixels.shape[2], label=label)
    if pixels.dtype == np.uint8:
        message.data = pixels.tobytes()
    else:
        message.float_data.extend(pixels.ravel().tolist())
    for name, value in fields.items():
        setattr(message, name, value)
    return message.SerializeToString()


@pytest.fixture
def pixels():
    """Ten pictures, uint8 (10, 3, 7, 5)."""
    return np.random.default_rng(1).integers(0, 256, (10, 3, 7, 5), np.uint8)


@pytest.fixture(params=["LMDB", "LEVELDB"])
def backend(request):
    return request.param


@pytest.fixture
def make_db(tmp_path):
    """Return a function that writes values under 8-digit keys and returns the path."""

    def make(values, backend="LMDB", name="db"):
        path = tmp_path / name
        with open_db(path, backend, "w") as db:
            for i, value in enumerate(values):
                db.put(b"%08d" % i, value)
        return path

    return make
