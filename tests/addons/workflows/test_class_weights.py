"""The weights of classes: the frequencies of labels, and training with them."""

import contextlib
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.addons.workflows import class_weights
from minicaffe.addons.workflows.class_weights import count_labels, inverse_frequencies
from minicaffe.cli import app
from minicaffe.data.db import open_db
from minicaffe.errors import ConfigError
from minicaffe.proto import binary, caffe_pb2
from minicaffe.proto.text import parse_text

LABELS = np.array([0] * 12 + [1] * 3 + [2] * 9)
NET = """layer { name: "in" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 24 backend: LMDB } transform_param { scale: 0.01 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "drop" type: "Dropout" bottom: "ip" top: "ip" dropout_param { dropout_ratio: 0 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" %s }
"""
OTHER = """layer { name: "ip2" type: "InnerProduct" bottom: "data" top: "ip2" inner_product_param { num_output: %d weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "%s" top: "loss2" loss_weight: 0.5 }
"""
TRAIN = ("train", "net.prototxt", "--seed=3", "--display=1", "--max-iter=2", "--snapshot-prefix=s")


@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_database()
    (tmp_path / "net.prototxt").write_text(NET % "")
    return tmp_path / "net.prototxt"


def make_database(labels=LABELS):
    random = np.random.default_rng(2)
    with open_db("db", "LMDB", "w") as db:
        for i, label in enumerate(labels):
            pixels = random.integers(0, 255, (1, 3, 2)).astype(np.uint8)
            db.put(b"%03d" % i, caffe_pb2.Datum(channels=1, height=3, width=2, data=pixels.tobytes(), label=int(label)).SerializeToString())


def losses(path="r.jsonl"):
    return [json.loads(line)["loss"] for line in open(path) if '"train"' in line]


def softmax_of(blob="ip"):
    """Return the probabilities of the first iteration, by NumPy, and the net that the seed makes."""
    caffe.set_random_seed(3)
    made = caffe.Net("net.prototxt", caffe.TRAIN)
    made.forward()
    scores = made.blobs[blob].data.astype(float)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), made


def expected(weights, divisor=24, labels=LABELS, blob="ip"):
    """The loss of the first iteration."""
    p, _ = softmax_of(blob)
    return -(np.asarray(weights)[labels] * np.log(p[np.arange(len(labels)), labels])).sum() / divisor


def test_losses_that_are_weighted(minicaffe, net):
    weights = 24 / (3 * np.bincount(LABELS))
    minicaffe(*TRAIN, "--class-weights=auto", "--json=r.jsonl")
    assert ("class weights (inverse frequency of 24 labels, with mean 1 over them): 0: 0.6667, 1: 2.667, 2: 0.8889; InfogainLoss in place "
            "of SoftmaxWithLoss in 'loss', with the matrix s_class_weights.binaryproto\n") in minicaffe.messages
    stored = binary.read_blob("s_class_weights.binaryproto")
    np.testing.assert_allclose(stored.data.reshape(3, 3), np.diag(weights), rtol=1e-6)
    assert losses()[0] == pytest.approx(expected(weights), rel=1e-5)
    net.write_text(net.read_text() + 'layer { name: "right" type: "Accuracy" bottom: "ip" bottom: "label" top: "right" include { phase: TEST } }')
    out = minicaffe(*TRAIN, "--class-weights=auto", "--base-lr=0", "--test-interval=1")
    assert float(re.search("^test loss = ([0-9.]+)", out, re.M)[1]) == pytest.approx(expected([1, 1, 1]), rel=1e-4)
    net.write_text(NET % "" + OTHER % (3, "label"))
    minicaffe(*TRAIN, "--class-weights=auto", "--json=r.jsonl")
    assert losses()[0] == pytest.approx(expected(weights) + 0.5 * expected(weights, blob="ip2"), rel=1e-5)
    assert "in 'loss', 'loss2', with the matrix" in minicaffe.messages


def parameters(path):
    made = caffe.Net("net.prototxt", caffe.TRAIN, weights=path)
    return np.concatenate([blob.data.ravel() for blob in made.params["ip"]])


def test_weights_and_gradients(minicaffe, net, tmp_path):
    (tmp_path / "ones.txt").write_text("1\n1.0\n\n1\n")
    minicaffe(*TRAIN, "--json=r.jsonl")
    plain, of_loss = parameters("s_iter_2.caffemodel"), losses()
    minicaffe(*TRAIN, "--json=r.jsonl", "--class-weights=ones.txt", "--force")
    assert losses() == pytest.approx(of_loss, rel=1e-6) and "class weights (from ones.txt): 0: 1, 1: 1, 2: 1;" in minicaffe.messages
    np.testing.assert_allclose(parameters("s_iter_2.caffemodel"), plain, rtol=1e-5, atol=1e-7)
    # One step without momentum: the gradient of the weighted loss.
    (tmp_path / "some.txt").write_text("2\n0\n5e-1\n")
    minicaffe(*TRAIN, "--class-weights=some.txt", "--force", "--max-iter=1", "--weight-decay=0", "--momentum=0", "--lr-policy=fixed")
    p, made = softmax_of()
    x = made.blobs["data"].data.reshape(24, -1).astype(float)
    dx = (p - np.eye(3)[LABELS]) * np.array([2, 0, 0.5])[LABELS, None] / 24
    want = np.concatenate([(made.params["ip"][0].data - 0.01 * dx.T @ x).ravel(), made.params["ip"][1].data - 0.01 * dx.sum(axis=0)])
    np.testing.assert_allclose(parameters("s_iter_1.caffemodel"), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("field, divisor", [("normalize: false", 24), ("normalize: true", 24), ("normalization: NONE", 1), ("ignore_label: 1", 21),
                                            ("ignore_label: 1 normalize: false", 24)])
def test_the_loss_is_divided_as_before(minicaffe, net, field, divisor):
    net.write_text(NET % f"loss_param {{ {field} }}")
    minicaffe(*TRAIN, "--class-weights=auto", "--json=r.jsonl")
    counts = np.bincount(LABELS).astype(float)
    if "ignore" in field:
        counts[1] = 0
        assert "--class-weights: no record of class 1; weight 0" in minicaffe.messages
    weights = np.where(counts > 0, counts.sum() / ((counts > 0).sum() * np.maximum(counts, 1)), 0)
    assert losses()[0] == pytest.approx(expected(weights, divisor), rel=1e-5)


@pytest.mark.parametrize("classes, shown, missing, more", [(6, 3, "3, 4, 5", " and 3 more"), (7, 3, "3, 4, 5, ...", " and 4 more"), (6, 6, "3, 4, 5", ", 3: 0, 4: 0, 5: 0")])
def test_messages_of_many_classes(minicaffe, net, monkeypatch, classes, shown, missing, more):
    monkeypatch.setattr(class_weights, "WEIGHTS_SHOWN", shown)
    net.write_text((NET % "").replace("num_output: 3", f"num_output: {classes}"))
    minicaffe(*TRAIN, "--class-weights=auto")
    assert f"no record of class {missing}; weight 0" in minicaffe.messages
    assert f"0: 0.6667, 1: 2.667, 2: 0.8889{more}; InfogainLoss" in minicaffe.messages


def test_a_list_of_pictures_is_counted(minicaffe, net, tmp_path):
    cv2 = pytest.importorskip("cv2")
    cv2.imwrite("a.png", np.zeros((3, 2, 3), np.uint8))
    (tmp_path / "list.txt").write_text("".join(f"a.png {label}\n" for label in LABELS))
    net.write_text(net.read_text().replace('type: "Data"', 'type: "ImageData"').replace(
        'data_param { source: "db" batch_size: 24 backend: LMDB }', 'image_data_param { source: "list.txt" batch_size: 4 }'))
    minicaffe(*TRAIN, "--class-weights=auto")
    assert ": 0: 0.6667, 1: 2.667, 2: 0.8889;" in minicaffe.messages


def test_files_that_are_wrong(minicaffe, net, tmp_path):
    for text, message in (
            (None, ": --class-weights: no such file"), ("1\n2\n", ": --class-weights: holds 2 weights, the loss has 3 classes; give one line for each"),
            ("1\ntwo\n3\n", ":2: --class-weights: a line must be a weight, a number, got 'two'"),
            ("1\n-2\n3\n", ":2: --class-weights: a weight must be a finite number of at least 0, got -2"),
            ("1\n2\nnan\n", ":3: --class-weights: a weight must be a finite number"), ("0\n0\n0\n", ": --class-weights: all weights are 0")):
        if text is not None:
            (tmp_path / "w.txt").write_text(text)
        assert f"w.txt{message}" in minicaffe(*TRAIN, "--class-weights=w.txt", status=1)
        assert not (tmp_path / "s_class_weights.binaryproto").exists()


def test_nets_that_are_wrong(minicaffe, net, tmp_path):
    def error(text, *more, status=2):
        net.write_text(text)
        return minicaffe(*TRAIN, "--class-weights=auto", *more, status=status)

    text = NET % ""
    assert "net.prototxt: --class-weights: weighs the classes of SoftmaxWithLoss, and the train net has none; its losses are HingeLoss" in \
        error(text.replace("SoftmaxWithLoss", "HingeLoss"))
    assert "--class-weights needs losses of the same number of classes, got 3 and 4" in error(text + OTHER % (4, "label"))
    two = 'layer { name: "more" type: "DummyData" top: "l2" dummy_data_param { shape { dim: 24 } } }'
    assert "layer 'loss' (SoftmaxWithLoss): --class-weights needs losses of one kind of label, and the net has losses of label and l2" in error(two + text + OTHER % (3, "l2"))
    assert "auto counts the labels of Data or ImageData, and DummyData makes 'l2'; give a file" in error(two + text.replace('bottom: "label"', 'bottom: "l2"'))
    assert "9 records have label 2, and the loss has 2 classes, from 0 to 1; correct num_output" in error(text.replace("num_output: 3", "num_output: 2"), status=1)
    assert "--snapshot-prefix: is not set, and --class-weights writes its matrix beside the snapshots" in error(text, "--snapshot-prefix=", "--snapshot-after-train=false")
    assert "layer 'loss' (SoftmaxWithLoss)" in error(text.replace('bottom: "ip" bottom: "label" top: "loss"', 'bottom: "ip" top: "loss"'))
    shutil.rmtree("db")
    assert "db: no such database" in error(text, status=1)
    assert list(tmp_path.glob("*.binaryproto")) == []


def test_a_net_that_is_not_trusted(minicaffe, net, tmp_path):
    minicaffe(*TRAIN, "--class-weights=auto", "--untrusted")
    assert "in 'loss', with the matrix s_class_weights.binaryproto" in minicaffe.messages
    (tmp_path / "in").mkdir()
    with contextlib.chdir(tmp_path / "in"):
        shutil.copytree(tmp_path / "db", "db")
        Path("net.prototxt").write_text(NET % "")
        error = minicaffe(*TRAIN, "--class-weights=auto", "--untrusted", "--snapshot-prefix=../out", status=2)
        assert "net.prototxt: --class-weights: the net is not trusted, and reads its matrix ../out_class_weights.binaryproto in the working" in error
    assert not (tmp_path / "out_class_weights.binaryproto").exists()


def test_an_earlier_matrix_is_kept(minicaffe, net, tmp_path):
    path = tmp_path / "s_class_weights.binaryproto"
    path.write_text("years of work")
    minicaffe(*TRAIN, "--class-weights=auto")
    assert (tmp_path / "s_class_weights.1.binaryproto").read_text() == "years of work"
    minicaffe(*TRAIN, "--class-weights=auto")       # the same matrix
    assert not (tmp_path / "s_class_weights.2.binaryproto").exists()
    (tmp_path / "w.txt").write_text("1\n2\n3\n")
    minicaffe(*TRAIN, "--class-weights=w.txt", "--max-iter=3", "--snapshot=s_iter_2.solverstate")   # the same training
    minicaffe(*TRAIN, "--class-weights=auto", "--force")
    assert not (tmp_path / "s_class_weights.2.binaryproto").exists()
    minicaffe(*TRAIN, "--class-weights=w.txt")
    assert (tmp_path / "s_class_weights.2.binaryproto").exists()


def train_together(folder):
    """Train on a rank; return the exit status."""
    with contextlib.chdir(folder):
        return app.run([*TRAIN, "--class-weights=auto", "--global-batch", "--json=all.jsonl"])


def test_ranks_have_the_same_weights(minicaffe, net, tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[2] / "parallel"))
    import ranks
    minicaffe(*TRAIN, "--class-weights=auto", "--json=one.jsonl", "--snapshot-prefix=one")
    assert ranks.run(2, __file__, "train_together", str(tmp_path)) == [0, 0]
    assert losses("all.jsonl") == pytest.approx(losses("one.jsonl"), rel=1e-5)
    assert (tmp_path / "s_class_weights.binaryproto").read_bytes() == (tmp_path / "one_class_weights.binaryproto").read_bytes()


def test_inverse_frequencies():
    """The mean over the records is 1."""
    for seed in range(20):
        counts = np.random.default_rng(seed).integers(0, 5, 6)
        counts[seed % 6] += 1
        found = inverse_frequencies(counts)
        assert (found * counts).sum() == pytest.approx(counts.sum()) and ((found > 0) == (counts > 0)).all(), counts
        products = (found * counts)[counts > 0]
        assert products == pytest.approx(np.full(len(products), products[0])), counts


def test_labels_that_are_not_counted():
    for kind, fields, maker in (("Data", "data_param { label_size: 2 }", "Data with label_size"), ("Data", "data_param { label_size: 1 }", "Data with label_size"),
                                ("ImageData", "image_data_param { label_size: 2 }", "ImageData with label_size"), ("HDF5Data", "", "HDF5Data"), (None, "", "no data layer")):
        source = kind and SimpleNamespace(param=parse_text(f'name: "d" type: "{kind}" {fields}', caffe_pb2.LayerParameter)[0])
        with pytest.raises(ConfigError, match=f"counts the labels of Data or ImageData, and {maker} makes 'label'; give a file with a weight"):
            count_labels(source, "label")
