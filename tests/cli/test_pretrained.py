"""Trained nets of the package: accuracy, files in half precision, and ``minicaffe classify`` without a net."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import train_pretrained

import minicaffe as caffe
from minicaffe import errors, pretrained
from minicaffe.cli.train import train
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.db import open_db
from minicaffe.proto import binary, caffe_pb2
from minicaffe.proto.text import read_text

ROOT = Path(__file__).resolve().parents[2]
BOOT = ROOT / "models" / "data" / "ankle_boot.png"
NETS = ("lenet", "mlp")
COUNT = 500     # of the 1,000 bundled test pictures, which no training read; of these 0.928 and 0.918 are right


def bundled_pictures():
    """Return pictures (COUNT, 1, 28, 28) as training makes them, and their labels (COUNT,)."""
    with open_db(ROOT / "models" / "data" / "fashion_mnist_test_lmdb", "LMDB") as db:
        records = [value for _, value in list(db.records())][::2]
        return np.stack([picture_of(read_datum(value)) for value in records]) * np.float32(1 / 256), np.array([read_datum(value).label for value in records])


@pytest.mark.parametrize(("name", "least"), [("lenet", 0.91), ("mlp", 0.89)])
def test_accuracy(name, least):
    files = pretrained.find(name)
    net = caffe.Net(files.model, caffe.TEST, weights=files.weights)
    pictures, labels = bundled_pictures()
    assert len(labels) == COUNT and set(labels) == set(range(10))
    net.blobs["data"].reshape(*pictures.shape)
    right = net.forward(data=pictures)["prob"].argmax(axis=1) == labels
    assert right.mean() >= least


@pytest.mark.parametrize("name", NETS)
def test_files(name):
    files = pretrained.find(name)
    _, layers = binary.read_net(files.weights)
    blobs = [blob for layer in layers for blob in layer.blobs]
    count = sum(blob.data.size for blob in blobs)
    assert 2 * count < Path(files.weights).stat().st_size < 2 * count + 4000    # two bytes a number
    assert all(np.array_equal(blob.data, blob.data.astype(np.float16)) for blob in blobs)
    training, deploy = (read_text(str(Path(files.model).with_name(f"{kind}.prototxt")), caffe_pb2.NetParameter)[0] for kind in ("net", "deploy"))
    there = {layer.name: layer for layer in training.layer}
    weighted = [layer for layer in deploy.layer if layer.type in ("Convolution", "InnerProduct")]
    assert all(layer == there[layer.name] for layer in weighted) and len(weighted) == sum(bool(layer.blobs) for layer in layers)
    assert Path(files.labels).read_text() == (ROOT / "models" / "data" / "labels.txt").read_text()


def test_names_and_files(monkeypatch, tmp_path):
    assert pretrained.names() == sorted(NETS) and pretrained.DEFAULT in NETS
    assert sum(Path(path).stat().st_size for name in NETS for path in pretrained.find(name)) <= 1_000_000
    ours, theirs = (read_text(str(path), caffe_pb2.NetParameter)[0]
                    for path in (pretrained.FOLDER / "lenet" / "net.prototxt", ROOT / "models" / "lenet" / "full.prototxt"))
    assert ours == theirs
    options = {name for param in train.params for name in param.opts}
    for name in pretrained.names():
        assert {word for word in train_pretrained.SOLVERS[name].split() if word.startswith("--")} <= options
    assert set(train_pretrained.SOLVERS) == set(pretrained.names())
    with pytest.raises(errors.MissingNameError, match="^the package has no net 'LeNett'; did you mean 'lenet'.; it has lenet, mlp$"):
        pretrained.find("LeNett")
    shutil.copytree(pretrained.FOLDER / "mlp", tmp_path / "mlp")
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    assert Path(pretrained.find("mlp").model).parent == tmp_path / "mlp"


def test_classify_without_a_net(minicaffe):
    pytest.importorskip("cv2")
    for words, start in ((), "no --model: lenet of the package, trained on Fashion-MNIST"), (["--model", "mlp"], "mlp of the package, trained on Fashion"):
        lines = minicaffe("classify", BOOT, *words).splitlines()
        assert len(lines) == 6 and lines[1].endswith("  ankle boot") and float(lines[1].split()[0]) > 0.9
        first, second = minicaffe.messages.splitlines()
        assert first.startswith(start)
        assert second.startswith("pictures: 1 channel, 28 x 28, no mean, times 0.00390625; as in ") and second.endswith("net.prototxt")
    assert minicaffe("classify", BOOT, "--untrusted").splitlines()[1:] == minicaffe("classify", BOOT, "--model=lenet").splitlines()[1:]
    assert "ankle boot" in minicaffe("classify", BOOT, "--quiet") and minicaffe.messages == ""


def test_weights_and_wrong_names(minicaffe, tmp_path):
    pytest.importorskip("cv2")
    net = caffe.Net(pretrained.find("lenet").model, caffe.TEST)
    for blob in (blob for blobs in net.params.values() for blob in blobs):
        blob.data[...] = 0
    net.save("zero.caffemodel")
    assert minicaffe("classify", BOOT, "--model", "lenet", "--weights", "zero.caffemodel").count("0.1000") == 5
    assert "lenet of the package, with the weights zero.caffemodel" in minicaffe.messages
    (tmp_path / "lenet").write_text("name: 'own'")   # a file counts first
    assert "lenet: has no data layer and no Input" in minicaffe("classify", BOOT, "--model", "lenet", "--weights", "zero.caffemodel", status=2)
    wrong = minicaffe("classify", BOOT, "--model", "lennet", status=2)
    assert "--model: no file has the name 'lennet', and the package has no net 'lennet'; did you mean 'lenet'?; it has lenet, mlp" in wrong
    assert "give --model FILE, the deploy or training net (see minicaffe detect --help)" in minicaffe("detect", BOOT, status=2)
