"""Inputs that cannot be read are named, counted and left out; the results of the others are written, and the status is 1."""

import csv
import json

import numpy as np
import pytest
from test_classify import DEPLOY, pictures  # noqa: F401  (a fixture)

COMMON = ["--model", "deploy.prototxt", "--weights", "w.caffemodel"]


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
    check_skipped(minicaffe, "classify", "in", "--out=r.csv", *COMMON, *more)
    rows = list(csv.reader((there / "r.csv").open()))[1:]
    assert [row[0] for row in rows] == ["in/0.png", "in/1.png", "in/3.png"]
    minicaffe("classify", *(row[0] for row in rows), "--out=good.csv", *COMMON, *more)
    assert (there / "good.csv").read_text() == (there / "r.csv").read_text()


def test_classify_reads_nothing(minicaffe, there):
    error = minicaffe("classify", "in/2.png", "in/2.png", "--out=r.csv", *COMMON, status=1)
    assert "none of the 2 inputs can be read" in error and not (there / "r.csv").exists()
    assert "'in/2.png' is no picture" in minicaffe("classify", "in/2.png", *COMMON, status=1)


@pytest.mark.parametrize("array", [None, np.zeros((3, 16, 16, 1)), np.zeros((7, 8, 3)), np.zeros((1, 0, 8, 3)), np.zeros((1, 7, 8, 3), "U1"), np.float32(1)])
def test_classify_skips_arrays(minicaffe, there, array):
    if array is None:
        (there / "w.npy").write_bytes(b"none")
    else:
        np.save("w.npy", array)
    assert "1 of 2 inputs cannot be read" in minicaffe("classify", "0.png", "w.npy", "--out=r.json", *COMMON, status=1)
    assert ("w.npy" if array is None else "w.npy: must hold numbers (N, height, width, 3), got ") in minicaffe.log
    assert [row["filename"] for row in json.loads((there / "r.json").read_text())["pictures"]] == ["0.png"]
