"""The transformer against a slow NumPy version of Caffe's formula, and its checks."""

import resource
import sys

import cv2
import numpy as np
import pytest
from records import datum

from minicaffe.data.mean_file import read_mean, write_mean
from minicaffe.data.transform import Transformer, draw
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.caffe_pb2 import TEST, TRAIN


def param(**fields):
    return caffe_pb2.TransformationParameter(**fields)


def plain(picture, ordinal, phase, seed, dtype, scale, mirror, mean=0, size=None):
    """Transform one picture (C, H, W) as the formula says; return it, and what was cut out of it."""
    height, width = picture.shape[1:]
    rows, columns = size or (height, width)
    top, left = (height - rows) // 2, (width - columns) // 2
    if size and phase == TRAIN:
        top, left = draw(seed, ordinal, 1, height - rows + 1), draw(seed, ordinal, 2, width - columns + 1)
    flip = mirror and draw(seed, ordinal, 0, 2) == 1
    out = ((picture.astype(dtype) - np.asarray(mean, dtype)) * dtype(scale))[:, top:top + rows, left:left + columns]
    return out[:, :, ::-1] if flip else out, (top, left, rows, columns, flip)


def test_strided_images_and_types(pixels):
    images = [p.transpose(1, 2, 0) for p in pixels]  # views, not contiguous
    batch = Transformer(param(crop_size=3), TEST).load_images(images, range(10))
    out, labels = np.empty(batch.shape, np.float32), np.empty(10, np.float32)
    batch.write(out, labels)
    assert (out == pixels[:, :, 2:5, 1:4]).all() and labels.tolist() == list(range(10))
    assert Transformer(param(), TEST).load_images([np.ones((2, 3), np.uint8)]).shape == (1, 1, 2, 3)
    for pictures, words in (([np.ones((2, 3), np.uint8), np.ones((2, 3), np.uint16)], "record 1: must be a uint8 or float32 picture.*uint16"),
                            ([[[1, 2]]], "record 0: must be a uint8 or float32 picture.*, got int64"),
                            *(([np.ones(shape, np.uint8)], "record 0: must be a uint8 or float32 picture .height, width, channels., got uint8 .*,")
                              for shape in ((6,), (1, 2, 3, 1), (0, 3, 1), (2, 3, 0)))):
        with pytest.raises(DataError, match=words):
            Transformer(param(), TEST).load_images(pictures)


def test_distribution_of_draws():
    numbers = np.array([[draw(9, i, which, 6) for which in range(3)] for i in range(30_000)])
    for column in numbers.T:
        counts = np.bincount(column, minlength=6)
        assert ((counts - 5000) ** 2 / 5000).sum() < 25  # chi-square, 5 degrees: above 25 once in 7,000 seeds
    pairs = np.bincount(numbers[:, 1] * 6 + numbers[:, 2], minlength=36)
    assert ((pairs - 30_000 / 36) ** 2 / (30_000 / 36)).sum() < 75  # 35 degrees
    assert {draw(9, i, 0, 1) for i in range(10)} == {0}
    assert draw(-1, 3, 1, 100) == draw(2**64 - 1, 3, 1, 100)


def test_mirror_and_special_values(pixels):
    out = np.empty((64, 3, 7, 5), np.float32)
    Transformer(param(mirror=True), TEST).load([datum(pixels[0])] * 64).write(out)
    mirrored = (out == pixels[0][:, :, ::-1]).all(axis=(1, 2, 3))
    assert (mirrored | (out == pixels[0]).all(axis=(1, 2, 3))).all() and 16 < mirrored.sum() < 48  # 32 expected, standard deviation 4
    out = np.empty((1, 1, 1, 4), np.float32)
    Transformer(param(scale=2), TEST).load([datum(np.array([[[np.nan, np.inf, -np.inf, -0.0]]], np.float32))]).write(out)
    np.testing.assert_array_equal(out[0, 0, 0], [np.nan, np.inf, -np.inf, -0.0])


@pytest.mark.parametrize(("fields", "kind", "message"), [
    ({"force_color": True, "force_gray": True}, ConfigError, "force_color and force_gray: cannot both"),
    ({"mean_file": "x", "mean_value": [1]}, ConfigError, "mean_file and mean_value: cannot both"),
    ({"crop_h": 4}, ConfigError, "give crop_h and crop_w, or neither"), ({"crop_size": 1, "crop_h": 1, "crop_w": 1}, ConfigError, "not both"),
    ({"crop_size": 6}, ShapeError, "^record 0: transform_param.crop_size: must be at most.* got 6 for 3 x 7 x 5"),
    ({"crop_size": 2**32 - 1}, ShapeError, f"crop_size: must be at most.* got {2**32 - 1} for 3 x 7 x 5"),
    ({"crop_h": 8, "crop_w": 2}, ShapeError, "transform_param.crop_h: must be at most height and width of the picture, got 8 x 2"),
    ({"crop_h": 2, "crop_w": 6}, ShapeError, "must be at most height and width of the picture, got 2 x 6"),
    ({"mean_value": [1, 2]}, ShapeError, "mean_value: give one value, or one for each of the 3 channels of the picture, got 2")])
def test_wrong_fields(pixels, fields, kind, message):
    for load in (lambda rule: rule.load([datum(pixels[0])]).shape, lambda rule: rule.load_images([picture.transpose(1, 2, 0) for picture in pixels])):
        with pytest.raises(kind, match=message):
            load(Transformer(param(**fields), TEST))


def test_mean_of_doubles_is_counted(tmp_path, monkeypatch):
    blob = caffe_pb2.BlobProto(double_data=[1, 2, 3, 4], shape={"dim": [1, 1, 2, 2]})
    (tmp_path / "mean").write_bytes(blob.SerializeToString())
    assert read_mean(tmp_path / "mean").tolist() == [[[1, 2], [3, 4]]]
    write_mean(tmp_path / "mean", np.zeros((3, 4, 4), np.float32))
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "300")
    with pytest.raises(ShapeError, match="mean: the mean of shape 1x3x4x4 would take 384 bytes, the budget for one blob is 300"):
        read_mean(tmp_path / "mean")


@pytest.mark.parametrize(("content", "kind", "message"), [
    (None, FileError, "no such file"),
    (b"\xff\xff", DataError, "is cut off or damaged: .*; fetch the file again"),
    (caffe_pb2.BlobProto(num=1, channels=1, height=2, width=2, data=[1]), DataError, "holds 1 number in data, its shape 1x1x2x2 needs 4"),
    (caffe_pb2.BlobProto(num=2, channels=1, height=1, width=1, data=[1, 2]), DataError,
     "is no mean file: has the shape 2x1x1x1 in the place of 1 x channels x height x width"),
    (caffe_pb2.BlobProto(shape={"dim": [1 << 62, 1 << 62, 16]}, data=[]), DataError, "a blob holds at most 2147483647"),
    (caffe_pb2.BlobProto(), DataError, "is empty"),
    *((caffe_pb2.BlobProto(shape={"dim": shape}, data=[1] * int(np.prod(shape))), DataError, "has the shape .* in the place of 1 x channels")
      for shape in ([2, 2], [4], [1, 2, 1, 1, 1], [2, 1, 1, 1, 1], [2, 1, 1, 2])),
    *((caffe_pb2.BlobProto(shape={"dim": shape}), DataError, "holds a blob of shape .* without numbers") for shape in ([1, 3, 0, 5], [0, 2, 2]))])
def test_wrong_mean_files(tmp_path, content, kind, message):
    path = tmp_path / "mean"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    with pytest.raises(kind, match=message):
        Transformer(param(mean_file=str(path)), TEST)


def test_sizes_that_vary_inside_a_batch(pixels, tmp_path):
    records = [datum(pixels[0]), datum(pixels[1]), datum(pixels[2][:, :6])]
    write_mean(tmp_path / "mean", pixels[0].astype(np.float32))
    gray = datum(pixels[2][:1])
    for fields, wrong, words in (
            ({}, records, "record 2: is 3 x 6 x 5, the first of the batch is 3 x 7 x 5"),
            ({"mean_file": f"{tmp_path}/mean"}, records, "record 2: is 3 x 6 x 5, the first of the batch is 3 x 7 x 5"),      # not: the mean does not fit
            ({"crop_size": 5}, [*records[:2], datum(pixels[2][:, :4])], "record 2: .*got 5 for 3 x 4 x 5|record 2: is 3 x 4 x 5"),
            ({}, [records[0], datum(pixels[2][:, :, :4])], "record 1: is 3 x 7 x 4, the first of the batch is 3 x 7 x 5"),
            *(({"crop_size": 5, **mean}, [*records[:2], gray],       # the picture is what differs, not the mean
               "^record 2: is 1 x 7 x 5, the first of the batch is 3 x 7 x 5; use batch_size: 1, or crop_size for sizes that vary$")
              for mean in ({}, {"mean_value": [1]}, {"mean_value": [1, 2, 3]}))):
        with pytest.raises((DataError, ShapeError), match=words) as caught:
            Transformer(param(**fields), TEST).load(wrong)
        assert caught.value.record == len(wrong) - 1
    assert Transformer(param(crop_size=5), TEST).load(records).shape == (3, 3, 5, 5)


def test_a_bad_record_is_counted(pixels):
    encoded = caffe_pb2.Datum(encoded=True, data=b"zz").SerializeToString()
    for wrong, message in ((b"\x08", "is no Datum"), (encoded, "is marked encoded"),
                           (datum(pixels[0], height=8), "has channels x height x width = 3 x 8 x 5 but 105 bytes of data"),
                           (datum(pixels[0] / 2, width=4), "has channels x height x width = 3 x 7 x 4 but 105 elements"),
                           (datum(pixels[0], height=0), "has channels x height x width = 3 x 0 x 5, each must be at least 1")):
        with pytest.raises(DataError, match=f"record 1: {message}"):
            Transformer(param(), TEST).load([datum(pixels[0]), wrong])
    with pytest.raises(DataError, match="at least one record"):
        Transformer(param(), TEST).load([])


def test_arrays_to_fill_are_checked(pixels):
    batch = Transformer(param(), TEST).load([datum(pixels[0])])
    fits = np.empty(batch.shape, np.float32)
    for arrays, error, words in (
            ([np.empty((1, 3, 7, 4), np.float32)], ShapeError, "room for"), ([fits, np.empty(1)], ShapeError, "labels must be 1 of float32"),
            *(([fits, np.empty(count, np.float32)], ShapeError, f"labels must be 1 of float32, got .{count},. of float32") for count in (0, 2)),
            ([np.empty(batch.shape, np.int32)], ConfigError, "float32 or float64, got int32"),
            ([np.empty(batch.shape[::-1], np.float32).T], ConfigError, "C-contiguous")):
        with pytest.raises(error, match=words):
            batch.write(*arrays)


@pytest.mark.parametrize("seed", range(8))
def test_random_pictures_and_rules(tmp_path, seed):
    """Rows that are longer than what is reversed at once, rectangles, records, files and pictures, each mean, labels below 0, large numbers."""
    random = np.random.default_rng(seed)
    for _ in range(16):
        channels, height, width = int(random.choice([1, 2, 3, 4])), int(random.integers(1, 6)), int(random.choice([1, 5, 255, 256, 257, 600]))
        dtype, kind = random.choice([np.float32, np.float64]), random.choice([np.uint8, np.float32])
        pictures = random.integers(0, 256, (3, channels, height, width)).astype(kind)
        fields, phase, number = {"scale": 0.5}, [TRAIN, TEST][random.integers(2)], int(random.integers(1 << 62))
        if random.random() < 0.7:
            fields["mirror"] = True
        size = (int(random.integers(1, height + 1)), int(random.integers(1, width + 1))) if random.random() < 0.7 else None
        if size and random.random() < 0.5:
            size = (min(size), min(size))
            fields["crop_size"] = size[0]
        elif size:
            fields |= {"crop_h": size[0], "crop_w": size[1]}
        mean = np.zeros(pictures.shape[1:])
        means = random.integers(3)
        if means == 0:
            fields["mean_value"] = random.integers(0, 99, random.choice([1, channels])) + 0.5
            mean += fields["mean_value"][:, np.newaxis, np.newaxis]
        elif means == 1:
            mean = random.integers(0, 999, mean.shape) / 4
            write_mean(tmp_path / "mean", mean.astype(np.float32))
            fields["mean_file"] = str(tmp_path / "mean")
        labels, stride = random.integers(-9, 9, 3), int(random.integers(1, 4))
        transformer = Transformer(param(**fields), phase, seed=seed)
        form = random.choice(["records", "pictures", "files"])
        if form == "files" and kind == np.uint8 and channels in (1, 3):
            files = [cv2.imencode(".png", picture.transpose(1, 2, 0))[1].tobytes() for picture in pictures]
            batch = transformer.load([caffe_pb2.Datum(data=file, encoded=True, label=int(label)).SerializeToString() for file, label in zip(files, labels)])
        elif form == "pictures":
            batch = transformer.load_images(list(pictures.transpose(0, 2, 3, 1)), labels)
        else:
            batch = transformer.load([datum(picture, label=int(label)) for picture, label in zip(pictures, labels)])
        data, got = np.full(batch.shape, np.nan, dtype), np.empty(3, dtype)
        batch.write(data, got, number, stride)
        assert got.tolist() == labels.tolist()
        for i, picture in enumerate(pictures):
            wanted, cut = plain(picture, number + i * stride, phase, seed, dtype, 0.5, "mirror" in fields, mean, size)
            np.testing.assert_array_equal(data[i], wanted)
            assert transformer.window(height, width, number + i * stride) == cut


@pytest.mark.parametrize(("fields", "remedy"), [
    ({}, "); make the mean file from this database"),
    ({"resize_param": {"height": 7, "width": 5}}, ", after expand_param and resize_param); give a mean_value for each channel in place of the mean file"),
    ({"expand_param": {}}, ", after expand_param and resize_param); give a mean_value for each channel in place of the mean file")])
def test_mean_file_of_another_size(pixels, tmp_path, fields, remedy):
    write_mean(tmp_path / "mean", np.zeros((3, 4, 4), np.float32))
    with pytest.raises(ShapeError) as caught:
        Transformer(param(mean_file=f"{tmp_path}/mean", **fields), TEST).load([datum(pixels[0])])
    assert str(caught.value) == f"record 0: transform_param.mean_file: '{tmp_path}/mean' is 3 x 4 x 4, the picture is 3 x 7 x 5 (uncropped{remedy}"


@pytest.mark.parametrize("fields", [{}, {"force_color": True}, {"force_gray": True}])
@pytest.mark.parametrize("encoded", [False, True])
def test_force_fields(pixels, caplog, fields, encoded):
    """They have an effect on encoded pictures alone."""
    content = cv2.imencode(".png", pixels[0].transpose(1, 2, 0))[1].tobytes()
    record = caffe_pb2.Datum(data=content, encoded=True).SerializeToString() if encoded else datum(pixels[0])
    transformer = Transformer(param(**fields), TEST)
    for _ in range(3):
        assert transformer.load([record] * 2).shape == (2, 1 if encoded and "force_gray" in fields else 3, 7, 5)
    assert [record.message for record in caplog.records] == [
        "transform_param: force_color and force_gray change encoded pictures only, not raw ones"] * bool(fields and not encoded)


@pytest.mark.slow(1)
def test_batches_leave_no_memory_behind(pixels):
    """What the parsed fields of the records, the buffers and the pictures take, some 250 bytes a record."""
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    transformer, records = Transformer(param(), TEST), [datum(pixels[0])] * 4000
    transformer.load(records)
    before = resident()
    for _ in range(250):
        transformer.load(records)
    assert resident() - before < 32 << 20      # each of the three arrays alone would be more
    assert sys.getrefcount(records[0]) < 5000
