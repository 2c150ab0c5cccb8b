"""No command overwrites a file without --force. Files of trainings: test_earlier_files.py."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from test_classify import DEPLOY, pictures  # noqa: F401  (a fixture)
from tiny import LINES

from minicaffe.cli import app

COMMON = ["--model", "net.prototxt", "--weights", "w.caffemodel"]
WRITERS = {     # the command, and the file that it writes
    "classify .npy": (["classify", "1.png", "--out", "o.npy", *COMMON], "o.npy"),
    "classify .csv": (["classify", "1.png", "--out", "o.csv", *COMMON], "o.csv"),
    "classify .json": (["classify", "1.png", "--out", "o.json", *COMMON], "o.json"),
    "test --wrong": (["test", *COMMON, "--wrong", "o"], "o"),
    "test --json": (["test", *COMMON, "--per-class", "--json", "o.json"], "o.json"),
    "time": (["time", "net.prototxt", "--iterations=1", "--json", "o.json"], "o.json"),
    "draw": (["draw", "net.prototxt", "o.svg"], "o.svg"),
    "draw --shapes": (["draw", "net.prototxt", "o.svg", "--shapes", "--phase=TEST"], "o.svg"),
    "export": (["export", "d.prototxt", "-o", "o.onnx"], "o.onnx"),
    "export --to torch": (["export", "d.prototxt", "--to", "torch", "-o", "o", "--no-check"], "o.py"),
    "import": (["import", "m.onnx", "-o", "o"], "o.prototxt"),
    "deploy": (["deploy", "net.prototxt", "-o", "o"], "o.prototxt"),
    "fold": (["fold", "d.prototxt", "w.caffemodel", "-o", "o"], "o.prototxt"),
    "plot": (["plot", "t.log", "--out", "o.svg"], "o.svg"),
    "plot --csv": (["plot", "t.log", "--csv", "."], "t.log.test"),
    "convolution": (["convolution", "--html", "o.html"], "o.html"),
    "trace --html": (["trace", "net.prototxt", "--html", "o.html"], "o.html"),
    "trace --json": (["trace", "net.prototxt", "--json", "o.json"], "o.json"),
    "trace --perfetto": (["trace", "net.prototxt", "--perfetto", "o.json"], "o.json"),
    "data mean": (["data", "mean", "db", "o.binaryproto"], "o.binaryproto"),
    "data info --png": (["data", "info", "db", "--png", "o.png"], "o.png"),
    "upgrade": (["upgrade", "net_text", "net.prototxt", "o.prototxt"], "o.prototxt"),
    "extract_features": (["extract_features", "w.caffemodel", "net.prototxt", "ip,data", "f,o", "1"], "o"),
    "data images": (["data", "images", "./", "list.txt", "o", "--resize_width=5", "--resize_height=5"], "o"),
}


@pytest.mark.no_plan("extract_features reads a blob from the middle of the net, and has no plan")
@pytest.mark.parametrize("writer", [pytest.param(writer, marks=[pytest.mark.slow(1)] * (writer == "plot")) for writer in WRITERS])
def test_overwriting(minicaffe, pictures, tmp_path, writer):  # noqa: F811
    command, out = WRITERS[writer]
    if command[0] == "plot":
        pytest.importorskip("matplotlib")
    if command[0] in ("export", "import") and "torch" not in command:
        pytest.importorskip("onnxruntime")
    pictures("scale: 0.004")
    (tmp_path / "t.log").write_text("".join(LINES))
    (tmp_path / "d.prototxt").write_text(DEPLOY % (3, 7, 8))
    if command[0] == "import":
        minicaffe("export", "d.prototxt", "-o", "m.onnx", "--no-check")
    (tmp_path / "out").mkdir()
    (tmp_path / out).write_text("years of work")
    there = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert f"{out}: exists already; --force replaces it" in minicaffe(*command, status=1)
    now = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert now == there     # another file of the same command was not written either
    minicaffe(*command, "--force")
    path = tmp_path / out
    assert path.is_dir() or path.read_bytes() != b"years of work"


def test_commands_that_write(minicaffe):
    """A command with --force is one that writes; those whose outputs are not listed above have tests of their own."""
    own = {"train", "data", "convert_annoset", "finetune", "detect"}
    for name in app.commands():
        if "--force" in minicaffe(name, "--help"):
            assert name in own or any(command[0] == name for command, _ in WRITERS.values()), name


def test_several_inputs(minicaffe, pictures, tmp_path):  # noqa: F811
    scores = pictures("scale: 0.004")[0]
    kept = (tmp_path / "2.png").read_bytes()
    out = minicaffe("classify", "1.png", "2.png", *COMMON)
    assert re.findall("^(.*):$", out, re.M) == ["1.png", "2.png"] and (tmp_path / "2.png").read_bytes() == kept
    (tmp_path / "folder").mkdir()
    shutil.copy(tmp_path / "0.png", tmp_path / "folder" / "0.png")
    np.save("a.npy", np.zeros((2, 7, 8, 3), np.float32))
    out = minicaffe("classify", "[12].png", "folder", "a.npy", "--ext=png", "--out=all.csv", *COMMON)
    names = ["1.png", "2.png", "folder/0.png", "a.npy[0]", "a.npy[1]"]
    assert re.findall("^(.*):$", out, re.M) == names
    rows = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()]
    assert rows[0] == ["filename", "class0", "class1", "class2", "class3"] and [row[0] for row in rows[1:]] == names
    np.testing.assert_allclose(np.array([row[1:] for row in rows[1:4]], float), scores[[1, 2, 0]], rtol=2e-4)
    (tmp_path / "labels.txt").write_text("cat\ndog\nnewt\nauk\n")
    minicaffe("classify", "1.png", "--out=all.json", *COMMON)
    made = json.loads((tmp_path / "all.json").read_text())
    assert made["classes"] == ["cat", "dog", "newt", "auk"] and made["pictures"][0]["filename"] == "1.png"
    np.testing.assert_allclose(made["pictures"][0]["scores"], scores[1], rtol=2e-4)


def test_outputs_in_the_place_of_inputs(minicaffe, pictures, tmp_path):  # noqa: F811
    pictures("scale: 0.004")
    assert "scores.npy: no such picture or folder, and no pattern that fits one; results are written to a file by --out scores.npy" in \
        minicaffe("classify", "1.png", "scores.npy", *COMMON, status=1)
    assert "--out: must end in .npy, .csv or .json" in minicaffe("classify", "1.png", "--out=2.png", *COMMON, status=2)
    assert "has no DetectionOutput layer, so it finds no boxes; give the deploy net of an SSD" in minicaffe("detect", "1.png", *COMMON, status=2)


def test_extensions_in_capitals(minicaffe, pictures, tmp_path):  # noqa: F811
    pictures("scale: 0.004")
    with open("A.NPY", "wb") as file:
        np.save(file, np.zeros((2, 7, 8, 3), np.float32))
    for kind in "npy", "csv", "json":
        for ending in kind, kind.upper():
            minicaffe("classify", "A.NPY", "1.png", f"--out=o.{ending}", *COMMON)
        assert (tmp_path / f"o.{kind}").read_bytes() == (tmp_path / f"o.{kind.upper()}").read_bytes()


def test_mean_by_numbers(minicaffe, pictures, tmp_path):  # noqa: F811
    want, shape = pictures("scale: 0.01 mean_value: 90")
    (tmp_path / "deploy.prototxt").write_text(DEPLOY % shape)
    (tmp_path / "net.prototxt").unlink()
    there = ["--model", "deploy.prototxt", "--weights", "w.caffemodel", "--force"]
    with open("mean.NPY", "wb") as file:
        np.save(file, np.full(3, 90.0))
    for mean, text in (("90", "90"), ("90,90,90", "90,90,90"), ("mean.NPY", "mean of mean.NPY")):
        minicaffe("classify", "[012].png", "--out=x.npy", *there, f"--mean={mean}", "--scale=0.01")
        np.testing.assert_allclose(np.load("x.npy"), want, rtol=2e-4, atol=1e-6)
        assert f"minus {'mean ' * text.startswith('9')}{text}, times 0.01" in minicaffe.messages
    assert "--mean: must be one number, or one for each of the 3 channels" in minicaffe("classify", "0.png", *there, "--mean=1,2", status=2)
    assert "nan: no such file" in minicaffe("classify", "0.png", *there, "--mean=nan", status=1)


# ---- trainings


def test_databases_and_folders(minicaffe, pictures, tmp_path):  # noqa: F811
    pictures("")
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(2):
            shutil.copy(tmp_path / f"{i}.png", tmp_path / "photos" / name)
    made = ("data", "images", "--from-folders", "photos")
    assert "photos: is a folder without a database, so --force does not replace it" in minicaffe(*made, "photos", "--force", status=1)
    assert len(list((tmp_path / "photos").rglob("*.png"))) == 4
    for force in ((), ("--force",)):
        minicaffe(*made, "dbs", *force)
    (tmp_path / "empty").mkdir()
    minicaffe(*made, "empty", "--force")
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        (tmp_path / name).write_bytes(bytes(3073))
    (tmp_path / "cifar10_test_lmdb").mkdir()
    assert "cifar10_test_lmdb: exists already" in minicaffe("data", "cifar10", "--from", ".", "--out", ".", status=1)
    assert not (tmp_path / "cifar10_train_lmdb").exists()


# ---- inputs that cannot be read: named, counted and left out


DEPLOYED = ["--model", "deploy.prototxt", "--weights", "w.caffemodel"]


@pytest.fixture
def there(pictures, tmp_path):  # noqa: F811
    """A folder with three pictures, 0, 1 and 3, and between them one that is none, 2."""
    pictures("scale: 0.004")
    (tmp_path / "deploy.prototxt").write_text((DEPLOY % (3, 7, 8)).replace("dim: 1", "dim: 2", 1))
    (tmp_path / "in").mkdir()
    for target, source in ((0, 0), (1, 1), (3, 2)):
        (tmp_path / "in" / f"{target}.png").write_bytes((tmp_path / f"{source}.png").read_bytes())
    (tmp_path / "in" / "2.png").write_bytes(b"GIF89a no picture")
    return tmp_path


def check_skipped(minicaffe, *words):
    """Run a command that skips 2.png of 4."""
    error = minicaffe(*words, status=1)
    assert minicaffe.log.count("in/2.png") == 1 and "; skipped" in minicaffe.log
    assert "minicaffe: 1 of 4 inputs cannot be read; the results are those of the others" in error


@pytest.mark.parametrize("more", [(), ("--images_dim=7,8",)])
def test_classify_skips(minicaffe, there, more):
    check_skipped(minicaffe, "classify", "in", "--out=r.csv", *DEPLOYED, *more)
    rows = list(csv.reader((there / "r.csv").open()))[1:]
    assert [row[0] for row in rows] == ["in/0.png", "in/1.png", "in/3.png"]
    minicaffe("classify", *(row[0] for row in rows), "--out=good.csv", *DEPLOYED, *more)
    assert (there / "good.csv").read_text() == (there / "r.csv").read_text()


def test_classify_reads_nothing(minicaffe, there):
    error = minicaffe("classify", "in/2.png", "in/2.png", "--out=r.csv", *DEPLOYED, status=1)
    assert "none of the 2 inputs can be read" in error and not (there / "r.csv").exists()
    assert "'in/2.png' is no picture" in minicaffe("classify", "in/2.png", *DEPLOYED, status=1)


@pytest.mark.parametrize("array", [None, np.zeros((3, 16, 16, 1)), np.zeros((7, 8, 3)), np.zeros((1, 0, 8, 3)), np.zeros((1, 7, 8, 3), "U1"), np.float32(1)])
def test_classify_skips_arrays(minicaffe, there, array):
    if array is None:
        (there / "w.npy").write_bytes(b"none")
    else:
        np.save("w.npy", array)
    assert "1 of 2 inputs cannot be read" in minicaffe("classify", "0.png", "w.npy", "--out=r.json", *DEPLOYED, status=1)
    assert ("w.npy" if array is None else "w.npy: must hold numbers (N, height, width, 3), got ") in minicaffe.log
    assert [row["filename"] for row in json.loads((there / "r.json").read_text())["pictures"]] == ["0.png"]
