"""Checks the answers of chapter10.py against data layers and protobuf."""

import numpy as np
from chapter10 import crop_corner, decode_datum, mean_picture, records_of

import minicaffe as caffe
from minicaffe.data.convert import compute_mean
from minicaffe.data.db import open_db
from minicaffe.data.transform import Transformer, draw
from minicaffe.proto import caffe_pb2

NET = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "%s" batch_size: %d backend: LMDB } }
"""


def pictures_of(path, count):
    """Make a database of random pictures whose labels are their places; return the pictures."""
    pictures = np.random.default_rng(0).integers(0, 256, (count, 3, 4, 5), dtype=np.uint8)
    with open_db(path, "LMDB", "w") as database:
        for number, picture in enumerate(pictures):
            datum = caffe_pb2.Datum(channels=3, height=4, width=5, data=picture.tobytes(), label=number)
            database.put(b"%08d" % number, datum.SerializeToString())
    return pictures


def test_mean_picture(tmp_path):
    pictures = pictures_of(tmp_path / "lmdb", 50)
    with open_db(tmp_path / "lmdb", "LMDB") as database:
        theirs = compute_mean(database)
    mine = mean_picture(picture for picture in pictures)    # can be read once only
    assert mine.dtype == np.float64 and mine.shape == (3, 4, 5)
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_crop_corner():
    for phase in ("TRAIN", "TEST"):
        for height, width, size in ((8, 10, 6), (7, 8, 5), (256, 256, 227), (5, 5, 5)):
            transformer = Transformer(caffe_pb2.TransformationParameter(crop_size=size), getattr(caffe, phase), seed=3)
            for number in range(40):
                which = iter((1, 2))
                mine = crop_corner(height, width, size, phase, lambda n: draw(3, number, next(which), n))   # noqa: B023
                assert mine == transformer.window(height, width, number)[:2], (height, width, size, phase)


def test_records_of(tmp_path):
    pictures_of(tmp_path / "lmdb", 7)
    (tmp_path / "net.prototxt").write_text(NET % (tmp_path / "lmdb", 3))
    for ranks in (1, 2, 3):
        for rank in range(ranks):
            caffe.set_solver_count(ranks)
            caffe.set_solver_rank(rank)
            try:
                net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN)
                for step in range(4):
                    net.forward()
                    theirs = net.blobs["label"].data.astype(int).tolist()
                    assert records_of(step, 3, rank, ranks, 7) == theirs, f"step {step}, rank {rank} of {ranks}"
            finally:
                caffe.set_solver_count(1)
                caffe.set_solver_rank(0)


def test_decode_datum():
    random = np.random.default_rng(0)
    for shape, label in (((1, 2, 3), 5), ((3, 4, 5), 0), ((3, 20, 30), 300), ((1, 1, 200), 1_000_000)):
        pixels = random.integers(0, 256, shape, dtype=np.uint8)
        channels, height, width = shape
        parts = [caffe_pb2.Datum(channels=channels), caffe_pb2.Datum(height=height), caffe_pb2.Datum(width=width),
                 caffe_pb2.Datum(data=pixels.tobytes()), caffe_pb2.Datum(float_data=[1.5, 2.5], encoded=False)]
        parts = [part.SerializeToString() for part in parts]
        if label:
            parts.append(caffe_pb2.Datum(label=label).SerializeToString())
        parts.append(bytes([8 * 15 + 2, 3]) + b"abc" + bytes([8 * 9 + 1]) + b"\xff" * 8)    # fields that a Datum does not have
        for _ in range(3):
            mine, mine_label = decode_datum(b"".join(parts))
            np.testing.assert_array_equal(mine, pixels)
            assert mine.dtype == np.uint8 and mine_label == label
            random.shuffle(parts)
