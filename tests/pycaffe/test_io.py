"""caffe.io: messages and arrays both ways, crops, and the Transformer's steps in order."""

import itertools
import os
from io import BytesIO, UnsupportedOperation

import numpy as np
import pytest

from minicaffe import io
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, DataError, FileError, ShapeError, WrongTypeError
from minicaffe.proto import binary_writer, caffe_pb2


def test_blobs_both_ways(monkeypatch):
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(7).reshape(())]
    back = io.blobprotovector_str_to_arraylist(io.arraylist_to_blobprotovector_str(arrays))
    for array, other in zip(arrays, back):
        assert array.shape == other.shape
        np.testing.assert_array_equal(array, other)
    legacy = caffe_pb2.BlobProto(num=1, channels=2, height=1, width=3, data=range(6))
    assert io.blobproto_to_array(legacy).shape == (1, 2, 1, 3)
    with pytest.raises(DataError, match=r"holds 100 numbers in data, its shape \(\) needs 1"):
        io.blobproto_to_array(caffe_pb2.BlobProto(data=[0] * 100))
    array = np.arange(6).reshape(2, 3)
    blob = io.array_to_blobproto(array, -array)
    assert list(blob.data) == list(range(6)) and list(blob.shape.dim) == [2, 3]
    np.testing.assert_array_equal(io.blobproto_to_array(blob, return_diff=True), -array)
    blob.ClearField("data")
    np.testing.assert_array_equal(io.blobproto_to_array(blob, return_diff=True), -array)
    with pytest.raises(DataError, match="holds no numbers, its shape 2x3 needs 6"):
        io.blobproto_to_array(blob)
    doubles = caffe_pb2.BlobProto(shape=blob.shape, double_data=range(6))
    np.testing.assert_array_equal(io.blobproto_to_array(doubles), array)
    with pytest.raises(DataError, match="holds no diffs"):
        io.blobproto_to_array(doubles, return_diff=True)
    with pytest.raises(DataError, match="holds 5 numbers, its shape 2x3 needs another count"):
        io.array_to_blobproto(array, np.zeros(5))
    monkeypatch.setattr(binary_writer, "MAX_FILE", 412)
    blob = Blob((101,))
    proto = blob.to_proto(caffe_pb2.BlobProto())
    for write in (lambda: io.array_to_blobproto(np.zeros(102)), lambda: blob.to_proto(proto, write_diff=True)):
        with pytest.raises(DataError, match=r"would have \d+ bytes as a BlobProto, protobuf reads 412 at most"):
            write()
    assert len(proto.data) == 101


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_datum_both_ways(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    datum = io.array_to_datum(array, 5)
    assert datum.label == 5 and bool(datum.data) == (dtype == np.uint8)
    np.testing.assert_array_equal(io.datum_to_array(datum), array)
    with pytest.raises(ShapeError, match="channels, height, width"):
        io.array_to_datum(array[0])
    assert io.array_to_datum(array, np.int64(-7)).label == -7
    with pytest.raises(WrongTypeError, match=r"a label \(HDF5Data takes real numbers\) must be an int, got 0.865"):
        io.array_to_datum(array, 0.865)
    with pytest.raises(ValueError, match="4294967296"):
        io.array_to_datum(array, 1 << 32)
    for shape in (-1, -1, 4), (-2, 2, -1), (-1, 4, -1), (2, 2, 2), (0, 2, 2):
        datum = caffe_pb2.Datum(channels=shape[0], height=shape[1], width=shape[2], data=b"abcd")
        with pytest.raises(ShapeError, match=f"^data: 4 values do not fit channels x height x width = {' x '.join(map(str, shape))}$"):
            io.datum_to_array(datum)
    assert io.datum_to_array(caffe_pb2.Datum(channels=0, height=2, width=2)).shape == (0, 2, 2)     # no values, as many as there are


def test_oversample():
    """Corners, centre and mirrors."""
    image = np.arange(5 * 8, dtype=np.float32).reshape(5, 8, 1)
    crops = io.oversample([image], (3, 4))
    assert crops.shape == (10, 3, 4, 1)
    for crop, (top, left) in zip(crops, ((0, 0), (0, 4), (2, 0), (2, 4), (1, 2))):
        np.testing.assert_array_equal(crop, image[top:top + 3, left:left + 4])
    np.testing.assert_array_equal(crops[5:], crops[:5, :, ::-1])
    assert io.oversample([image], (5, 8)).shape == (10, 5, 8, 1) and io.oversample([image], (1, 1)).shape == (10, 1, 1, 1)
    for size in (0, 3), (3, -1), (6, 3), (3, 9):
        with pytest.raises(ShapeError, match=f"crop_dims: crops of {size[0]}x{size[1]} do not fit"):
            io.oversample([image], size)


def test_transformer_there_and_back():
    image = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    before = image.copy()
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 0, 1))
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", np.array([104.0, 117, 123]))
    transformer.set_input_scale("data", 0.5)
    made = transformer.preprocess("data", image)
    want = (image.transpose(2, 0, 1)[[2, 0, 1]] * 255 - np.array([104, 117, 123]).reshape(3, 1, 1)) * 0.5
    np.testing.assert_allclose(made, want, rtol=1e-5)
    np.testing.assert_array_equal(image, before)
    np.testing.assert_allclose(transformer.deprocess("data", made), image, atol=1e-5)


def test_resize():
    """Bilinear between pixel centres; outside lies the lowest value, which darkens an enlarged border."""
    image = np.array([[1, 3], [5, 7]], np.float32)[:, :, np.newaxis]
    made = io.resize_image(image, (4, 4))[:, :, 0]
    np.testing.assert_allclose(made[1:3, 1:3], [[2.5, 3.5], [4.5, 5.5]])
    np.testing.assert_allclose(made[0, :], [1, 1 + 0.75 * 0.5, 1 + 0.75 * 1.5, 1 + 0.75 * 0.75 * 2], rtol=1e-6)
    down = io.resize_image(np.arange(16, dtype=np.float32).reshape(4, 4, 1), (2, 2))[:, :, 0]
    np.testing.assert_allclose(down, [[2.5, 4.5], [10.5, 12.5]])
    same = io.resize_image(image, (2, 2))
    np.testing.assert_array_equal(same, image)
    assert not np.shares_memory(same, image)
    np.testing.assert_array_equal(io.resize_image(np.full((2, 3, 3), 4.0), (5, 5)), np.full((5, 5, 3), 4))
    corners = io.resize_image(np.repeat(image, 2, axis=2), (3, 3))[:, :, 1]
    np.testing.assert_allclose(corners, [[1, 2, 3], [3, 4, 5], [5, 6, 7]])
    for order in (0, 3):
        assert io.resize_image(image, (4, 4), order).shape == (4, 4, 1)
    np.testing.assert_array_equal(io.resize_image(image, (4, 4), 0)[:, :, 0], np.repeat(np.repeat([[1, 3], [5, 7]], 2, 0), 2, 1))
    for wrong in (dict(new_dims=(0, 2)), dict(new_dims=(2, 3), interp_order=2)):
        with pytest.raises((ConfigError, ShapeError)):
            io.resize_image(image, **wrong)


def test_load_image(tmp_path):
    cv2 = pytest.importorskip("cv2")
    bgr = np.random.default_rng(0).integers(0, 255, (4, 5, 3)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "c.png"), bgr)
    cv2.imwrite(str(tmp_path / "a.png"), np.dstack([bgr, bgr[:, :, 0]]))
    cv2.imwrite(str(tmp_path / "g.png"), bgr[:, :, 0])
    cv2.imwrite(str(tmp_path / "w.png"), bgr[:, :, 0].astype(np.uint16) * 257)
    colour = io.load_image(tmp_path / "c.png")
    np.testing.assert_allclose(colour, bgr[:, :, ::-1] / 255, rtol=1e-6)
    np.testing.assert_array_equal(io.load_image(str(tmp_path / "a.png")), colour)
    np.testing.assert_allclose(io.load_image(tmp_path / "c.png", color=False)[:, :, 0], colour @ [0.2125, 0.7154, 0.0721], rtol=1e-6)
    grey = io.load_image(tmp_path / "g.png", color=False)
    assert grey.shape == (4, 5, 1) and grey.dtype == np.float32
    np.testing.assert_array_equal(io.load_image(tmp_path / "g.png"), np.repeat(grey, 3, axis=2))
    np.testing.assert_allclose(io.load_image(tmp_path / "w.png", color=False), grey, rtol=1e-6)
    with pytest.raises(RuntimeError, match="did you mean 'c.png'|no such file"):
        io.load_image(tmp_path / "b.png")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(RuntimeError, match="as a picture"):
        io.load_image(tmp_path / "text.png")


def test_file_objects_and_bytes(tmp_path):
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "c.png"
    cv2.imwrite(str(path), np.random.default_rng(2).integers(0, 256, (5, 4, 3), np.uint8))
    content, want = path.read_bytes(), io.load_image(path)
    for source in (content, bytearray(content), memoryview(content), BytesIO(content)):
        np.testing.assert_array_equal(io.load_image(source), want)
    np.testing.assert_array_equal(io.load_image(BytesIO(content), color=False), io.load_image(path, color=False))
    with open(path, "rb") as file:
        np.testing.assert_array_equal(io.load_image(file), want)
        assert not file.closed
        np.testing.assert_array_equal(io.load_image(file), want)   # from the beginning again: the file is at its end
    memory = BytesIO()
    memory.write(content)       # as Pillow's save() leaves it: at its end

    class Body:   # of a web request: it cannot seek
        def read(self):
            return content

    class Pipe(Body):
        def seek(self, position):
            raise UnsupportedOperation("seek")

    for stream in memory, Body(), Pipe():
        np.testing.assert_array_equal(io.load_image(stream), want)


def test_wrong_files_and_paths(tmp_path):
    cv2 = pytest.importorskip("cv2")
    (tmp_path / "text.png").write_text("no picture")
    with open(tmp_path / "text.png", "rb") as file, pytest.raises(FileError, match="text.png: cannot be read as a picture, .* 10 bytes"):
        io.load_image(file)
    for empty in (b"", BytesIO()):
        with pytest.raises(FileError, match="cannot be read as a picture, .* 0 bytes"):
            io.load_image(empty)
    with open(tmp_path / "text.png") as file, pytest.raises(WrongTypeError, match='gives text; open the picture with "rb"'):
        io.load_image(file)
    with pytest.raises(WrongTypeError, match="takes a path, a file object or bytes, got ndarray"):
        io.load_image(np.zeros((2, 2)))
    upload = BytesIO(b"?")
    upload.filename = "cat.jpg"
    with pytest.raises(FileError, match="cat.jpg: cannot"):
        io.load_image(upload)
    # A number, as of a descriptor that was opened, is no name
    with os.fdopen(os.open(tmp_path / "text.png", os.O_RDONLY), "rb") as file, pytest.raises(FileError, match="^<BufferedReader>: cannot be read as a picture"):
        io.load_image(file)
    for name, filename, shown in ((3, None, "<BytesIO>"), ("a.png", None, "a.png"), ("a.png", "b.png", "b.png"), ("a.png", 5, "<BytesIO>")):
        upload = type("BytesIO", (BytesIO,), {})(b"?")
        upload.name, upload.filename = name, filename
        with pytest.raises(FileError, match=f"^{shown}: cannot be read as a picture"):
            io.load_image(upload)
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
    with pytest.raises(FileError, match="no such file"):
        io.load_image(path)
    with open(path, "wb") as file:
        file.write(cv2.imencode(".png", np.full((2, 3, 3), 255, np.uint8))[1])
    np.testing.assert_array_equal(io.load_image(path), np.ones((2, 3, 3)))
    (tmp_path / "loop.png").symlink_to("loop.png")
    for name, words in ((tmp_path, "is a folder; name a file"), (tmp_path / "loop.png", "symbolic links"), ("a\0b", "no usable path")):
        with pytest.raises(FileError, match=words):
            io.load_image(name)


def test_orders_of_a_transformer():
    """An axis that is counted from the last one came back in another order from `deprocess`."""
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    image = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    transformer.set_transpose("data", (-1, 0, 1))
    np.testing.assert_array_equal(transformer.preprocess("data", image), image.transpose(2, 0, 1))
    np.testing.assert_array_equal(transformer.deprocess("data", image.transpose(2, 0, 1)), image)
    for order in (0, 1, 4), (0, 1, -2), (0, 1, 1), (2, 0, -1), (0.5, 1, 2):
        with pytest.raises(ConfigError, match="transpose: must have each axis once, 0 to 2, got"):
            transformer.set_transpose("data", order)
    for order in (0, 1), (0, 1, 2, 3):
        with pytest.raises(ConfigError, match=rf"^transpose: must have 3 entries, got \[{', '.join(map(str, order))}\]"):
            transformer.set_transpose("data", order)
    for order in (0, 1, 3), (0, 1, -1), (0.5, 1, 2), (0, 1), (0, 1, 2, 0):
        with pytest.raises(ConfigError, match="^channel_swap: must have a channel, 0 to 2, for each of them, got"):
            transformer.set_channel_swap("data", order)
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    for call in "preprocess", "deprocess", "set_transpose", "set_channel_swap", "set_raw_scale", "set_mean", "set_input_scale":
        value = {"set_transpose": (2, 0, 1), "set_channel_swap": (2, 1, 0), "set_mean": np.zeros(3)}.get(call, 1.0)
        with pytest.raises(ConfigError, match=r"^'label' is not one of the inputs \['data'\]$"):
            getattr(transformer, call)("label", np.zeros((4, 5, 3)) if call.endswith("process") else value)
    assert not any("label" in getattr(transformer, name) for name, *_ in io.STEPS)


@pytest.mark.parametrize("centres", [True, False])
def test_interpolation_taps(centres):
    """Of all small sizes: the nearest sample, a line, and by the cubic (Keys 1981, a = -1/2) a parabola, if all samples exist."""
    for length, size, order in itertools.product(range(1, 8), range(1, 12), (0, 1, 3)):
        index, weight = io.interpolation_taps(length, size, order, centres)
        assert index.shape == weight.shape == (order + 1, size) and index.min() >= 0 and index.max() < length
        place = (np.arange(size) + 0.5) * length / size - 0.5 if centres else np.linspace(0, length - 1, size)
        if order == 0:
            assert (abs(index - place.clip(0, length - 1)) <= 0.5 + 1e-9).all() and (weight == 1).all()
            continue
        margin, power = (0, 1) if order == 1 else (1, 2)
        inside = (place >= margin) & (place <= length - 1 - margin)
        made = (weight * index ** power).sum(0)
        np.testing.assert_allclose(made[inside], place[inside] ** power, atol=1e-9, err_msg=f"{length} to {size} by order {order}")
        assert centres or np.allclose(weight.sum(0), 1)


def test_means_of_a_transformer():
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    gray = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_array_equal(transformer.preprocess("data", gray), gray)     # has the size: nothing to resize
    transformer.set_mean("data", gray)
    np.testing.assert_array_equal(transformer.mean["data"], gray[np.newaxis])
    larger = np.random.default_rng(1).random((3, 7, 6)).astype(np.float32)
    transformer.set_mean("data", larger)
    assert transformer.mean["data"].shape == (3, 4, 5)
    for made, channel in zip(transformer.mean["data"], larger):
        lowest = larger.min()       # outside of the picture
        wanted = io.resize_image(np.stack([channel, np.full_like(channel, lowest), channel], 2), (4, 5))[:, :, 0]
        np.testing.assert_allclose(made, wanted, rtol=1e-5)
    for wrong, words in ((np.zeros((2, 4, 5)), "must have 3 channels, got 2"), (np.zeros(()), "must have 1 to 3 axes, got 0"),
                         (np.zeros((1, 3, 4, 5)), "must have 1 to 3 axes, got 4"), (np.zeros(4), "must have one value for each of the 3 channels, got 4")):
        with pytest.raises(ShapeError, match=f"^mean: {words}"):
            transformer.set_mean("data", wrong)


def test_picture_that_fails_in_opencv(tmp_path, monkeypatch):
    cv2 = pytest.importorskip("cv2")

    def fail(*_):
        error = cv2.error("too large")
        error.err = "too large"     # as OpenCV sets it
        raise error

    monkeypatch.setattr(cv2, "imdecode", fail)
    (tmp_path / "a.png").write_bytes(b"content")
    upload = BytesIO(b"content")
    upload.filename = "cat.jpg"
    for given, name in ((str(tmp_path / "a.png"), f"{tmp_path}/a.png"), (upload, "cat.jpg")):
        with pytest.raises(FileError, match=f"^{name}: cannot be read as a picture, OpenCV cannot decode its 7 bytes: too large; check"):
            io.load_image(given)
