"""minicaffe summary: its table, the memory that a training needs, shapes of data that are not there."""

import json
import re

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.data.db import open_db
from minicaffe.proto import caffe_pb2

NET = """layer { name: "in" type: "Data" top: "data" top: "label" include { phase: TRAIN } data_param { source: "db" batch_size: 4 backend: LMDB } }
layer { name: "in" type: "Data" top: "data" top: "label" include { phase: TEST } data_param { source: "db" batch_size: 50 backend: LMDB } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" type: "%s" base_lr: 0.001 %s lr_policy: "fixed" max_iter: 2 test_iter: 1 test_interval: 1 snapshot_prefix: "s" '
RESULT = re.compile(r"^memory needed .*\n.*$", re.M)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_db("db", "LMDB", "w") as db:
        for i in range(60):
            pixels = np.random.default_rng(i).integers(0, 255, (3, 12, 12)).astype(np.uint8)
            db.put(b"%03d" % i, caffe_pb2.Datum(channels=3, height=12, width=12, data=pixels.tobytes(), label=i % 10).SerializeToString())
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "adam.prototxt").write_text(SOLVER % ("Adam", "momentum: 0.9"))
    return tmp_path


@pytest.mark.parametrize("arguments", [("net.prototxt",), ("adam.prototxt",), ("net.prototxt", "--batch-size=16"), ("adam.prototxt", "--plan=none")])
def test_needed_memory(minicaffe, data, arguments):
    before = caffe.memory.used(caffe.memory.CPUPlace())
    found = RESULT.findall(minicaffe("summary", *arguments))
    assert caffe.memory.used(caffe.memory.CPUPlace()) == before
    assert found        # on a device one for each place
    solver = "Adam" if "adam" in arguments[0] else "SGD"
    plan = "no plan" if "--plan=none" in arguments else "plan memory"
    for lines in found:
        assert re.fullmatch(rf"memory needed to train with {solver} \({plan}\): [\d.]+ [KM]iB of (the host|GPU 0)\n"
                            "  estimated peak of blobs, parameters, gradients, history, batches made ready", lines)


def test_a_wrong_net_is_reported_once(minicaffe, data):
    (data / "net.prototxt").write_text(NET.replace("num_output: 8", "num_output: 0"))
    for command in ("train", "summary"):
        assert minicaffe(command, "adam.prototxt", status=2).count("num_output") == 1


def test_words_of_summary(minicaffe, folder):
    net, solver = minicaffe("summary", "net.prototxt"), minicaffe("summary", "solver.prototxt")
    assert "memory needed to train with SGD (plan memory): " in net and "history" in solver and max(map(len, net.splitlines())) <= 80
    said = json.loads(minicaffe("summary", "net.prototxt", "--json"))
    assert said["needs"][0]["peak"] > 0 and said["not_run"] is None and said["parameters"] == sum(row["parameters"] for row in said["rows"])
    assert "phase TEST" in minicaffe("summary", "net.prototxt", "--phase=TEST") and "to test" in minicaffe("summary", "net.prototxt", "--phase=TEST")
    assert "--phase TEST is for nets" in minicaffe("summary", "solver.prototxt", "--phase", "TEST", status=2)
    assert "TOP=CHANNELSxHEIGHTxWIDTH" in minicaffe("summary", "net.prototxt", "--shape", "data", status=2)
    assert "nowhere.prototxt" in minicaffe("summary", "nowhere.prototxt", status=1)
    (folder / "wrong.prototxt").write_text('layer { name: "c" type: "Convolution" bottom: "nowhere" top: "c" }')
    assert "wrong.prototxt:1: layer 'c' (Convolution): bottom[0]: unknown bottom" in minicaffe("summary", "wrong.prototxt", status=2)
    (folder / "data.prototxt").write_text('''layer { name: "d" type: "Data" top: "x" transform_param { crop_size: 4 } data_param { source: "none" batch_size: 2 } }
        layer { name: "s" type: "Slice" bottom: "x" top: "a" top: "b" slice_param { slice_point: 3 } }''')
    assert "axis 1, got [3]; as the data are not there, it was assumed that x is 3x4x4, from crop_size; if that is wrong, give --shape x=" in \
        minicaffe("summary", "data.prototxt", status=2)
    assert "Data" in minicaffe("summary", "data.prototxt", "--shape=x=5x4x4", "--batch=7") and "7x3x4x4, 7x2x4x4" in \
        minicaffe("summary", "data.prototxt", "--shape=x=5x4x4", "--batch=7")
    assert "--shape: no data layer has a top 'y'" in minicaffe("summary", "data.prototxt", "--shape=x=5x4x4", "--shape=y=1x1", status=2)
