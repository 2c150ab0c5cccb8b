"""Labels that are real numbers: the text of a list, and the records of a database."""

import numpy as np
import pytest
from records import datum

from minicaffe.data.datum import datum_labels
from minicaffe.data.real_labels import label_fields, real
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2


@pytest.mark.parametrize(("text", "value"), [
    ("2.883", 2.883), ("-0", 0), ("+.5", 0.5), ("3.", 3), ("1e-3", 1e-3), ("16777216", 2**24), ("-1.5E+3", -1500), ("0.000", 0), ("0e99", 0),
])
def test_numbers(text, value):
    assert real(text) == value


@pytest.mark.parametrize("text", ["", "nan", "inf", "-Infinity", "0x1p3", "1_000", "1,5", "7x", ".", "e5", "\u0663", "1" * 100 + "x"])
def test_what_is_no_number(text):
    with pytest.raises(DataError, match=f"^label '{text[:80]}' is not a number$"):
        real(text)


@pytest.mark.parametrize("text", ["1e39", "-3.5e38", "1e-50", "-0.01e-50", "9" * 400, "1e999999"])
def test_what_float32_does_not_hold(text):
    with pytest.raises(DataError, match="does not fit into a float32"):
        real(text)


@pytest.mark.parametrize("text", ["16777217", "-33554433", "123456789"])
def test_an_integer_that_float32_rounds(text):
    with pytest.raises(DataError, match=rf"^label {text} becomes {np.float32(int(text)):.0f} in a float32"):
        real(text)


def test_labels_of_a_record():
    pixels = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    record = datum(pixels)
    assert label_fields(3) == {"label": 3}
    message = caffe_pb2.Datum.FromString(record)
    message.MergeFrom(caffe_pb2.Datum(**label_fields((0.1, -2.0))))
    labels = datum_labels(message.SerializeToString(), 2)
    assert labels.dtype == np.float32 and labels.tolist() == [np.float32(0.1), -2]
    with pytest.raises(DataError, match="has 2 elements of float_data beside the picture, label_size says 3"):
        datum_labels(message.SerializeToString(), 3)
    with pytest.raises(DataError, match="has 0 elements of float_data beside the picture, label_size says 1"):
        datum_labels(record, 1)
    with pytest.raises(DataError, match="its float_data is the picture, as it has no data"):
        datum_labels(datum(pixels.astype(np.float32)), 24)
    with pytest.raises(DataError, match="is no Datum"):
        datum_labels(b"\x08", 1)
