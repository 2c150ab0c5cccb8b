"""``minicaffe detect`` with a net of SSD: boxes of pictures, printed, as tables and drawn; lists of windows are refused."""

import csv
import json
import re

import numpy as np
import pytest

import minicaffe as caffe

cv2 = pytest.importorskip("cv2")
import small_ssd  # noqa: E402

MODEL, MEAN = ["--model", "deploy.prototxt", "--weights", "w.caffemodel"], ["--mean=115", "--scale=0.0078125"]
COMMON = [*MODEL, "--threshold=0.3", "--force"]


@pytest.fixture
def ssd(folder):
    """A small SSD with weights of its fillers, three pictures of another size than its input, and what it finds on them."""
    (folder / "deploy.prototxt").write_text(str(small_ssd.net()))
    caffe.set_random_seed(5)
    net = caffe.Net("deploy.prototxt", caffe.TEST)
    net.save("w.caffemodel")
    random = np.random.default_rng(1)
    found = []
    for i in range(3):
        picture = cv2.resize(small_ssd.picture(random)[0], (128, 96))
        cv2.imwrite(f"{i}.png", picture)
        seen = cv2.resize(picture, (small_ssd.SIDE, small_ssd.SIDE)).astype(np.float32)
        net.blobs["data"].data[0] = (seen.transpose(2, 0, 1) - 115) / 128
        found.append(net.forward()["detection_out"].reshape(-1, 7).copy())
    return found


def training_net(path, label_map="", resize=""):
    """Write the net that trains the SSD, whose database is not there."""
    text = str(small_ssd.net("nowhere_lmdb")).replace("annotated_data_param {", f'annotated_data_param {{ label_map_file: "{label_map}"')
    (path / "train.prototxt").write_text(text.replace("resize_param {", f"resize_param {{ {resize}"))


def test_printed_boxes(minicaffe, ssd, tmp_path):
    training_net(tmp_path, "map.prototxt")
    (tmp_path / "map.prototxt").write_text("".join(f'item {{ name: "{n}" label: {i} display_name: "{n} one" }}\n'
                                                   for i, n in enumerate(("none", "red", "blue"))))
    every = np.sort(np.concatenate(ssd)[:, 2])
    middle = np.argmax(np.diff(every[5:-5])) + 5    # a score that rounding does not move over
    least = float(every[middle:middle + 2].mean())
    out = minicaffe("detect", "0.png", "[12].png", "--out=boxes.csv", *COMMON, f"--threshold={least}")
    assert "minus mean 115, 115, 115, times 0.0078125; as in train.prototxt" in minicaffe.messages
    assert "names of the classes: map.prototxt" in minicaffe.messages
    wanted = []
    for i, rows in enumerate(ssd):
        kept = rows[rows[:, 2] >= least]
        kept = kept[np.argsort(-kept[:, 2], kind="stable")]
        assert f"{i}.png: {len(kept)} box" in out
        wanted += [(f"{i}.png", int(row[1]), row[2], np.clip(row[3:], 0, 1) * [128, 96, 128, 96]) for row in kept]
    assert wanted
    rows = list(csv.DictReader(open("boxes.csv")))
    for row, (name, label, score, box) in zip(rows, wanted, strict=True):
        assert (row["filename"], row["label"], row["name"]) == (name, str(label), ("", "red one", "blue one")[label])
        assert float(row["score"]) == pytest.approx(score, abs=2e-3)
        np.testing.assert_allclose([float(row[edge]) for edge in ("xmin", "ymin", "xmax", "ymax")], box, atol=0.3)
    left_out = sum(len(rows) for rows in ssd) - len(wanted)
    assert f"{left_out} boxes of scores below {least:g} left out; --threshold shows more" in minicaffe.messages
    assert re.search(r"^      0\.\d{4}  (red|blue) one  [\d.]+ [\d.]+ [\d.]+ [\d.]+$", out, re.M)


def test_score_at_the_threshold(minicaffe, ssd, tmp_path):
    """Where all scores are the same third, the threshold is either all boxes' or no box's."""
    net = caffe.Net("deploy.prototxt", caffe.TEST, weights="w.caffemodel")
    for blob in (blob for name, blobs in net.params.items() if "conf" in name for blob in blobs):
        blob.data[...] = 0
    net.save("w.caffemodel")
    third, counts = np.float32(1) / np.float32(3), []
    for threshold in (0, repr(float(third)), repr(float(np.nextafter(third, np.float32(1))))):
        minicaffe("detect", "0.png", "--out=boxes.json", f"--threshold={threshold}", *MODEL, "--force", *MEAN)
        rows = json.loads((tmp_path / "boxes.json").read_text())
        assert all(np.float32(row["score"]) == third for row in rows)
        counts.append(len(rows))
    assert counts[0] == counts[1] > 0 and counts[2] == 0


def test_boxes_are_drawn(minicaffe, ssd, tmp_path):
    minicaffe("detect", "0.png", "--out=drawn.png", *COMMON, *MEAN)
    plain, drawn = cv2.imread("0.png"), cv2.imread("drawn.png")
    assert drawn.shape == plain.shape and (drawn != plain).any()
    minicaffe("detect", "0.png", "1.png", "--out=drawn", *COMMON, *MEAN)
    np.testing.assert_array_equal(cv2.imread("drawn/0.png"), drawn)
    before = (tmp_path / "drawn" / "1.png").read_bytes()
    common = COMMON[:-1]
    assert "drawn/1.png: exists already" in minicaffe("detect", "2.png", "1.png", "--out=drawn", *common, *MEAN, status=1)
    assert not (tmp_path / "drawn" / "2.png").exists() and (tmp_path / "drawn" / "1.png").read_bytes() == before
    assert "0.png: exists already" in minicaffe("detect", "0.png", "--out=0.png", *common, *MEAN, status=1)
    assert "holds one picture, and there are 2; name a folder" in minicaffe("detect", "0.png", "1.png", "--out=x.png", *COMMON, status=2)
    assert "must end in .csv, .json" in minicaffe("detect", "0.png", "--out=x.npy", *COMMON, status=2)
    minicaffe("detect", "0.png", "--out=x.json", *COMMON, *MEAN)
    rows = json.loads((tmp_path / "x.json").read_text())
    assert rows and set(rows[0]) == {"filename", "label", "name", "score", "xmin", "ymin", "xmax", "ymax"} and rows[0]["name"].startswith("class ")


def test_names_and_resizing(minicaffe, ssd, tmp_path):
    (tmp_path / "names").write_text("nothing\nred\nblue\n")
    assert re.search("  (red|blue)  ", minicaffe("detect", "0.png", "--labels=names", *COMMON))
    (tmp_path / "names").write_text("red\nblue\n")
    assert "names: holds 2 names, the net gives 3 scores" in minicaffe("detect", "0.png", "--labels=names", *COMMON, status=1)
    training_net(tmp_path, "gone.prototxt")
    minicaffe("detect", "0.png", *COMMON)
    assert "as by WARP" not in minicaffe.messages and "gone.prototxt, which the net names, is not there, so classes have numbers" in minicaffe.messages
    training_net(tmp_path, resize="resize_mode: FIT_LARGE_SIZE_AND_PAD")
    minicaffe("detect", "0.png", *COMMON)
    assert "train.prototxt resizes pictures by FIT_LARGE_SIZE_AND_PAD; here they are resized" in minicaffe.messages


def test_unreadable_pictures_and_nets(minicaffe, ssd, tmp_path):
    (tmp_path / "1.png").write_bytes(b"none")
    words = ("--out=boxes.json", *MEAN, *COMMON)
    error = minicaffe("detect", "0.png", "1.png", "2.png", *words, status=1)
    assert "1 of 3 inputs cannot be read" in error and minicaffe.log.count("1.png") == 1
    both = (tmp_path / "boxes.json").read_text()
    minicaffe("detect", "0.png", "2.png", *words)
    assert (tmp_path / "boxes.json").read_text() == both
    assert "layer 'detection_out' (DetectionOutput): gives boxes" in minicaffe("classify", "0.png", *MODEL, status=2)
    training_net(tmp_path)
    for command in ("classify", "detect"):
        assert "layer 'mbox_loss' (MultiBoxLoss): the net is trained on boxes" in minicaffe(command, "0.png", "--model=train.prototxt", *MODEL[2:], status=2)
