"""``minicaffe data ...``: results on standard output, one line of error, exit status 0, 1 or 2, nothing half done."""

import gzip
import os
import struct
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from command_line import data as run
from records import datum

from minicaffe.cli import data as command
from minicaffe.cli.pictures import sheet, to_rgb, write_png
from minicaffe.data import convert
from minicaffe.data.db import open_db
from minicaffe.data.mean_file import read_mean
from minicaffe.errors import FileError
from minicaffe.proto import caffe_pb2


def check_failed(result, status, text):
    """Check exit status, that nothing but one line of error was printed, and its text."""
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (status, "", 1) and text in result.stderr


def check_printed(result, text):
    assert (result.exit_code, result.stdout, result.stderr) == (0, text, "")


@pytest.fixture
def originals(tmp_path):
    folder = tmp_path / "originals"
    folder.mkdir()
    random = np.random.default_rng(6)
    for split, count in (("train", 12), ("t10k", 8)):
        pixels = random.integers(0, 256, (count, 28, 28), np.uint8)
        head = struct.pack(">BBBB3I", 0, 0, 8, 3, count, 28, 28)
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels.tobytes()))
        labels = struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes(i % 10 for i in range(count))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(labels)
    return folder


def test_data_set(tmp_path, originals):
    out = tmp_path / "out"
    words = ("mnist", "--from", originals, "--out", out)
    check_printed(run(*words, "--limit", 10), f"{out}/mnist_train_lmdb: 10 records\n{out}/mnist_test_lmdb: 8 records\n")
    check_failed(run(*words), 1, "mnist_train_lmdb: exists already; --force")
    assert run(*words, "--force").exit_code == 0
    assert sorted(os.listdir(out)) == ["mnist_test_lmdb", "mnist_train_lmdb"]


def test_faults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, status, text in (
            ("mnist --limit 0", 2, "--limit"), ("images a", 2, "give ROOT, LIST and DB"), ("info", 2, "Missing argument"), ("mean db --backend hdf5", 2, "hdf5"),
            ("mnist --out out --url ftp://x", 2, "must start with http"), ("info nowhere", 1, "nowhere: no such database"),
            ("mean nowhere", 1, "nowhere: no such database"), ("mnist --from nowhere", 1, "no such directory"),
            ("images --float-labels 0 a/ b c", 2, "--float-labels"), ("images --float-labels 1 --from-folders . db", 2, "with --from-folders the folders are the labels"),
            ("images --seed 1 --ext png a/ b c", 2, "--seed, --ext: for the pictures of --from-folders, which is not given")):
        check_failed(run(*words.split()), status, text)


def test_images_with_all_options(tmp_path, leveldb):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((4, 5, 3), np.uint8))
    (tmp_path / "list").write_text("a.png 1\nb.png 2\n")
    options = "--gray --shuffle --backend leveldb --resize_width 3 --resize-height 2 --check_size --encoded --encode_type png"
    result = run("images", f"{tmp_path}/", tmp_path / "list", tmp_path / "db", *options.split())
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/db: 1 records, 1 pictures could not be read\n")
    with open_db(tmp_path / "db", "leveldb") as db:
        message = caffe_pb2.Datum.FromString(bytes(next(db.records())[1]))
    assert cv2.imdecode(np.frombuffer(message.data, np.uint8), -1).shape == (2, 3)


@pytest.mark.parametrize("encoded", [False, True])
def test_images_with_real_labels(tmp_path, encoded):
    labels, path = [[0.1, 0.9, 3], [2.883, -1, 0], [1e-3, 5, 1]], tmp_path / "db"
    for i in range(3):
        cv2.imwrite(str(tmp_path / f"{i} {i}.png"), np.full((4, 5, 3), 40 * i, np.uint8))
    (tmp_path / "list").write_text("".join(f"{i} {i}.png {a} {b} {c}\n" for i, (a, b, c) in enumerate(labels)))
    check_printed(run("images", "--float-labels", 3, *["--encoded"] * encoded, f"{tmp_path}/", tmp_path / "list", path),
                  f"{path}: 3 records\na Data layer reads their labels with data_param {{ label_size: 3 }}; Caffe reads label 0\n")
    with open_db(path, "LMDB") as db:
        records = [caffe_pb2.Datum.FromString(bytes(value)) for _, value in list(db.records())[:3]]
    np.testing.assert_array_equal([record.float_data for record in records], np.array(labels, np.float32))
    assert all(record.data and record.encoded == encoded and not record.HasField("label") for record in records)
    shown = run("info", path).stdout
    assert "real-valued labels: 3 in each of 3 records\n" in shown and "labels: 1 different" not in shown
    check_failed(run("images", "--float-labels", 4, f"{tmp_path}/", tmp_path / "list", tmp_path / "other"), 1, "list:1: label '0.png' is not")


def test_ctrl_c_leaves_nothing(tmp_path, monkeypatch):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((4, 5, 3), np.uint8))
    (tmp_path / "list").write_text("a.png 1\n" * 3)
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return b"x"

    monkeypatch.setattr(convert, "raw_datum", interrupted)
    result = run("images", f"{tmp_path}/", tmp_path / "list", tmp_path / "db")
    assert result.exit_code == 130 and len(calls) == 2
    assert sorted(os.listdir(tmp_path)) == ["a.png", "list"]


def test_mean(make_db, tmp_path):
    planes = np.stack([np.full((2, 2), 10, np.uint8), np.full((2, 2), 20, np.uint8)])
    words = ("mean", make_db([datum(planes), datum(planes + 1)]), tmp_path / "mean.binaryproto")
    printed = "Number of channels: 2\nmean_value channel [0]: 10.5\nmean_value channel [1]: 20.5\n"
    check_printed(run(*words), printed)
    assert read_mean(words[2])[:, 0, 0].tolist() == [10.5, 20.5]
    check_failed(run(*words), 1, "exists already")
    for more in (*words, "--force"), words[:2]:
        check_printed(run(*more), printed)


def test_info(make_db, backend, tmp_path):
    encoded = cv2.imencode(".png", np.zeros((3, 3), np.uint8))[1].tobytes()
    path = make_db([datum(np.zeros((3, 4, 5), np.uint8), label=1), datum(np.zeros((1, 4, 5), np.float32), label=1),
                    caffe_pb2.Datum(data=encoded, encoded=True, label=7).SerializeToString()], backend)
    result = run("info", path, "--backend", backend, "--png", tmp_path / "sheet.png")
    assert result.stdout.splitlines()[:4] == [
        f"{path}: 3 records, {backend}", "channels x height x width: 3 x 4 x 5 (1), 1 x 4 x 5 (1), in the picture file (1)",
        "content: bytes (1), floats (1), encoded picture (1)", "labels: 2 different: 1 (2), 7 (1)"]
    assert cv2.imread(str(tmp_path / "sheet.png")).shape == (4, 17, 3)  # widths 5, 5, 3 in columns of 6
    path = make_db([datum(np.zeros((1, 2, 2), np.uint8)), b"\x08"], name="wrong")
    check_failed(run("info", path), 1, "wrong: record 1 (key '00000001'): is no Datum")


@pytest.mark.parametrize("count", [50, 51])
def test_long_names_and_many_labels(make_db, monkeypatch, count):
    """Lines with a path or labels are not wrapped; labels of most records are listed."""
    monkeypatch.setenv("COLUMNS", "20")
    path = make_db([datum(np.zeros((1, 2, 2), np.uint8), label=label) for label in [7, *range(count)]])
    lines = run("info", path).stdout.splitlines()
    line = next(line for line in lines if line.startswith("labels: "))
    assert line.startswith(f"labels: {count} different: 7 (2), 0 (1), ") and line.endswith(", ...") == (count > 50)
    assert lines[0] == f"{path}: {count + 1} records, LMDB"
    path = make_db([caffe_pb2.Datum(channels=1, height=1, width=1, data=b"x", float_data=range(n)).SerializeToString() for n in (count, 7)], name="real")
    assert run("info", path).stdout.splitlines()[-2:] == [f"real-valued labels: {n} in each of 1 records" for n in (7, count)]


def test_result_of_folders(capsys):
    made = SimpleNamespace(train=9, test=1, shape=(3, 2, 1), classes=["a"] * 11, mean=[0.25, 7.0], unreadable=0, left_out=None)
    command._print_folder_results("db", made, "lmdb")
    assert capsys.readouterr().out.splitlines() == [
        "db/train_lmdb: 9 records of 3 x 2 x 1", "db/test_lmdb: 1 records", f"db/labels.txt: 11 classes: {', '.join(['a'] * 10)}, ...",
        "db/mean.binaryproto: 0.25, 7"]


def test_png_and_pictures_for_people(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    write_png(tmp_path / "x.png", image)
    assert (cv2.imread(str(tmp_path / "x.png"))[:, :, ::-1] == image).all() and os.listdir(tmp_path) == ["x.png"]
    with pytest.raises(FileError, match="cannot be written"):
        write_png(tmp_path / "nowhere" / "x.png", image)
    assert to_rgb(np.array([[[255, 0]], [[0, 0]], [[0, 0]]], np.uint8))[0].tolist() == [[0, 0, 255], [0, 0, 0]]     # blue
    assert to_rgb(np.array([[[-1.0, 0.0, 1.0]]]))[0, :, 0].tolist() == [0, 128, 255]
    assert to_rgb(np.full((1, 1, 2), np.nan, np.float32)).max() == 0
    assert sheet([np.ones((2, 3, 3), np.uint8)] * 5, 2).shape == (8, 7, 3)
