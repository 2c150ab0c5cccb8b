"""Each figure of a test is weighed by what it counted: labels that are not ignored, the records of each class."""

import json
from pathlib import Path

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2

DATA = 'layer { name: "in" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 2 backend: LMDB } }'
IP = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 bias_term: false weight_filler { type: "constant" } } }"""
SCORES = np.array([[3, 1, 0], [0, 2, 1], [5, 1, 2], [4, 2, 0], [1, 0, 3]], np.uint8)
LABELS = [0, 2, 0, 0, 2]    # of the last batches, none is of class 1, and the last one has one record


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Weights of a net whose InnerProduct copies the pixels of a database; the working directory has both."""
    monkeypatch.chdir(tmp_path)
    with open_db("db", "LMDB", "w") as db:
        for i, (scores, label) in enumerate(zip(SCORES, LABELS, strict=True)):
            db.put(b"%d" % i, caffe_pb2.Datum(channels=3, height=1, width=1, data=scores.tobytes(), label=label).SerializeToString())
    write("")
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.params["ip"][0].data[...] = np.eye(3)
    net.save("w.caffemodel")


def write(layers):
    with open("net.prototxt", "w") as file:
        file.write(f"{DATA}\n{IP}\n{layers}\n")


def log_losses():
    x = SCORES.astype(float)
    return np.log(np.exp(x).sum(1)) - x[np.arange(5), LABELS]


LOSS = 'layer { name: "%s" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "%s" %s }'
RIGHT = 'layer { name: "right" type: "Accuracy" bottom: "ip" bottom: "label" top: "right" %s }'
IGNORED = [label != 2 for label in LABELS]
CASES = {
    "per-class top": (RIGHT % 'top: "each"', {"right": [0.8], "each": [1, 0, 0.5]}),
    "ignored in Accuracy": (RIGHT % "accuracy_param { ignore_label: 2 }", {"right": [1]}),
    "VALID": (LOSS % ("a", "a", "loss_param { ignore_label: 2 }"), {"a": [log_losses()[IGNORED].mean()]}),
    "two losses": ("\n".join((LOSS % ("a", "a", "loss_param { ignore_label: 2 }"), LOSS % ("b", "b", "loss_weight: 0.5"))),
                   {"a": [log_losses()[IGNORED].mean()], "b": [log_losses().mean()]}),
    "FULL": (LOSS % ("a", "a", "loss_param { ignore_label: 2 normalization: FULL }"), {"a": [log_losses()[IGNORED].sum() / 5]}),
    "sigmoid": ("""layer { name: "t" type: "Tile" bottom: "label" top: "t" tile_param { axis: 0 tiles: 1 } }
layer { name: "first" type: "Slice" bottom: "ip" top: "x" top: "rest" slice_param { axis: 1 slice_point: 1 } }
layer { name: "none" type: "Silence" bottom: "rest" }
layer { name: "flat" type: "Reshape" bottom: "x" top: "flat" reshape_param { shape { dim: -1 } } }
layer { name: "a" type: "SigmoidCrossEntropyLoss" bottom: "flat" bottom: "t" top: "a"
  loss_param { ignore_label: 2 normalization: VALID } }""", {"a": [np.log1p(np.exp([3., 5., 4.])).mean()]}),
    "read again": (LOSS % ("a", "a", "loss_weight: 1 loss_param { ignore_label: 2 }") + 'layer { name: "s" type: "Silence" bottom: "a" }',
                   {"a_a_0_split_0": [log_losses()[IGNORED].mean()]}),
    "view": (RIGHT % 'top: "each"' + 'layer { name: "v" type: "Reshape" bottom: "each" top: "v" reshape_param { shape { dim: [3, 1] } } }',
             {"right": [0.8], "v": [1, 0, 0.5]}),
}


@pytest.mark.parametrize("case", CASES)
def test_weighted_means_of_test(minicaffe, weights, case):
    layers, expected = CASES[case]
    write(layers)
    found = {}
    minicaffe("test", "net.prototxt", "--weights=w.caffemodel", "--json=r.json")
    result = json.loads(Path("r.json").read_text())
    for output in result["outputs"]:
        found.setdefault(output["name"], []).append(output["value"])
    assert found == {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()}
    loss = sum(values[0] * {"a": 1, "a_a_0_split_0": 1, "b": 0.5}.get(name, 0) for name, values in expected.items())
    assert result["loss"] == pytest.approx(loss, rel=1e-5)


def test_weighted_means_of_solver(weights):
    write(RIGHT % 'top: "each"' + LOSS % ("a", "a", "loss_param { ignore_label: 2 }"))
    with open("solver.prototxt", "w") as file:
        file.write('net: "net.prototxt" test_iter: 5 test_interval: 1 base_lr: 0 lr_policy: "fixed" test_compute_loss: true')
    solver = caffe.SGDSolver("solver.prototxt")
    solver.test_nets[0].copy_from("w.caffemodel")
    record = solver.test(0)     # five batches of two: each record twice
    values = [output["value"] for output in record["outputs"]]
    assert values == pytest.approx([log_losses()[IGNORED].mean(), 1, 0, 0.5, 0.8], rel=1e-5)
    assert record["loss"] == pytest.approx(values[0])
