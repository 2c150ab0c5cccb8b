"""Data: depth of the prefetch, errors, labels that are real numbers; its pixels are tested in tests/data."""

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from pictures import batch, source_net  # noqa: E402

from minicaffe.blob import Dtype  # noqa: E402
from minicaffe.common import caffe  # noqa: E402
from minicaffe.data.db import open_db  # noqa: E402
from minicaffe.errors import ConfigError, DataError, Error, ShapeError  # noqa: E402
from minicaffe.proto import caffe_pb2, unknown  # noqa: E402


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
    return three_records(tmp_path)


def three_records(tmp_path):
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


def test_wrong_options(tmp_path, source, monkeypatch):
    with pytest.raises(Error, match=r"layer 'd' \(Data\): data_param.source: .*no such database"):
        source_net(text("nowhere", ""))
    with pytest.raises(ConfigError, match=r"layer 'd' \(Data\): data_param.prefetch: must be at least 1, got 0"):
        source_net(text("/nowhere", "").replace("batch_size", "prefetch: 0 batch_size"))
    with pytest.raises(ConfigError, match=r"layer 'd' \(Data\): transform_param.mean_"):
        source_net(text("/nowhere", 'mean_file: "/nowhere" mean_value: 3'))
    records = [caffe_pb2.Datum(channels=n, height=5, width=5, data=bytes(25 * n)).SerializeToString() for n in (3, 1)]
    write(tmp_path / "two", records), write(tmp_path / "one", records[1:])
    for name, number, transform, message in (
            ("one", 0, "mean_value: 1 mean_value: 2", "transform_param.mean_value: give one value, or one for each of the 1 channels"),
            ("one", 0, "crop_size: 6", "transform_param.crop_size: must be at most height and width of the picture, got 6 for 1 x 5 x 5"),
            ("two", 1, "mean_value: 1 mean_value: 2 mean_value: 3", "transform_param.mean_value: give one value")):
        with pytest.raises(ShapeError, match=rf"layer 'd' \(Data\): .*record {number} \(key '0000000{number}'\): {message}"):
            net = source_net(text(tmp_path / name, transform, 1))
            for _ in range(2):
                batch(net)
    monkeypatch.setattr(unknown.entry_points, "objects", lambda group: [])
    monkeypatch.setattr(unknown.entry_points, "entries", lambda group: [("red", "reds", "reds:FIELDS")])
    for step in unknown.AUGMENTATIONS:
        with pytest.raises(ConfigError, match=rf"^test.prototxt:1: layer 'd' \(Data\): transform_param.{step}: unknown field in "
                           r"TransformationParameter: the core lacks it, and so do the installed add-ons \(red\)$"):
            source_net(text(source[0], f"mirror: true {step} {{ }}"))


LABELS = np.array([[0.5, -1.25, 3], [7, 1e-3, 2], [-4, 0, 1e6]], np.float32)


def real_valued(tmp_path, label=None, encoded=(1,)):
    pixels = np.random.default_rng(2).integers(0, 256, (3, 3, 8, 6), np.uint8)
    records = []
    for i, planes in enumerate(pixels):
        datum = caffe_pb2.Datum(channels=3, height=8, width=6, data=planes.tobytes(), float_data=LABELS[i], label=label)
        if i in encoded:
            datum.encoded, datum.data = True, cv2.imencode(".png", planes.transpose(1, 2, 0))[1].tobytes()
        records.append(datum.SerializeToString())
    return write(tmp_path / "real", records), pixels


def with_size(definition, count, tops='top: "data" top: "label"'):
    return definition.replace("batch_size", f"label_size: {count} batch_size").replace('top: "data" top: "label"', tops)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT, Dtype.DOUBLE])
def test_labels_that_are_real_numbers(tmp_path, dtype, device):
    path, pixels = real_valued(tmp_path)
    net = source_net(with_size(text(path, ""), 3), dtype)
    assert net.tops[0][1].shape == (2, 3)
    for k in range(3):
        data, labels = batch(net)
        which = [(2 * k + i) % 3 for i in range(2)]
        np.testing.assert_array_equal(labels, LABELS[which])
        np.testing.assert_array_equal(data, pixels[which])
    net = source_net(with_size(text(path, ""), 3, 'top: "data"'), dtype)
    np.testing.assert_array_equal(batch(net)[0], pixels[:2])


def test_records_with_other_labels(tmp_path, source, caplog):
    path, _ = real_valued(tmp_path)
    with pytest.raises(DataError, match=r"layer 'd' \(Data\): data_param.source: .*record 0 .*has 3 elements of float_data beside the "
                       "picture, label_size says 2"):
        source_net(with_size(text(path, ""), 2))
    first, second = (caffe_pb2.Datum(channels=1, height=1, width=1, data=b"a", float_data=[1.0] * n).SerializeToString() for n in (2, 3))
    net = source_net(with_size(text(write(tmp_path / "bad", [first, second]), ""), 2))
    with pytest.raises(DataError, match=r"record 1 \(key '00000001'\): .*has 3 elements of float_data beside the picture"):
        batch(net)
    only = write(tmp_path / "floats", [caffe_pb2.Datum(channels=2, height=1, width=1, float_data=[1, 2]).SerializeToString()])
    with pytest.raises(DataError, match="has no labels that are real numbers: its float_data is the picture"):
        source_net(with_size(text(only, ""), 2))
    net = source_net(with_size(text(source[0], ""), 4294967295, 'top: "data"'))     # without a top labels are not read
    net.forward_from_to(0, 0)
    assert net.blob_list[0].shape == (2, 3, 8, 6)
    with pytest.raises(DataError, match=r"record 0 .*has 3 elements of float_data beside the picture and no label; label_size: 3 in data_param"):
        source_net(text(path, ""))
    source_net(text(str(tmp_path / "real"), "").replace(' top: "label"', ""))
    (tmp_path / "both").mkdir()
    path, pixels = real_valued(tmp_path / "both", label=5)  # of another program: as Caffe reads it
    net = source_net(text(path, ""))
    assert batch(net)[1].tolist() == [5, 5]
    warned = [record.getMessage() for record in caplog.records if "float_data" in record.getMessage()]
    assert len(warned) == 1 and "layer 'd' (Data)" in warned[0] and "has 3 elements of float_data beside the picture; they are not read" in warned[0]


@pytest.mark.parametrize("kind, param", [("AnnotatedData", "data_param"), ("VideoData", "data_param"), ("WindowData", "data_param"),
                                         ("WindowData", "image_data_param")])
def test_other_types_refuse_label_size(kind, param):
    size = "batch_size: 2 label_size: 2" if param == "data_param" else "label_size: 2"
    definition = (f'layer {{ name: "d" type: "{kind}" top: "data" top: "label" window_data_param {{ batch_size: 2 }} '
                  f"{param} {{ {size} }} }}")
    with pytest.raises(ConfigError, match=rf"layer 'd' \({kind}\): {param}.label_size: {kind} does not take it; Data and ImageData do"):
        source_net(definition)
    with pytest.raises(ConfigError, match=r"layer 'd' \(Data\): data_param.label_size: must be at least 1, got 0"):
        source_net(with_size(text("nowhere", ""), 0))


def test_draws_depend_on_record_number(source, tmp_path, monkeypatch):
    for path, label_size in (source[0], None), (real_valued(tmp_path)[0], 3):
        check_draws(path, "mirror: true crop_size: 5", label_size, monkeypatch)


def check_draws(path, transform, label_size, monkeypatch):
    """Compare records of batches of several sizes, in one process and in several that share the records."""
    found = {}
    for size, count in ((1, 1), (2, 1), (6, 1), (1, 2), (2, 3), (3, 2)):
        records = {}
        for rank in range(count):
            monkeypatch.setattr(caffe, "solver_count", count)
            monkeypatch.setattr(caffe, "solver_rank", rank)
            definition = text(path, transform, size)
            net = source_net(with_size(definition, label_size) if label_size else definition)
            for k in range(12 // size // count):
                for i, (data, label) in enumerate(zip(*batch(net), strict=True)):
                    records[(k * size + i) * count + rank] = data.tobytes(), label.tobytes()
        assert sorted(records) == list(range(12))
        found[size, count] = records
    assert all(records == found[1, 1] for records in found.values())
    assert len({data for data, _ in found[1, 1].values()}) > 3      # three pictures, in several places
