"""Data with the steps of SSD's transform_param; what it does without them is tested in tests/data."""

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from pictures import batch, source_net  # noqa: E402

from minicaffe.common import TEST  # noqa: E402
from minicaffe.data.db import open_db  # noqa: E402
from minicaffe.errors import ConfigError, DataError, Error, ShapeError  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402


def text(source, transform, size=2):
    return (f'layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "{source}" batch_size: {size} '
            f"backend: LMDB }} transform_param {{ {transform} }} }}")


def write(path, records):
    with open_db(path, "LMDB", "w") as db:
        for i, record in enumerate(records):
            db.put(b"%08d" % i, record)
    return str(path)


@pytest.fixture
def source(tmp_path):
    """Three pictures (3, 8, 6), raw, encoded and raw, and their database."""
    pixels = np.random.default_rng(2).integers(0, 256, (3, 3, 8, 6), np.uint8)
    records = []
    for i, planes in enumerate(pixels):
        datum = caffe_pb2.Datum(label=i + 4)
        if i == 1:
            datum.encoded, datum.data = True, cv2.imencode(".png", planes.transpose(1, 2, 0))[1].tobytes()
        else:
            datum.channels, datum.height, datum.width, datum.data = 3, 8, 6, planes.tobytes()
        records.append(datum.SerializeToString())
    return write(tmp_path / "db", records), pixels


def test_steps_come_before_the_crop(source):
    path, pixels = source
    net = source_net(text(path, "scale: 0.5 mean_value: 9 crop_size: 4 resize_param { height: 12 width: 10 } noise_param { inverse: true }"),
                     phase=TEST)
    assert net.tops[0][0].shape == (2, 3, 4, 4)
    for k in range(3):
        data, labels = batch(net)
        for i in range(2):
            n = (2 * k + i) % 3
            wanted = (255 - cv2.resize(np.ascontiguousarray(pixels[n].transpose(1, 2, 0)), (10, 12)))[4:8, 3:7]
            np.testing.assert_array_equal(data[i], (wanted.transpose(2, 0, 1) - 9.0) / 2)
            assert labels[i] == n + 4


def test_gray(source):
    path, pixels = source
    data, _ = batch(source_net(text(path, "resize_param { height: 12 width: 10 } force_color: true")))
    assert data.shape == (2, 3, 12, 10)
    gray = np.ascontiguousarray(pixels[1].transpose(1, 2, 0))
    only = write(path + "1", [caffe_pb2.Datum(encoded=True, data=cv2.imencode(".png", gray)[1].tobytes()).SerializeToString()])
    data, _ = batch(source_net(text(only, "resize_param { height: 8 width: 6 interp_mode: NEAREST } force_gray: true", 1)))
    np.testing.assert_array_equal(data[0, 0], cv2.imdecode(cv2.imencode(".png", gray)[1], cv2.IMREAD_GRAYSCALE))


def test_draws_are_repeated_after_resuming(source):
    transform = "expand_param { max_expand_ratio: 2 } distort_param { brightness_prob: 1 brightness_delta: 60 } resize_param { height: 8 width: 6 }"
    net = source_net(text(source[0], transform))
    first = batch(net)[0]
    state = net.layers[0].get_state()
    wanted = [batch(net)[0] for _ in range(3)]
    assert all((first != other).any() for other in wanted)
    other = source_net(text(source[0], transform), seed=77)
    other.layers[0].set_state(state)
    for data in wanted:
        np.testing.assert_array_equal(batch(other)[0], data)


def test_wrong(source, tmp_path):
    with pytest.raises(ConfigError, match=r"test.prototxt.*layer 'd' \(Data\): transform_param.resize_param.width: must be given"):
        source_net(text(source[0], "resize_param { height: 3 }"))
    with pytest.raises(Error, match=r"layer 'd' \(Data\): data_param.source: .*no such database"):
        source_net(text("nowhere", "resize_param { height: 3 width: 3 }"))
    good = caffe_pb2.Datum(channels=1, height=1, width=1, data=b"a").SerializeToString()
    net = source_net(text(write(tmp_path / "bad", [good, b"\xff\xff"]), "resize_param { height: 3 width: 3 }"))
    with pytest.raises(DataError, match=r"record 1 \(key '00000001'\): .*is no Datum"):
        batch(net)


@pytest.mark.parametrize("transform, message", [
    ("mean_value: 1 mean_value: 2", "transform_param.mean_value: give one value, or one for each of the 1 channels"),
    ("crop_size: 6", "transform_param.crop_size: must be at most height and width of the picture, got 6 for 1 x 5 x 5"),
    ("crop_size: 6 resize_param { height: 4 width: 5 }", "transform_param.crop_size: .* got 6 for 1 x 4 x 5"),
])
def test_a_record_that_does_not_fit_a_field_is_named_beside_it(tmp_path, transform, message):
    record = caffe_pb2.Datum(channels=1, height=5, width=5, data=bytes(25)).SerializeToString()
    path = write(tmp_path / "db", [record])
    with pytest.raises(ShapeError, match=rf"layer 'd' \(Data\): .*record 0 \(key '00000000'\): {message}"):
        batch(source_net(text(path, transform, 1)))


def test_a_later_record_that_does_not_fit_a_field_is_named_beside_it(tmp_path):
    records = [caffe_pb2.Datum(channels=n, height=6, width=6, data=bytes(36 * n)).SerializeToString() for n in (3, 1)]
    net = source_net(text(write(tmp_path / "db", records), "mean_value: 1 mean_value: 2 mean_value: 3", 1))
    with pytest.raises(ShapeError, match=r"record 1 \(key '00000001'\): transform_param.mean_value: give one value"):
        for _ in range(2):
            batch(net)
