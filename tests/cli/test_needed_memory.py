"""The memory that a training needs, in the lines of summary."""

import re

import numpy as np
import pytest

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
def test_the_figure_of_a_training(minicaffe, data, arguments):
    summary = RESULT.findall(minicaffe("summary", *arguments))
    assert summary      # on a device one for each place
    solver = "Adam" if "adam" in arguments[0] else "SGD"
    plan = "no plan" if "--plan=none" in arguments else "plan memory"
    for lines in summary:
        assert re.fullmatch(rf"memory needed to train with {solver} \({plan}\): [\d.]+ [KM]iB of (the host|GPU 0)\n"
                            "  estimated peak of blobs, parameters, gradients, history, batches made ready", lines)
    minicaffe("train", *arguments, "--max-iter=1", "--force")
    assert "memory needed" not in minicaffe.messages


def test_a_wrong_net_is_reported_once(minicaffe, data):
    (data / "net.prototxt").write_text(NET.replace("num_output: 8", "num_output: 0"))
    for command in ("train", "summary"):
        assert minicaffe(command, "adam.prototxt", status=2).count("num_output") == 1
