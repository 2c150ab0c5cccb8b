"""Several labels in one picture: precision and recall of each in ``minicaffe test``, and their mean F1 as the measure of the best test."""

import json
import re

import numpy as np
import pytest
from helpers import layer_text

import minicaffe as caffe
from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2

COUNT, LABELS = 14, 3
NET = """layer { name: "in" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: %d backend: LMDB label_size: 3 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.02 } } }
layer { name: "loss" type: "SigmoidCrossEntropyLoss" bottom: "ip" bottom: "label" top: "loss" %s }
"""
TEST = ("test", "net.prototxt", "--weights=w.caffemodel")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A database of pictures with three labels each, net.prototxt and weights; labels and answers."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    labels = random.integers(0, 2, (COUNT, LABELS))
    with open_db("db", "LMDB", "w") as db:
        for i in range(COUNT):
            pixels = random.integers(0, 255, (3, 5, 4)).astype(np.uint8)
            db.put(b"%03d" % i, caffe_pb2.Datum(channels=3, height=5, width=4, data=pixels.tobytes(), float_data=labels[i]).SerializeToString())
    (tmp_path / "net.prototxt").write_text(NET % (COUNT, ""))
    caffe.set_random_seed(2)
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.params["ip"][0].data[...] -= net.params["ip"][0].data.mean(axis=1, keepdims=True)
    net.save("w.caffemodel")
    net.forward()
    return labels > 0, net.blobs["ip"].data > 0


def figures(labels, answers):
    right, answered, true = ((labels & answers).sum(0), answers.sum(0), labels.sum(0))
    precision, recall = right / answered, right / true
    return precision, recall, true, (2 * right / (answered + true)).mean()


@pytest.mark.parametrize("size", [4, 14, 20])
def test_precision_and_recall_of_labels(minicaffe, data, tmp_path, size):
    (tmp_path / "net.prototxt").write_text(NET % (size, ""))
    (tmp_path / "names").write_text("red\nround\nripe\n")
    precision, recall, count, f1 = figures(*data)
    assert 0 < f1 < 1 and ((0 < precision) & (precision < 1)).any()
    out = minicaffe(*TEST, "--per-class", "--labels=names", "--json=r.json")
    assert f"labels with a probability above 0.5 are answers; mean F1 of 3: {f1:.4f}\n" in out and "confused" not in out
    rows = re.findall(r"^\d (\w+) +([\d.]+) +([\d.]+) +(\d+)$", out, re.M)
    assert rows == [(name, f"{p:.4f}", f"{r:.4f}", str(n)) for name, p, r, n in zip(("red", "round", "ripe"), precision, recall, count, strict=True)]
    found = json.loads((tmp_path / "r.json").read_text())["evaluation"]
    assert (found["names"], found["count"]) == (["red", "round", "ripe"], count.tolist())
    np.testing.assert_allclose((*found["precision"], *found["recall"], found["mean_f1"]), (*precision, *recall, f1))


def test_labels_that_are_ignored(minicaffe, data, tmp_path):
    (tmp_path / "net.prototxt").write_text(NET % (7, "loss_param { ignore_label: 0 }"))
    out = minicaffe(*TEST, "--per-class")       # what is left is true: no answer is wrong
    assert re.findall(r"^\d +([\d.]+) +[\d.]+ +(\d+)$", out, re.M) == [("1.0000", str(n)) for n in data[0].sum(0)]


@pytest.mark.parametrize("option", ["--confusion", "--wrong=wrong"])
def test_options_for_one_label(minicaffe, data, tmp_path, option):
    error = minicaffe(*TEST, option, status=2)
    assert f"net.prototxt: layer 'loss' (SigmoidCrossEntropyLoss): {option.partition('=')[0]}: is for one label in each record, and here are several; --per-class counts each" in error
    assert not (tmp_path / "wrong").exists()


def test_the_best_test_by_labels(minicaffe, data, tmp_path):
    out = minicaffe("train", "net.prototxt", "--max-iter=40", "--test-interval=10", "--test-iter=2", "--base-lr=0.001", "--batch-size=5",
                    "--test-batch-size=7", "--keep-best", "--seed=1", "--snapshot-prefix=s", "--snapshot-interval=10")
    log = {int(n): float(value) for n, value in re.findall(r"Iteration (\d+): best test mean F1 so far = ([\d.]+)", minicaffe.log)}
    wanted = {}
    for n in 10, 20, 30, 40:
        net = caffe.Net("net.prototxt", caffe.TEST, weights=f"s_iter_{n}.caffemodel")
        net.forward()
        with np.errstate(invalid="ignore"):
            wanted[n] = figures(net.blobs["label"].data > 0, net.blobs["ip"].data > 0)[3]
    assert len(log) > 2 and all(value == pytest.approx(wanted[n], abs=1e-5) for n, value in log.items() if n)
    best = max(log.values())
    assert f"best test mean F1 = {best:g} at iteration {max(log)}: s_best.caffemodel" in out and max(wanted.values()) == pytest.approx(best, abs=1e-5)
    assert (tmp_path / "s_best.caffemodel").read_bytes() == (tmp_path / f"s_iter_{max(log)}.caffemodel").read_bytes()


def test_losses_of_labels(minicaffe, data, tmp_path):
    """Two labels in one loss and one in another: the mean is that of all three."""
    slices = "".join(layer_text("Slice", f"{blob}s", blob, f"{blob}_a {blob}_b", "slice_param { slice_point: 2 }") for blob in ("ip", "label"))
    losses = "".join(layer_text("SigmoidCrossEntropyLoss", part, f"ip_{part} label_{part}") for part in "ab")
    (tmp_path / "two.prototxt").write_text("".join((NET % (14, "")).splitlines(keepends=True)[:2]) + slices + losses)
    minicaffe("train", "two.prototxt", "--max-iter=2", "--test-interval=1", "--test-iter=1", "--base-lr=1e-9", "--keep-best", "--weights=w.caffemodel")
    found = float(re.search(r"best test mean F1 so far = ([\d.]+)", minicaffe.log)[1])
    assert found == pytest.approx(figures(*data)[3], abs=1e-5)
    text = (NET % (5, "")).replace("num_output: 3", "num_output: 1").replace('bottom: "label"', 'bottom: "first"')
    cut = layer_text("Slice", "cut", "label", "first rest", "slice_param { slice_point: 1 }") + layer_text("Silence", "s", "rest", "")
    (tmp_path / "one.prototxt").write_text(text.replace("\n", "\n" + cut, 1))
    assert "best test loss = " in minicaffe("train", "one.prototxt", "--max-iter=4", "--test-interval=2", "--test-iter=1", "--keep-best")
    assert re.search(r"^0 +[\d.-]+ +[\d.-]+ +\d+$", minicaffe("test", "one.prototxt", "--weights=one_best.caffemodel", "--per-class"), re.M)


LABEL_VIEWS = (layer_text("Slice", "first", "label", "two one", "slice_param { axis: 1 slice_point: 2 }") + layer_text("Silence", "s", "one", "")
               + layer_text("Reshape", "target", "two", more="reshape_param { shape { dim: [-1, 2] } }") + layer_text("Silence", "again", "target", ""))
TARGETS = {     # layers, how many scores, what they are computed from, the targets; are these labels?
    "views of the label": (LABEL_VIEWS, 2, "data", "target", True),
    "pixels": (layer_text("Flatten", "f", "data"), 60, "f", "f", False),
    "label that is read": ("", 3, "label", "label", False),
    "computed": (layer_text("Power", "p", "label", more="power_param { scale: 0.5 }"), 3, "data", "p", False),
}


@pytest.mark.parametrize("case", TARGETS)
def test_targets_that_are_labels(minicaffe, data, tmp_path, case):
    layers, count, read, target, labels = TARGETS[case]
    text = (NET % (7, "")).replace("data_param", "transform_param { scale: 0.004 } data_param").replace("num_output: 3", f"num_output: {count}")
    text = text.replace('bottom: "label"', f'bottom: "{target}"').replace('bottom: "data"', f'bottom: "{read}"')
    source, rest = text.split("\n", 1)
    (tmp_path / "net.prototxt").write_text(f"{source}\n{layers}{rest}")
    out = minicaffe("train", "net.prototxt", "--max-iter=2", "--test-interval=1", "--test-iter=1", "--keep-best", "--snapshot-prefix=s")
    assert f"best test {'mean F1' if labels else 'loss'} = " in out
    tested = minicaffe("test", "net.prototxt", "--weights=s_best.caffemodel", "--per-class", status=0 if labels else 2)
    assert ("mean F1 of 2" if labels else "no layer compares scores of classes with a label") in tested
