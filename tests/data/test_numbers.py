"""Labels in the text of a list and in the records of a database: integers, and real numbers."""

import numpy as np
import pytest
from command_line import data
from records import datum

from minicaffe.data.datum import labels_of, read_datum
from minicaffe.data.numbers import integer, label_fields, real
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2


@pytest.mark.parametrize(("read", "text", "value"), [
    *((real, text, value) for text, value in (
        ("2.883", 2.883), ("-0", 0), ("+.5", 0.5), ("3.", 3), ("1e-3", 1e-3), ("16777216", 2**24), ("-1.5E+3", -1500), ("0.000", 0), ("0e99", 0))),
    *((integer, text, value) for text, value in (("0", 0), ("007", 7), ("+3", 3), ("-2147483648", -(1 << 31)), ("2147483647", (1 << 31) - 1)))])
def test_numbers(read, text, value):
    assert (read(text, "label") if read is integer else read(text)) == value


@pytest.mark.parametrize(("read", "text", "message"), [
    *((real, text, f"label '{text[:80]}' is not a number$") for text in (
        "", "nan", "inf", "-Infinity", "0x1p3", "1_000", "1,5", "7x", ".", "e5", "\u0663", "1" * 100 + "x")),
    *((real, text, "label .* does not fit into a float32") for text in ("1e39", "-3.5e38", "1e-50", "-0.01e-50", "9" * 400, "1e999999")),
    *((real, text, rf"label {text} becomes {np.float32(int(text)):.0f} in a float32") for text in ("16777217", "-33554433", "123456789")),
    *((integer, text, f"label '{text}' is not an integer; use one$") for text in (
        "", "2.883", "3.0", "7x", "1e3", "1_000", "0x10", "--2", " 1", "\u00b2", "\u0663", "nan", "cat")),
    *((integer, text, "label -?[0-9]{10,80} does not fit into 32 bits$") for text in ("2147483648", "-2147483649", "9" * 5000))])
def test_wrong_numbers(read, text, message):
    with pytest.raises(DataError, match=f"^{message}"):
        read(text, "label", "use one") if read is integer else read(text)


def test_lower_bound():
    assert integer("1", "a height", least=1) == 1
    with pytest.raises(DataError, match="^a height must be at least 1, got 0$"):
        integer("0", "a height", least=1)


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
