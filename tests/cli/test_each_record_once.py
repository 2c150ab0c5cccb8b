"""Tests whose number of batches the command chooses give each record once; a given number says what it leaves out or repeats.

extract_features does the same.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.cli import training_file
from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2
from minicaffe.solver.report import OutputMeans, RecordCounts, run_batches

COUNT, CLASSES = 36, 3
NET = """layer { name: "in" type: "Data" top: "data" top: "label" include { phase: TRAIN } data_param { source: "db" batch_size: 4 backend: LMDB } }
layer { name: "in" type: "%s" top: "data" top: "label" include { phase: TEST } %s }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "right" type: "Accuracy" bottom: "ip" bottom: "label" top: "right" include { phase: TEST } }
%s
"""
DATA = 'data_param { source: "db" batch_size: %d backend: LMDB }'


@pytest.fixture
def records(tmp_path, monkeypatch):
    """A database, files of its records, weights, and the accuracy and loss that one batch of all records has."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(2)
    pixels, labels = random.integers(0, 255, (COUNT, 1, 3, 2)).astype(np.uint8), random.integers(0, CLASSES, COUNT)
    with open_db("db", "LMDB", "w") as db:
        for i in range(COUNT):
            datum = caffe_pb2.Datum(channels=1, height=3, width=2, data=pixels[i].tobytes(), label=int(labels[i]))
            db.put(b"%03d" % i, datum.SerializeToString())
    (tmp_path / "all.prototxt").write_text(NET % ("Data", DATA % COUNT, ""))
    caffe.set_random_seed(1)
    net = caffe.Net("all.prototxt", caffe.TEST)
    net.save("w.caffemodel")
    out = net.forward()
    return pixels, labels, float(out["right"]), float(out["loss"])


def values(out):
    return {name: float(value) for name, value in re.findall(r"(right|loss) = ([\d.]+)", out)}


@pytest.mark.parametrize("size", [8, 36, 7, 35, 40, 1])
def test_records_of_a_test(minicaffe, records, tmp_path, size):
    right, loss = records[2:]
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % size, ""))
    out = minicaffe("test", "net.prototxt", "--weights=w.caffemodel")
    assert values(out) == {"right": pytest.approx(right, abs=1e-5), "loss": pytest.approx(loss, rel=1e-4)}
    assert float(re.search("Loss: ([0-9.]+)", out)[1]) == pytest.approx(loss, rel=1e-4)
    last = f", the last of {COUNT % size}" if COUNT % size else ""
    batches = -(-COUNT // size)
    assert f"test: 36 records, each once, in {batches} batch{'es' * (batches != 1)} of {size}{last}" in minicaffe.messages


def test_given_batches(minicaffe, records, tmp_path):
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 8, ""))
    common = ("test", "net.prototxt", "--weights=w.caffemodel")
    minicaffe(*common, "--iterations=4")
    assert "--iterations: 4 batches of 8 are 32 of the 36 records of the test data; the others are left out" in minicaffe.messages
    out = minicaffe(*common, "--iterations=5")
    assert "--iterations: 5 batches of 8 are 40 records, and the test data hold 36: they begin again" in minicaffe.messages
    net = caffe.Net("net.prototxt", caffe.TEST, weights="w.caffemodel")
    assert values(out)["right"] == pytest.approx(np.mean([float(net.forward()["right"]) for _ in range(5)]), abs=1e-5)
    (tmp_path / "solver.prototxt").write_text("net: 'net.prototxt' base_lr: 0 lr_policy: 'fixed' max_iter: 1 test_iter: 4 test_interval: 1")
    minicaffe("train", "solver.prototxt")
    assert "test: test_iter: 4 batches of 8 are 32 of the 36 records" in minicaffe.messages
    minicaffe("train", "net.prototxt", "--test-iter=6", "--max-iter=1")
    assert "test: test_iter: 6 batches of 8 are 48 records, and the test data hold 36" in minicaffe.messages
    minicaffe("train", "net.prototxt", "--test-iter=6", "--max-iter=1", "--quiet")
    assert minicaffe.messages == ""


@pytest.mark.parametrize("more", [(), ("--test-batch-size=5",)])
def test_records_of_tests_of_a_training(minicaffe, records, tmp_path, more):
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 8, ""))
    minicaffe("train", "net.prototxt", "--weights=w.caffemodel", "--base-lr=0", "--max-iter=6", "--test-interval=2",
              "--json=r.jsonl", "--watch", *more)
    size = 5 if more else 8
    assert f"test: 36 records, each once, in {-(-COUNT // size)} batches of {size}, the last of {COUNT % size}" in minicaffe.messages
    tests = [json.loads(line)["outputs"] for line in (tmp_path / "r.jsonl").read_text().splitlines() if '"test"' in line]
    assert len(tests) == 4      # the second begins where the first ended
    for outputs in tests:
        assert {o["name"]: o["value"] for o in outputs} == {"right": pytest.approx(records[2], abs=1e-6), "loss": pytest.approx(records[3], rel=1e-5)}


def test_records_of_lists(minicaffe, records, tmp_path):
    h5py = pytest.importorskip("h5py")
    pixels, labels, right, loss = records
    for name, part in (("a.h5", slice(0, 10)), ("b.h5", slice(10, COUNT))):
        with h5py.File(name, "w") as file:
            file["data"], file["label"] = pixels[part].astype(np.float32), labels[part].astype(np.float32)
    (tmp_path / "list.txt").write_text("a.h5\nb.h5\n")
    (tmp_path / "net.prototxt").write_text(NET % ("HDF5Data", 'hdf5_data_param { source: "list.txt" batch_size: 8 }', ""))
    assert values(minicaffe("test", "net.prototxt", "--weights=w.caffemodel")) == {"right": pytest.approx(right, abs=1e-5), "loss": pytest.approx(loss, rel=1e-4)}
    assert "test: 36 records, each once, in 5 batches of 8, the last of 4" in minicaffe.messages
    cv2 = pytest.importorskip("cv2")
    for i in range(COUNT):
        cv2.imwrite(f"{i}.png", pixels[i, 0])
    (tmp_path / "list.txt").write_text("".join(f"{i}.png {label}\n" for i, label in enumerate(labels)))
    (tmp_path / "net.prototxt").write_text(NET % ("ImageData", 'image_data_param { source: "list.txt" batch_size: 8 is_color: false shuffle: true }', ""))
    assert values(minicaffe("test", "net.prototxt", "--weights=w.caffemodel"))["right"] == pytest.approx(right, abs=1e-5)


def test_other_nets(minicaffe, records, tmp_path):
    fixed = 'layer { name: "flat" type: "Reshape" bottom: "data" top: "flat" reshape_param { shape { dim: 8 dim: 6 } } include { phase: TEST } }\n' \
            'layer { name: "none" type: "Silence" bottom: "flat" include { phase: TEST } }'
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 8, fixed))
    minicaffe("test", "net.prototxt", "--weights=w.caffemodel")
    assert re.search(r"test: 36 records, 4 of them twice: .*layer 'flat' \(Reshape\).*, in 5 batches of 8$", minicaffe.messages, re.M), minicaffe.messages
    net = caffe.Net("net.prototxt", caffe.TEST)
    assert RecordCounts.of(net).why and net.blobs["ip"].shape == (8, 3)     # the trial leaves it as it was
    net.forward()
    (tmp_path / "net.prototxt").write_text("""layer { name: "in" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } data_filler { type: "constant" value: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 1 axis: 0 } }
        layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }""")
    caffe.Net("net.prototxt", caffe.TEST).save("w.caffemodel")
    minicaffe("test", "net.prototxt", "--weights=w.caffemodel")
    assert "test: how many records there are is not known, so 50 batches are tested" in minicaffe.messages
    (tmp_path / "deploy.prototxt").write_text("""layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 1 } }""")
    caffe.Net("deploy.prototxt", caffe.TEST).save("w.caffemodel")
    assert "deploy.prototxt: nothing fills its input 'x', and a test would score zeros" in minicaffe("test", "deploy.prototxt", "--weights=w.caffemodel", status=2)


REDUCTION = 'layer { name: "all" type: "Reduction" bottom: "data" top: "all" %s include { phase: TEST } }'
SUMS = {
    "loss": ('top: "loss" }', 'top: "loss" loss_param { normalization: NONE } }', "loss_param.normalization: NONE"),
    "all": ("", REDUCTION % "", "reduction_param.operation: SUM"),
    "asum": ("", REDUCTION % "reduction_param { operation: ASUM axis: -4 }", "reduction_param.operation: ASUM"),
    "mean": ("", REDUCTION % "reduction_param { operation: MEAN }", None),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums_over_a_batch(minicaffe, records, tmp_path, case):
    before, after, field = SUMS[case]
    for size, once in ((8, field is None), (9, True)):
        text = NET % ("Data", DATA % size, after if not before else "")
        (tmp_path / "net.prototxt").write_text(text.replace(before, after) if before else text)
        minicaffe("test", "net.prototxt", "--weights=w.caffemodel")
        assert ("test: 36 records, each once" in minicaffe.messages) == once
        assert once or f" gives a sum over its batch ({field}), in 5 batches of 8" in minicaffe.messages
        net = caffe.Net("net.prototxt", caffe.TEST)
        assert not RecordCounts.of(net, mean=False).why


def test_outputs_for_each_record(records, tmp_path):
    """The mean of a value for each record is over the batches that have the record; that of others is by records."""
    each = 'layer { name: "each" type: "Reduction" bottom: "data" top: "each" reduction_param { axis: 1 } include { phase: TEST } }'
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 8, each))
    net = caffe.Net("net.prototxt", caffe.TEST, weights="w.caffemodel")
    data, means = RecordCounts.of(net), OutputMeans(net)
    for i, (_, arrays, _) in enumerate(run_batches(net, data.batches, records=data.records)):
        means.add([array.copy() for array in arrays], data.share(i))
    sums = records[0].reshape(COUNT, -1).sum(axis=1).astype(float)
    got = [r["value"] for r in means.records() if r["name"] == "each"]
    np.testing.assert_allclose(got, [sums[i::8].mean() for i in range(8)], rtol=1e-6)
    assert net.layers[0].position == COUNT and net.layers[0].end is None
    net.forward()
    np.testing.assert_array_equal(net.blobs["data"].data, records[0][:8])    # whole batches again, from the first record on


# ---- extract_features

def features(path):
    with open_db(path, "lmdb") as db:
        return np.array([caffe_pb2.Datum.FromString(bytes(value)).float_data for _, value in db.records()])


@pytest.mark.no_plan("extract_features reads a blob from the middle of the net, and has no plan")
def test_features_of_each_record(minicaffe, records, tmp_path):
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 8, ""))
    assert "f: 36 records of data" in minicaffe("extract_features", "w.caffemodel", "net.prototxt", "data", "f", 0)
    np.testing.assert_array_equal(features("f"), records[0].reshape(COUNT, -1))
    fixed = 'layer { name: "flat" type: "Reshape" bottom: "data" top: "flat" reshape_param { shape { dim: 8 dim: 6 } } include { phase: TEST } }'
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 8, fixed))
    assert "BATCHES: must be a number of batches: " in minicaffe("extract_features", "w.caffemodel", "net.prototxt", "data", "g", 0, status=2)


@pytest.mark.parametrize(("records", "size", "why", "batches", "wanted"), [
    (None, 8, "why", None, "why, so 50 batches are tested"), (None, 8, "why", 5, None), (36, 8, "", 0, None), (32, 8, "", 4, None),
    (36, 8, "", None, "36 records, each once, in 5 batches of 8, the last of 4"),
    (8, 8, "", None, "8 records, each once, in 1 batch of 8"), (32, 8, "why", None, "32 records, each once, in 4 batches of 8"),
    (36, 8, "why", None, "36 records, 4 of them twice: why, in 5 batches of 8"),
    (36, 8, "", 4, "4 batches of 8 are 32 of the 36 records of the test data; the others are left out of a test, and the next one "
                   "begins with them"),
    (36, 8, "", 5, "5 batches of 8 are 40 records, and the test data hold 36: they begin again, so some may count more often "
                   "than others")])
def test_report_of_records(monkeypatch, records, size, why, batches, wanted):
    said = []
    monkeypatch.setattr(training_file, "notify", said.append)
    training_file.report_records("x", RecordCounts(records, size, why), batches)
    assert said == [f"x: {wanted}"] * (wanted is not None)


# ---- means that are weighed by what was counted


OF_SCORES = 'layer { name: "in" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 2 backend: LMDB } }'
COPY = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 bias_term: false weight_filler { type: "constant" } } }"""
SCORES = np.array([[3, 1, 0], [0, 2, 1], [5, 1, 2], [4, 2, 0], [1, 0, 3]], np.uint8)
LABELS = [0, 2, 0, 0, 2]    # of the last batches, none is of class 1, and the last one has one record


@pytest.fixture
def scored(tmp_path, monkeypatch):
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
        file.write(f"{OF_SCORES}\n{COPY}\n{layers}\n")


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
def test_weighted_means_of_test(minicaffe, scored, case):
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


def test_weighted_means_of_solver(scored):
    write(RIGHT % 'top: "each"' + LOSS % ("a", "a", "loss_param { ignore_label: 2 }"))
    with open("solver.prototxt", "w") as file:
        file.write('net: "net.prototxt" test_iter: 5 test_interval: 1 base_lr: 0 lr_policy: "fixed" test_compute_loss: true')
    solver = caffe.SGDSolver("solver.prototxt")
    solver.test_nets[0].copy_from("w.caffemodel")
    record = solver.test(0)     # five batches of two: each record twice
    values = [output["value"] for output in record["outputs"]]
    assert values == pytest.approx([log_losses()[IGNORED].mean(), 1, 0, 0.5, 0.8], rel=1e-5)
    assert record["loss"] == pytest.approx(values[0])
