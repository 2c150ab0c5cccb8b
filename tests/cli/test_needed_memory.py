"""The memory that a training needs: summary, train and trace print the same lines, and say what other figures count."""

import re

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe.cli import training_file
from minicaffe.cli.needed_memory import training_lines
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
def test_three_commands_print_one_figure(minicaffe, data, arguments):
    summary = RESULT.findall(minicaffe("summary", *arguments))
    assert summary      # on a device one for each place
    solver = "Adam" if "adam" in arguments[0] else "SGD"
    plan = "no plan" if "--plan=none" in arguments else "plan memory"
    for lines in summary:
        assert re.fullmatch(rf"memory needed to train with {solver} \({plan}\): [\d.]+ [KM]iB of (the host|GPU 0)\n"
                            "  estimated peak of blobs, parameters, gradients, history, batches made ready", lines)
    minicaffe("train", *arguments, "--max-iter=1", "--force")
    assert RESULT.findall(minicaffe.messages) == summary
    out = minicaffe("trace", *arguments)
    assert RESULT.findall(minicaffe.messages) == summary
    assert re.search(r"^live memory, (host|device 0): at most [\d.]+ [KM]iB \(", out, re.M)


def test_the_estimate_is_no_part_of_the_training(minicaffe, data):
    """The same weights with it and without, and nothing of it lives on."""
    about = {"skip_unknown_fields": False, "trusted": True, "plan": "memory"}
    before = caffe.memory.used(caffe.memory.CPUPlace())
    assert len(training_lines(*training_file.read_solver("adam.prototxt", about), about)) in (2, 4)     # two for each place
    assert caffe.memory.used(caffe.memory.CPUPlace()) == before
    minicaffe("train", "adam.prototxt", "--seed=4", "--snapshot-prefix=with")
    messages, log = minicaffe.messages, minicaffe.log
    minicaffe("train", "adam.prototxt", "--seed=4", "--snapshot-prefix=without", "--quiet")
    assert "memory needed" in messages and "memory needed" not in minicaffe.messages
    weights = [caffe.Net("net.prototxt", caffe.TEST, weights=f"{name}_iter_2.caffemodel").params for name in ("with", "without")]
    for name in weights[0]:
        for one, other in zip(weights[0][name], weights[1][name], strict=True):
            np.testing.assert_array_equal(one.data, other.data)
    assert log.count("Creating training net") == 1 and log.count("Solver scaffolding done") == 1


@pytest.mark.no_plan("a Python layer has no plan")
def test_where_the_net_does_not_run_on_made_up_data(minicaffe, data):
    (data / "own.py").write_text("""import minicaffe as caffe
made = []
class Own(caffe.Layer):
    def setup(self, bottom, top): made.append(self)
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top): top[0].data[...] = bottom[0].data
    def backward(self, top, down, bottom): bottom[0].diff[...] = top[0].diff
""")
    text = NET.replace('bottom: "ip" bottom', 'bottom: "own" bottom')
    (data / "net.prototxt").write_text(text.replace('layer { name: "loss"', 'layer { name: "own" type: "Python" bottom: "ip" top: "own" python_param '
                                                    '{ module: "own" layer: "Own" } }\nlayer { name: "loss"'))
    import sys
    sys.path.insert(0, str(data))
    try:
        minicaffe("train", "adam.prototxt", "--allow-python-layers", "--max-iter=1")
        import own
        assert len(own.made) == 2   # of the train and the test net
    finally:
        sys.path.remove(str(data))
        sys.modules.pop("own", None)
    assert "memory needed to train: not known: net.prototxt: Python layers are not run on made-up data" in minicaffe.messages


def test_a_wrong_net_is_reported_once(minicaffe, data):
    (data / "net.prototxt").write_text(NET.replace("num_output: 8", "num_output: 0"))
    for command in ("train", "trace"):
        assert minicaffe(command, "adam.prototxt", status=2).count("num_output") == 1
