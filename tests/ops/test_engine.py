"""Which engine computes an operation, and what is said of those that do not (minicaffe/engines/engine.pyx)."""

import importlib
import logging
import random
import re
from pathlib import Path

import pytest
from helpers import layer_text, make_net

import minicaffe as caffe
from minicaffe import errors
from minicaffe.common import caffe as settings
from minicaffe.engines import engine
from minicaffe.engines.table import CAFFE, CUDNN, ONEDNN, WINOGRAD
from minicaffe.memory import SyncedHead

PACKAGE = Path(caffe.__file__).parent


class Probe(engine.Operation):
    """A kind of operation for which two engines answer with their names."""


class Answer(engine.Primitive):
    pass


def refuses(operation):
    return "probes of odd size"


def fail(operation):
    raise engine.Refusal("probes of odd size")


@pytest.fixture
def probes(monkeypatch):
    """CAFFE and CUDNN compute Probe; settings are put back."""
    monkeypatch.setattr(engine, "_logged_refusals", set())
    for one in engine.ENGINES.values():
        monkeypatch.setattr(one, "kinds", {})
        monkeypatch.setattr(one, "modules", [])
    monkeypatch.setattr(CUDNN, "absent", False)
    CAFFE.computes(Probe, Answer)
    CUDNN.computes(Probe, Answer)


@pytest.mark.parametrize(("field", "preferred", "device", "absent", "who"), [
    (engine.DEFAULT, "", True, False, "CUDNN"), (engine.DEFAULT, "", False, False, "CAFFE"), (engine.DEFAULT, "CAFFE", True, False, "CAFFE"),
    (engine.DEFAULT, "ONEDNN", True, False, "CAFFE"), (engine.DEFAULT, "CUDNN", True, False, "CUDNN"), (engine.DEFAULT, "CUDNN", False, False, "CAFFE"),
    (CUDNN.layer_field, "", True, False, "CUDNN"), (CUDNN.layer_field, "", False, False, "CAFFE"), (CAFFE.layer_field, "CUDNN", True, False, "CAFFE"),
    (engine.DEFAULT, "", True, True, "CAFFE"), (engine.DEFAULT, "CUDNN", True, True, "CUDNN"), (CUDNN.layer_field, "", True, True, "CUDNN")])
def test_who_is_asked(probes, monkeypatch, field, preferred, device, absent, who):
    """One that is absent by its name alone."""
    monkeypatch.setattr(CUDNN, "absent", absent)
    engine.prefer(preferred)
    assert Probe(caffe.blob.Dtype.FLOAT, field)._choose(device).engine == who


@pytest.mark.parametrize("how", [(Answer, refuses), (fail,)])
def test_refusal_is_reported_once(probes, caplog, how):
    CUDNN.computes(Probe, *how)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            operation = Probe(caffe.blob.Dtype.FLOAT, CUDNN.layer_field)
            assert operation._choose(True).engine == "CAFFE"
            assert operation.describe()["refused"] == {"CUDNN": "probes of odd size"}
    assert [record.getMessage() for record in caplog.records] == [
        "engine CUDNN refuses: probes of odd size; engine CAFFE computes instead"]


def test_default_refusal_at_level_debug(probes, caplog):
    """Unless the engine is preferred by name."""
    CUDNN.computes(Probe, Answer, refuses)
    for preferred, level in ("", logging.DEBUG), ("CUDNN", logging.WARNING):
        engine.prefer(preferred)
        caplog.clear()
        with caplog.at_level(logging.DEBUG, engine.log.name):
            assert Probe(caffe.blob.Dtype.FLOAT)._choose(True).engine == "CAFFE"
        assert [record.levelno for record in caplog.records] == [level]


@pytest.mark.parametrize(("preferred", "who", "refused"), [
    ("", "CAFFE", {"WINOGRAD": "few channels; MINICAFFE_ENGINE=winograd computes them all the same"}), ("WINOGRAD", "WINOGRAD", {})])  # fmt: skip
def test_speed_rule_unless_engine_named(probes, preferred, who, refused):
    WINOGRAD.computes(Probe, Answer, slower=lambda operation: "few channels")
    engine.prefer(preferred)
    operation = Probe(caffe.blob.Dtype.FLOAT)
    assert (operation._choose(False).engine, operation.describe()["refused"]) == (who, refused)


def test_refusal_holds_by_name(probes):
    """A fact, of which the rule of speed knows nothing; nothing is made."""
    WINOGRAD.computes(Probe, fail, lambda operation: "odd", lambda operation: pytest.fail("compared"))
    for preferred in "", "WINOGRAD":
        engine.prefer(preferred)
        operation = Probe(caffe.blob.Dtype.FLOAT)
        assert operation._choose(False).engine == "CAFFE" and operation.describe()["refused"] == {"WINOGRAD": "odd"}


@pytest.mark.parametrize("name", ["WINOGRAD", "ONEDNN"])
def test_engines_for_float32_refuse_float64(probes, name):
    engine.ENGINES[name].computes(Probe, Answer)
    engine.prefer(name)
    assert Probe(caffe.blob.Dtype.FLOAT)._choose(False).engine == name
    operation = Probe(caffe.blob.Dtype.DOUBLE)
    assert operation._choose(False).engine == "CAFFE" and operation.describe()["refused"][name].startswith("float64 data: ")


def test_engine_of_precision_first(probes, monkeypatch):
    for one in WINOGRAD, ONEDNN:
        one.computes(Probe, Answer)
    engine.prefer("")
    for precision, dtype, who in (("float32", "FLOAT", "WINOGRAD"), ("bf16", "FLOAT", "ONEDNN"), ("bf16", "DOUBLE", "CAFFE")):
        monkeypatch.setattr(engine, "_precision", precision)
        assert Probe(caffe.blob.Dtype[dtype])._choose(False).engine == who


def test_engine_files_load_with_operation():
    files = sorted((PACKAGE / "ops").glob("*/engine_*.pyx"))
    for path in files:
        folder, name = path.parent.name, path.stem.removeprefix("engine_").upper()
        importlib.import_module(f"minicaffe.ops.{folder}.operation")
        made = [make.__module__ for make, *_ in engine.ENGINES[name].computed_kinds().values()]
        assert f"minicaffe.ops.{folder}.{path.stem}" in made, f"ops/{folder}/__init__.py does not import {path.stem}"
    assert len(files) > len(engine.ENGINES)


def test_chooser_and_layouts_name_no_engine():
    """Outside of docstrings: a new engine changes neither."""
    for name in ("engine.pyx", "engine.pxd", "layouts.pyx", "layouts.pxd"):
        code = re.sub(r'""".*?"""', "", (PACKAGE / "engines" / name).read_text(), flags=re.S)
        assert not re.findall(rf"\b({'|'.join(engine.ENGINES)})\b|onednn|cudnn|winograd", code), name


def test_the_epoch_of_the_settings(probes):
    """Changes with the preferred engine and the precision (solver/step.py)."""
    seen = [engine.settings_epoch()]
    for change in (lambda: engine.prefer("CAFFE"), lambda: caffe.set_precision("tf32"), lambda: caffe.set_precision("float32")):
        change()
        seen.append(engine.settings_epoch())
    assert len(set(seen)) == 4
    assert engine.settings_epoch() == seen[-1]


@pytest.mark.parametrize(("kind", "name"), [("Convolution", "CAFFE"), ("Deconvolution", "CAFFE"), ("Convolution", "WINOGRAD")])
def test_scratch_memory_returned(kind, name):
    """So that layers need as much as the one that needs most, not the sum."""
    engine.prefer(name)
    text = 'force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 8, 24, 24] } } } '
    for bottom, layer in ("xa", "ab", "bc"):
        text += layer_text(kind, layer, bottom, more="convolution_param { num_output: 8 kernel_size: 5 pad: 2 }")
    net = make_net(text)
    for run in (lambda: net.forward_from_to(0, 3), lambda: net.backward_from_to(3, 0)):
        run()
        scratch = [blob for layer in net.layers for operation in layer.operations() for blob in operation.own_blobs()]
        assert len(scratch) == 3 and all(blob.count and blob.data_memory.head == SyncedHead.RECYCLED for blob in scratch)
    assert {row["engine"] for row in net.engines()} == {name if settings.mode == "cpu" else "CAFFE"}


@pytest.mark.parametrize("seed", range(4))
def test_choice_holds_until_setting_changes(seed):
    """It is made again by the next forward after a change, for a backward never: that is the engine's of forward."""
    dice = random.Random(seed)
    text = 'force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 16, 12, 12] } } } '
    text += layer_text("Convolution", "c", "x", more="convolution_param { num_output: 16 kernel_size: 3 }")
    text += layer_text("Pooling", "p", "c", more="pooling_param { kernel_size: 2 }")
    text += layer_text("InnerProduct", "i", "p", more="inner_product_param { num_output: 3 }")
    net = make_net(text)
    changes = {
        "threads": lambda: caffe.set_num_threads(caffe.get_num_threads() % 3 + 1),
        "exact": lambda: engine.set_exact(dice.random() < 0.5),
        "engine": lambda: engine.prefer(dice.choice(["", "CAFFE", "ONEDNN", "PLAIN", "WINOGRAD"])),
        "precision": lambda: caffe.set_precision("float32"),
        "release": net.release}
    primitives = lambda: [op.primitives() for layer in net.layers for op in layer.operations()]  # noqa: E731
    last, changed, ran = [], True, False
    for _ in range(40):
        name = dice.choice([*changes, "forward", "forward", "backward"])
        if name in changes:
            changes[name]()
            changed = True
            ran = ran and name != "release"
            assert name != "release" or primitives() == [[], [], []]
        elif name == "forward":
            net.forward_from_to(0, 3)
            now, ran = primitives(), True
            assert all(len({*map(id, made)}) == 1 for made in now)     # one engine for all
            if last:
                assert [a[0] is b[0] for a, b in zip(now, last, strict=True)] == [not changed] * 3
            last, changed = now, False
        elif ran:
            net.backward_from_to(3, 0)
            assert primitives() == last


def test_an_unknown_engine_in_the_environment(monkeypatch):
    monkeypatch.setattr(engine, "_preferred", None)
    monkeypatch.setenv("MINICAFFE_ENGINE", "mkl")
    with pytest.raises(errors.ConfigError, match="MINICAFFE_ENGINE: must be caffe or cudnn or onednn or plain or winograd, got 'mkl'"):
        engine.preferred()


def test_a_layer_says_who_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_preferred", "CAFFE")
    path = tmp_path / "net.prototxt"
    path.write_text("""
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 2 kernel_size: 3 } }""")
    net = caffe.Net(str(path), caffe.TEST)
    asked = {"layer": "conv", "operation": "Convolution", "refused": {}, "fused": []}
    assert net.engines() == [{**asked, "engine": None}]
    net.forward()
    assert net.engines() == [{**asked, "engine": "CAFFE"}]
