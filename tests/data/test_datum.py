"""Records as pictures, and bytes that are no Datum."""

import itertools
import os
import struct
import sys

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import datum

from minicaffe.data.datum import decode_image, picture_of, read_datum
from minicaffe.errors import ConfigError, DataError, DependencyError, Error
from minicaffe.proto import caffe_pb2


def test_bytes(pixels):
    for label in 7, -3:
        record = datum(pixels[0], label=label)
        assert read_datum(record) == caffe_pb2.Datum(channels=3, height=7, width=5, label=label, data=pixels[0].tobytes())
        assert all((picture_of(read_datum(content)) == pixels[0]).all() for content in (record, memoryview(record)))
    assert read_datum(caffe_pb2.Datum(channels=1, height=1, width=1, data=b"a").SerializeToString()).label == 0


def floats_one_by_one(values):
    return b"".join(b"\x35" + struct.pack("<f", v) for v in values)


def floats_packed(values):
    return b"\x32" + bytes([4 * len(values)]) + struct.pack(f"<{len(values)}f", *values)


def test_float_data_in_every_form():
    values = [0.5, -1.0, 3.25, 1e-3, 7.0, float("inf")]
    for body in (floats_one_by_one(values), floats_packed(values), floats_packed(values[:2]) + b"\x28\x05" + floats_packed(values[2:]),
                 floats_one_by_one(values[:1]) + floats_packed(values[1:4]) + floats_one_by_one(values[4:])):
        assert (picture_of(read_datum(b"\x08\x01\x10\x02\x18\x03" + body)) == np.array(values, np.float32).reshape(1, 2, 3)).all()
    # Data come before float_data; fields have any order, the last counts
    message = caffe_pb2.Datum(channels=1, height=1, width=2, data=b"ab", float_data=[1.0])
    for content in message.SerializeToString(), b"\x22\x01z" + b"\x22\x02ab" + b"\x18\x09\x18\x02\x10\x01\x08\x01":
        assert picture_of(read_datum(content)).tolist() == [[[97, 98]]]


def check_refused(channels, height, width, size, words):
    """Of bytes, and of as many elements of float_data."""
    for content, end in ({"data": bytes(size)}, words), ({"float_data": [1] * size}, words.replace("bytes", "elements of float_data")):
        record = caffe_pb2.Datum(channels=channels, height=height, width=width, **content).SerializeToString()
        with pytest.raises(DataError, match="has channels x height x width = " + end):
            read_datum(record)


def test_shape_must_fit_the_bytes():
    for record in b"not a datum at all", b"\x08", b"\x22\x05abc", b"\x00\x01", b"\x32\x03abc", b"":
        with pytest.raises(DataError, match="is no Datum, or is damaged .*; make the database again" if record else "neither data nor float_data"):
            read_datum(record)
    for shape in (-1, -2, 2), (1, 65536, 65536), (2147483647,) * 3, (1 << 30, 1 << 30, 16):      # 2^32 elements, 2^64
        check_refused(*shape, 4, f"{' x '.join(map(str, shape))}{' but 4 bytes' if min(shape) > 0 else ', each must be at least 1'}")
    for shape in itertools.product(range(-1, 4), repeat=3):
        for size in (1, 2, 3, 4, 6, 8, 12, 18, 27):
            if min(shape) > 0 and np.prod(shape) == size:
                for content in ({"data": bytes(size)}, {"float_data": [0.0] * size}):
                    record = caffe_pb2.Datum(channels=shape[0], height=shape[1], width=shape[2], **content).SerializeToString()
                    assert picture_of(read_datum(record)).shape == shape
            else:
                check_refused(*shape, size, f"{' x '.join(map(str, shape))}{f' but {size} bytes' if min(shape) > 0 else ', each must be at least 1'}")


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes(record):
    try:
        array = picture_of(read_datum(record))
    except Error:
        return
    assert array.ndim == 3 and array.size


@pytest.mark.parametrize(("flags", "channels"), [({}, 1), ({"force_color": True}, 3), ({"force_gray": True}, 1)])
def test_force_flags(pixels, flags, channels):
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    decoded = decode_image(cv2.imencode(".png", image)[1].tobytes(), **flags)
    assert decoded.shape == (3, 4, channels) and (decoded == image[:, :, None]).all()
    content = cv2.imencode(".png", pixels[0].transpose(1, 2, 0))[1].tobytes()
    record = read_datum(caffe_pb2.Datum(data=content, encoded=True, label=4).SerializeToString())
    assert record.encoded and (picture_of(record) == pixels[0]).all()
    image = np.ascontiguousarray(pixels[0].transpose(1, 2, 0))
    decoded = decode_image(cv2.imencode(".png", image)[1].tobytes() + b"\xff" * 20, **flags)      # bytes behind the end are no chunks
    wanted = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[:, :, None] if "force_gray" in flags else image
    assert abs(decoded.astype(int) - wanted).max() <= ("force_gray" in flags)


def test_pictures_that_cannot_be_decoded():
    for call, error, words in (
            (lambda: decode_image(b"no file"), DataError, "cannot decode its 7 bytes"),
            (lambda: picture_of(read_datum(caffe_pb2.Datum(encoded=True).SerializeToString())), DataError,
             "^is marked encoded, but OpenCV cannot decode its 0 bytes$"),
            (lambda: decode_image(cv2.imencode(".png", np.zeros((2, 2), np.uint16))[1].tobytes()), DataError, "uint16 samples"),
            (lambda: decode_image(b"", True, True), ConfigError, "cannot both"),
            (lambda: decode_image(b"P5 65536 65536 255\n"), DataError,      # of a PGM, why OpenCV refuses it
             "^is marked encoded, but OpenCV cannot decode its 19 bytes: .*PIXELS")):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("chunk", [(1 << 31) - 1, 14, 13])
def test_png_that_declares_too_much(monkeypatch, chunk):
    """OpenCV would allocate what a chunk declares."""
    content = b"\x89PNG\r\n\x1a\n" + chunk.to_bytes(4, "big") + b"IHDR" + bytes(13 if chunk > 13 else 0)
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("OpenCV was called"))
    with pytest.raises(DataError, match=f"OpenCV cannot decode its {len(content)} bytes$"):
        decode_image(content)


def test_without_opencv(monkeypatch):
    class NoOpenCV:
        @staticmethod
        def find_spec(name, *_):
            if name == "cv2":
                raise ImportError(name)

    monkeypatch.delitem(sys.modules, "cv2")
    monkeypatch.setattr(sys, "meta_path", [NoOpenCV, *sys.meta_path])
    with pytest.raises(DependencyError, match=r'pip install "minicaffe\[images\]"'):
        decode_image(b"x")


@pytest.mark.parametrize(("given", "seen"), [
    (None, str(1 << 30)), ("", str(1 << 30)), ("1000", "1000"), ("7Mb", "7Mb"), ("5KB", "5KB"), ("much", None), ("-1", None), ("1" * 20, None), ("7Xb", None)])
@pytest.mark.parametrize("installed", [True, False])
def test_limit_of_pixels(tmp_path, monkeypatch, given, seen, installed):
    """That of the environment counts; the environment is afterwards as it was, and a value of which OpenCV would end the process is an error."""
    from minicaffe.data import datum
    variable = datum.PIXEL_LIMIT_VARIABLE
    content = f"import os\nlimit = os.environ['{variable}']\n"
    (tmp_path / "cv2.py").write_text(content if installed else content + "raise ImportError")
    monkeypatch.delitem(sys.modules, "cv2")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(datum, "max_blob_bytes", lambda: 1 << 40)
    monkeypatch.delenv(variable, raising=False)
    if given is not None:
        monkeypatch.setenv(variable, given)
    try:
        if seen is None or not installed:
            error, words = (ConfigError, f"^{variable}: must be a number of pixels, got '") if seen is None else (DependencyError, "pictures need OpenCV")
            with pytest.raises(error, match=words):
                datum.opencv()
        else:
            assert datum.opencv().limit == seen
            monkeypatch.delitem(sys.modules, "cv2")
            monkeypatch.setattr(datum, "max_blob_bytes", lambda: 4000)
            assert datum.opencv().limit == (given or "1000")
        assert os.environ.get(variable) == given
    finally:
        sys.modules.pop("cv2", None)    # the real one is put back
