"""Options: when they are applied, and the nets that they reach."""

import json
import re

import pytest
from tiny import NET, SOLVER

from minicaffe.addons import trace
from minicaffe.addons.workflows import class_weights
from minicaffe.cli import app, options
from minicaffe.cli.train import train
from minicaffe.common import caffe
from minicaffe.engines import engine
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text


@pytest.mark.parametrize("words, applied", [([], []), (["--exact"], [True])])
def test_options_that_are_not_given(monkeypatch, words, applied):
    """The environment variable of the option stays in effect."""
    found = []
    monkeypatch.setattr(engine, "set_exact", found.append)
    context = train.make_context("train", ["f", *words])
    assert found == applied and context.meta["exact"] == bool(words) and "exact" not in context.params


@pytest.mark.parametrize("words, wanted", [([], False), (["--allow-python-layers"], True)])
def test_python_layers(monkeypatch, words, wanted):
    """Not those of the working directory, either, which a program's net may name."""
    monkeypatch.setattr(caffe, "allow_python_layers", None)
    train.make_context("train", ["f", *words])
    assert caffe.allow_python_layers is wanted


def test_order_and_completion(monkeypatch):
    done = []
    for name in ("device", "gpu", "allocator"):
        monkeypatch.setitem(options.SETTINGS, name, lambda ctx, value, name=name: done.append(name))
    train.make_context("train", ["--allocator=plain", "--gpu=0", "--device=sim", "f"])
    assert done == ["device", "gpu", "allocator"]
    monkeypatch.setattr(options, "apply_settings", lambda ctx: pytest.fail("sets options"))
    train.make_context("train", ["--gpu", "7", "--quiet"], resilient_parsing=True)


def test_completed_texts():
    context = train.make_context("train", [], resilient_parsing=True)
    params = {param.name: param for param in train.params}
    for name, word, wanted in (("solver", "net", [("file", "net")]), ("json_path", "", [("file", "")]), ("precision", "t", [("plain", "tf32")])):
        assert [(item.type, item.value) for item in params[name].shell_complete(context, word)] == wanted


STAGED = NET + """layer { name: "of_stage" type: "Power" bottom: "scaled" top: "s" include { stage: "extra" } }
layer { name: "of_level" type: "Power" bottom: "scaled" top: "l" include { min_level: 2 } }
"""
SIZED = """layer { name: "in" type: "HDF5Data" top: "x" top: "y" include { phase: TRAIN } hdf5_data_param { source: "list" batch_size: 1 } }
layer { name: "in" type: "HDF5Data" top: "x" top: "y" include { phase: TEST } hdf5_data_param { source: "list" batch_size: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }
"""


@pytest.mark.parametrize("words", [
    ("summary", "net.prototxt"), ("summary", "net.prototxt", "--phase=TEST"), ("summary", "solver.prototxt"), ("trace", "net.prototxt"),
    ("trace", "solver.prototxt"), ("trace", "net.prototxt", "--phase=TEST"),
    ("time", "net.prototxt", "--iterations=1"), ("time", "net.prototxt", "--iterations=1", "--phase=TEST"), ("gradcheck", "net.prototxt", "--elements=1")], ids=" ".join)
def test_level_and_stage(minicaffe, folder, words):
    (folder / "net.prototxt").write_text(STAGED)
    for more, stage, level in (((), False, False), (("--stage=other,extra",), True, False), (("--level=2",), False, True), (("--stage=extra", "--level=1"), True, False)):
        out = minicaffe(*words, *more)
        assert (bool(re.search(r"\bof_stage\b", out)), bool(re.search(r"\bof_level\b", out))) == (stage, level)


@pytest.fixture
def sized(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "data.h5", "w") as file:
        file["x"], file["y"] = [[1.0, 2.0]] * 4, [99.0, 1.0, 1.0, 1.0]      # the first label is none of the loss
    (folder / "list").write_text("data.h5\n")
    (folder / "net.prototxt").write_text(SIZED)
    (folder / "solver.prototxt").write_text(SOLVER)
    return folder


def test_a_failed_trace_has_no_values(minicaffe, sized):
    assert "label" in minicaffe("trace", "net.prototxt", "--html=t.html", "--json=t.json", status=1)
    page = json.loads(re.search(r'id="trace">(.*?)</script>', (sized / "t.html").read_text())[1])
    assert "values" not in page and "values" not in trace.load(sized / "t.json").document


@pytest.mark.parametrize("normalization", ["", "normalize: true", "normalize: false", "normalize: true normalization: FULL", "normalize: false normalization: NONE"])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_the_loss_that_weighs_classes(normalization, axis):
    """The axis of its scores, and what it is divided by, are those of SoftmaxWithLoss; `normalization` is stronger than the old `normalize`."""
    layer = parse_text(f'name: "l" type: "SoftmaxWithLoss" softmax_param {{ axis: {axis} }} loss_param {{ ignore_label: 3 {normalization} }}', caffe_pb2.LayerParameter)[0]
    class_weights._replace(layer, "w.binaryproto")
    assert (layer.type, layer.infogain_loss_param.source, layer.infogain_loss_param.axis) == ("InfogainLoss", "w.binaryproto", axis)
    wanted = {"": "VALID", "normalize: true": "VALID", "normalize: false": "BATCH_SIZE"}.get(normalization) or normalization.split()[-1]
    loss = layer.loss_param
    assert caffe_pb2.LossParameter.NormalizationMode.Name(loss.normalization) == wanted and not loss.HasField("normalize") and loss.ignore_label == 3


OLD = """layers { name: "d" type: DUMMY_DATA top: "x" dummy_data_param { num: 4 channels: 3 height: 1 width: 2 } }
layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" inner_product_param { num_output: 2 } }
"""


def test_upgrade_reports_whether_there_was_anything_to_do(minicaffe, folder):
    (folder / "old.prototxt").write_text(OLD)
    (folder / "old_solver.prototxt").write_text("solver_type: ADAM base_lr: 0.1")
    for kind, old in (("net_text", "old.prototxt"), ("solver_text", "old_solver.prototxt")):
        assert minicaffe("upgrade", kind, old, "new") == "wrote new\n" and "in today's form already" not in minicaffe.log + minicaffe.messages
        minicaffe("upgrade", kind, "new", "newer")
        assert "new is in today's form already; it is written again" in minicaffe.log + minicaffe.messages
        assert (folder / "new").read_text() == (folder / "newer").read_text()
        (folder / "new").unlink()
        (folder / "newer").unlink()


@pytest.mark.parametrize(("field", "status"), [("", 0), ("num_output: 3", 1)])
def test_upgrade_fails_if_a_part_of_the_old_net_is_lost(folder, capsys, field, status):
    (folder / "old.prototxt").write_text(f'''input: "x" input_dim: 1 input_dim: 1 input_dim: 2 input_dim: 2
        layers {{ layer {{ name: "r" type: "relu" {field} }} bottom: "x" top: "y" }}''')
    assert app.run(["upgrade", "net_text", "old.prototxt", "new"]) == status
    out, err = capsys.readouterr()
    assert out == "wrote new\n" and 'type: "ReLU"' in (folder / "new").read_text()
    assert ("a part of the old net has no counterpart" in err) == ("Ignored num_output of layer 'r'" in err) == bool(status)


def test_upgrade_with_a_warning_alone_succeeds(folder, capsys):
    (folder / "old.prototxt").write_text('''layer { name: "p" type: "Pooling" bottom: "x" top: "y"
        pooling_param { kernel_size: 2 round_mode: FLOOR ceil_mode: true } }''')
    assert app.run(["upgrade", "net_text", "old.prototxt", "new"]) == 0
    assert "Ignored ceil_mode of layer 'p'" in capsys.readouterr().err
