"""Options: when they are applied, and the nets that they reach."""

import json
import re

import pytest
from tiny import NET

from minicaffe.addons import trace
from minicaffe.addons.workflows import class_weights
from minicaffe.cli import app, options
from minicaffe.cli.train import train
from minicaffe.common import caffe
from minicaffe.engines import engine
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text


@pytest.mark.parametrize("words", [[], ["--exact", "--allow-python-layers"]])
def test_options_that_are_not_given(monkeypatch, words):
    """Their environment variables stay in effect. Layers in Python are then not those of the working directory."""
    found = []
    monkeypatch.setattr(engine, "set_exact", found.append)
    monkeypatch.setattr(caffe, "allow_python_layers", None)
    context = train.make_context("train", ["f", *words])
    assert found == [True] * bool(words) and context.meta["exact"] == bool(words) and "exact" not in context.params
    assert caffe.allow_python_layers is bool(words)


def test_order_and_completion(monkeypatch):
    done = []
    for name in ("device", "gpu", "allocator"):
        monkeypatch.setitem(options.SETTINGS, name, lambda ctx, value, name=name: done.append(name))
    train.make_context("train", ["--allocator=plain", "--gpu=0", "--device=sim", "f"])
    assert done == ["device", "gpu", "allocator"]
    monkeypatch.setattr(options, "apply_settings", lambda ctx: pytest.fail("sets options"))
    context = train.make_context("train", ["--gpu", "7", "--quiet"], resilient_parsing=True)
    found = {param.name: [(item.type, item.value) for item in param.shell_complete(context, "t")] for param in train.params}
    assert (found["precision"], found["solver"]) == ([("plain", "tf32")], [("file", "t")])


STAGED = NET + """layer { name: "of_stage" type: "Power" bottom: "scaled" top: "s" include { stage: "extra" } }
layer { name: "of_level" type: "Power" bottom: "scaled" top: "l" include { min_level: 2 } }
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


def test_a_failed_trace_has_no_values(minicaffe, folder):
    (folder / "net.prototxt").write_text("""layer { name: "in" type: "DummyData" top: "x" top: "y" dummy_data_param {
        shape { dim: [1, 3] } shape { dim: 1 } data_filler { } data_filler { value: 99 } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "y" top: "loss" }""")
    assert "label" in minicaffe("trace", "net.prototxt", "--html=t.html", "--json=t.json", status=1)
    page = json.loads(re.search(r'id="trace">(.*?)</script>', (folder / "t.html").read_text())[1])
    assert "values" not in page and "values" not in trace.load(folder / "t.json").document


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
        text = (folder / "new").read_text()
        assert text == (folder / "newer").read_text() and "snapshot_prefix" not in text
        assert ('"Adam"' in text) == (kind == "solver_text")
        (folder / "new").unlink()
        (folder / "newer").unlink()


RELU = 'input: "x" input_dim: [1, 1, 2, 2] layers { layer { name: "r" type: "relu" %s } bottom: "x" top: "y" }'
POOL = 'layer { name: "p" type: "Pooling" bottom: "x" top: "y" pooling_param { kernel_size: 2 round_mode: FLOOR ceil_mode: true } }'


@pytest.mark.parametrize(("net", "ignored", "status"), [
    (RELU % "", "", 0), (RELU % "num_output: 3", "num_output of layer 'r'", 1), (POOL, "ceil_mode of layer 'p'", 0)])
def test_upgrade_fails_if_a_part_of_the_old_net_is_lost(folder, capsys, net, ignored, status):
    (folder / "old.prototxt").write_text(net)
    assert app.run(["upgrade", "net_text", "old.prototxt", "new"]) == status
    out, err = capsys.readouterr()
    assert out == "wrote new\n" and 'type: "' in (folder / "new").read_text()
    assert ("a part of the old net has no counterpart" in err) == bool(status)
    assert ("Ignored " in err) == bool(ignored) and ignored in err
