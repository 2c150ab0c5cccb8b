"""Tests whose number of batches the command chooses give each record once; a given number says what it leaves out or repeats.

extract_features does the same.
"""

import json
import re

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
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 9, ""))
    minicaffe(*common, "--iterations=4")
    assert "--iterations" not in minicaffe.messages
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 8, ""))
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
    minicaffe("train", "net.prototxt", "--weights=w.caffemodel", "--base-lr=0", "--max-iter=6", "--test-interval=2", "--json=r.jsonl", *more)
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


def test_net_of_one_batch_size(minicaffe, records, tmp_path):
    fixed = 'layer { name: "flat" type: "Reshape" bottom: "data" top: "flat" reshape_param { shape { dim: 8 dim: 6 } } include { phase: TEST } }\n' \
            'layer { name: "none" type: "Silence" bottom: "flat" include { phase: TEST } }'
    (tmp_path / "net.prototxt").write_text(NET % ("Data", DATA % 8, fixed))
    minicaffe("test", "net.prototxt", "--weights=w.caffemodel")
    assert re.search(r"test: 36 records, 4 of them twice: .*layer 'flat' \(Reshape\).*, in 5 batches of 8$", minicaffe.messages, re.M), minicaffe.messages
    net = caffe.Net("net.prototxt", caffe.TEST)
    assert RecordCounts.of(net).why and net.blobs["ip"].shape == (8, 3)     # the trial leaves it as it was
    net.forward()


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


def test_nets_without_records(minicaffe, tmp_path):
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
    (None, 8, "a reason", None, "x: a reason, so 50 batches are tested"), (None, 8, "a reason", 5, None),
    (36, 8, "", None, "x: 36 records, each once, in 5 batches of 8, the last of 4"), (32, 8, "a reason", None, "x: 32 records, each once, in 4 batches of 8"),
    (36, 8, "a reason", None, "x: 36 records, 4 of them twice: a reason, in 5 batches of 8"), (8, 8, "", None, "x: 8 records, each once, in 1 batch of 8"),
    (36, 8, "", 0, None), (32, 8, "", 4, None), (36, 8, "", 4, "x: 4 batches of 8 are 32 of the 36 records of the test data; "
                                                               "the others are left out of a test, and the next one begins with them"),
    (36, 8, "", 5, "x: 5 batches of 8 are 40 records, and the test data hold 36: they begin again, so some may count more often than others")])
def test_report_of_records(monkeypatch, records, size, why, batches, wanted):
    said = []
    monkeypatch.setattr(training_file, "notify", said.append)
    training_file.report_records("x", RecordCounts(records, size, why), batches)
    assert said == [wanted] * (wanted is not None)
