"""Labels in the text of a list and in the records of a database: integers, and real numbers."""

import numpy as np
import pytest
from command_line import data
from records import datum

import minicaffe
from minicaffe.data.datum import labels_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.data.image_list import ImageList
from minicaffe.data.numbers import integer, label_fields, real
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text


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


def test_labels_of_a_record():
    pixels = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    record, message = datum(pixels), caffe_pb2.Datum.FromString(datum(pixels))
    assert label_fields(3) == {"label": 3} and integer("1", "a height", least=1) == 1
    message.MergeFrom(caffe_pb2.Datum(**label_fields((0.1, -2.0))))
    labels = labels_of(read_datum(message.SerializeToString()), 2)
    assert labels.dtype == np.float32 and labels.tolist() == [np.float32(0.1), -2]
    for content, size, words in ((message.SerializeToString(), 3, "has 2 elements of float_data beside the picture, label_size says 3"),
                                 (record, 1, "has 0 elements of float_data beside the picture, label_size says 1"),
                                 (datum(pixels.astype(np.float32)), 24, "its float_data is the picture, as it has no data"), (b"\x08", 1, "is no Datum")):
        with pytest.raises(DataError, match=words):
            labels_of(read_datum(content), size)
    with pytest.raises(DataError, match="^a height must be at least 1, got 0$"):
        integer("0", "a height", least=1)


@pytest.mark.parametrize("text, size, words", [
    ("a.png cat\nb.png dog\n", None, "list.txt:1: label 'cat' is not an integer; a line must end in the number of its class\n"),
    ("a.png 4294967296\n", None, "list.txt:1: label 4294967296 does not fit"),
    ("a.png 1e1\n", None, "not an integer; label_size of ImageData, or --float-labels, takes labels that are real numbers\n"),
    ("a.png\n", None, "list.txt:1: a line must be a path, a space and a label, got 'a.png'"), ("\n", 2, "list.txt: the image list is empty"),
    ("a.png 1 2\nb.png 1\n", 2, "list.txt:2: a line must be a path, a space and 2 labels, got 'b.png 1'"),
    ("a.png 1 ?\n", 2, "list.txt:1: label '?' is not a number"),
    ("file,x,y\na.png,1,2\nb.png,1\n", 2, "list.csv:3: a line must be a path, a comma and 2 labels, got 'b.png,1'"),
    ("file,x,y\na.png,1,2\nb.png,1,2,3\n", 2, "list.csv:3: a line must be a path, a comma and 2 labels, got 'b.png,1,2,3'"),
    ("file,x\na.png,1,2\n", 2, "list.csv:1: a line must be a path, a comma and 2 labels, got 'file,x'"),
    ("file,x,y\n\na.png,1,?\n", 2, "list.csv:3: label '?' is not a number"), ("file,x,7\na.png,1,2\n", 2, "list.csv:1: label 'x' is not a number"),
    ("file,x,y\n", 2, "list.csv: the image list has no line below its header"), ("a.png,0.5\n", None, "list.csv:1: label '0.5' is not an integer"),
    ("a.png,nan,nan\nb.png,0,1\n", 2, "list.csv:1: label 'nan' is not a number"),
    ("file,x,y\n\"a.png,1,2\n", 2, "list.csv:2: a line must be a path, a comma and 2 labels"), ("file,x\n" + "a" * 200_000 + ",1\n", 1, "list.csv:2: a line must be"),
    ("a.png,cat\nb.png,dog\n", None, "list.csv:1: label 'cat' is not an integer; a line must end in the number of its class\n"),
    ("a.png,1e1\n", None, "list.csv:1: label '1e1' is not an integer; label_size of ImageData, or --float-labels, takes labels that are real numbers\n"),
    ("a.png;0\nb.png;1\n", None, "list.csv:1: a line must be a path, a comma and a label, got 'a.png;0'"),
    ("a.png;0;1\n", 2, "list.csv:1: a line must be a path, a comma and 2 labels, got 'a.png;0;1'"),
    ("file,class\na.png,1,2\n", None, "list.csv:2: a line must be a path, a comma and a label, got 'a.png,1,2'")])  # fmt: skip
def test_wrong_lists(tmp_path, monkeypatch, text, size, words):
    monkeypatch.chdir(tmp_path)
    name = "list.csv" if "list.csv" in words else "list.txt"
    (tmp_path / name).write_text(text)
    arguments = ("--float-labels", size) if size else ()
    result = data("images", "./", name, "db", *map(str, arguments))
    assert result.exit_code == 1 and words in result.stderr and not (tmp_path / "db").exists()


# ---- lists with commas

TABLE = "file,x,y\na b.png,0.5,-1\n\n\"c,d.png\", 2 ,3e-1\n"


@pytest.mark.parametrize("text", [TABLE, TABLE.partition("\n")[2], "\ufeff" + TABLE, TABLE.replace("\n", "\r\n")])
def test_list_with_commas(tmp_path, text):
    (tmp_path / "list.CSV").write_text(text, newline="")
    images = ImageList(tmp_path / "list.CSV", 2)
    assert images.entries == [("a b.png", (0.5, -1.0)), ("c,d.png", (2.0, 0.3))]
    assert images.locate(DataError("wrong"), 1).line == len(text.splitlines())


def test_integers_and_spaces_in_a_csv(tmp_path):
    for text, size, entries in (
            ("file,class\na b.png,3\n", None, [("a b.png", 3)]), ("file,class 0\na.png, 3\n", None, [("a.png", 3)]),
            *((f"{name} 3\n{name} 4\n", None, [(name, 3), (name, 4)]) for name in ("a b.png", "a,b.png", "a, 1.png")),
            *((f"{name} 0.5 1\n", 2, [(name, (0.5, 1))]) for name in ("a b.png", "a,b.png", "a, 1.png"))):
        (tmp_path / "list.csv").write_text(text)
        assert ImageList(tmp_path / "list.csv", size).entries == entries


def test_database_of_a_list_with_commas(tmp_path, monkeypatch, capsys):
    cv2 = pytest.importorskip("cv2")
    monkeypatch.chdir(tmp_path)
    for name in "a b.png", "c,d.png":
        cv2.imwrite(name, np.zeros((4, 4, 3), np.uint8))
    (tmp_path / "list.csv").write_text(TABLE)
    result = data("images", "./", "list.csv", "db", "--float-labels", "2")
    assert "db: 2 records\n" in result.stdout and "list.csv: the first line is the header: file, x, y" in result.stderr
    with open_db("db", "lmdb") as db:
        assert [labels_of(read_datum(value), 2).tolist() for _, value in db.records()] == [[0.5, -1], [2, np.float32(0.3)]]
    capsys.readouterr()
    text = """layer { name: "in" type: "ImageData" top: "data" top: "label" image_data_param { source: "list.csv" batch_size: 2 label_size: 2 } }"""
    net = minicaffe.Net(parse_text(text, caffe_pb2.NetParameter)[0], minicaffe.TEST)
    assert capsys.readouterr().err.count("list.csv: the first line is the header: file, x, y\n") == 1
    net.forward()
    assert net.blobs["label"].data.tolist() == [[0.5, -1], [2, np.float32(0.3)]]
