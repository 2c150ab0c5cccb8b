"""Labels that are real numbers: the text of a list, and the records of a database."""

import numpy as np
import pytest
from command_line import data
from records import datum

from minicaffe.data.datum import labels_of, read_datum
from minicaffe.data.numbers import label_fields, real
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
    labels = labels_of(read_datum(message.SerializeToString()), 2)
    assert labels.dtype == np.float32 and labels.tolist() == [np.float32(0.1), -2]
    with pytest.raises(DataError, match="has 2 elements of float_data beside the picture, label_size says 3"):
        labels_of(read_datum(message.SerializeToString()), 3)
    with pytest.raises(DataError, match="has 0 elements of float_data beside the picture, label_size says 1"):
        labels_of(read_datum(record), 1)
    with pytest.raises(DataError, match="its float_data is the picture, as it has no data"):
        labels_of(read_datum(datum(pixels.astype(np.float32))), 24)
    with pytest.raises(DataError, match="is no Datum"):
        labels_of(read_datum(b"\x08"), 1)


@pytest.mark.parametrize("text, size, words", [
    ("a.png cat\nb.png dog\n", None, "list.txt:1: label 'cat' is not an integer; a line must end in the number of its class\n"),
    ("a.png 1e1\n", None, "not an integer; label_size of ImageData, or --float-labels, takes labels that are real numbers\n"),
    ("a.png\n", None, "list.txt:1: a line must be a path, a space and a label, got 'a.png'"), ("\n", 2, "list.txt: the image list is empty"),
    ("a.png 1 2\nb.png 1\n", 2, "list.txt:2: a line must be a path, a space and 2 labels, got 'b.png 1'"),
    ("a.png 1 ?\n", 2, "list.txt:1: label '?' is not a number")])  # fmt: skip
def test_wrong_lists(tmp_path, monkeypatch, text, size, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text(text)
    arguments = ("--float-labels", size) if size else ()
    result = data("images", "./", "list.txt", "db", *map(str, arguments))
    assert result.exit_code == 1 and words in result.stderr and not (tmp_path / "db").exists()
