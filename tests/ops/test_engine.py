"""Which engine computes an operation, what is said of those that do not, and what an epilogue takes (minicaffe/engines/)."""

import importlib
import itertools
import logging
import re
from pathlib import Path

import pytest
from helpers import layer_text, make_net

import minicaffe as caffe
from minicaffe import errors
from minicaffe.blob import Blob
from minicaffe.common import caffe as settings
from minicaffe.engines import engine, epilogue
from minicaffe.engines.table import CAFFE, CUDNN, ONEDNN, WINOGRAD
from minicaffe.memory import SyncedHead

PACKAGE = Path(caffe.__file__).parent


class Probe(engine.Operation):
    pass


class Answer(engine.Primitive):
    pass


def fail(operation):
    raise engine.Refusal("probes of odd size")


@pytest.fixture
def probes(monkeypatch):
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
    monkeypatch.setattr(CUDNN, "absent", absent)
    engine.prefer(preferred)
    assert Probe(caffe.blob.Dtype.FLOAT, field)._choose(device).engine == who


@pytest.mark.parametrize("how", [(Answer, lambda operation: "probes of odd size"), (fail,)])
def test_refusal_is_reported_once(probes, caplog, how):
    CUDNN.computes(Probe, *how)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            operation = Probe(caffe.blob.Dtype.FLOAT, CUDNN.layer_field)
            assert operation._choose(True).engine == "CAFFE"
            assert operation.describe()["refused"] == {"CUDNN": "probes of odd size"}
    assert [record.getMessage() for record in caplog.records] == [
        "engine CUDNN refuses: probes of odd size; engine CAFFE computes instead"]


def test_refusals_by_level_and_name(probes, caplog):
    """Unless the engine is preferred by name."""
    CUDNN.computes(Probe, Answer, lambda operation: "probes of odd size")
    for preferred, level in ("", logging.DEBUG), ("CUDNN", logging.WARNING):
        engine.prefer(preferred)
        caplog.clear()
        with caplog.at_level(logging.DEBUG, engine.log.name):
            assert Probe(caffe.blob.Dtype.FLOAT)._choose(True).engine == "CAFFE"
        assert [record.levelno for record in caplog.records] == [level]
    # A fact, of which the rule of speed knows nothing; nothing is made.
    WINOGRAD.computes(Probe, fail, lambda operation: "odd", lambda operation: pytest.fail("compared"))
    for preferred in "", "WINOGRAD":
        engine.prefer(preferred)
        operation = Probe(caffe.blob.Dtype.FLOAT)
        assert operation._choose(False).engine == "CAFFE" and operation.describe()["refused"] == {"WINOGRAD": "odd"}


@pytest.mark.parametrize(("preferred", "who", "refused"), [
    ("", "CAFFE", {"WINOGRAD": "few channels; MINICAFFE_ENGINE=winograd computes them all the same"}), ("WINOGRAD", "WINOGRAD", {})])  # fmt: skip
def test_speed_rule_unless_engine_named(probes, preferred, who, refused):
    WINOGRAD.computes(Probe, Answer, slower=lambda operation: "few channels")
    engine.prefer(preferred)
    operation = Probe(caffe.blob.Dtype.FLOAT)
    assert (operation._choose(False).engine, operation.describe()["refused"]) == (who, refused)


@pytest.mark.parametrize("name", ["WINOGRAD", "ONEDNN"])
def test_engines_for_float32_refuse_float64(probes, name):
    engine.ENGINES[name].computes(Probe, Answer)
    engine.prefer(name)
    assert Probe(caffe.blob.Dtype.FLOAT)._choose(False).engine == name
    operation = Probe(caffe.blob.Dtype.DOUBLE)
    assert operation._choose(False).engine == "CAFFE" and operation.describe()["refused"][name].startswith("float64 data: ")


def test_precision_and_epoch(probes, monkeypatch):
    for one in WINOGRAD, ONEDNN:
        one.computes(Probe, Answer)
    engine.prefer("")
    for precision, dtype, who in (("float32", "FLOAT", "WINOGRAD"), ("bf16", "FLOAT", "ONEDNN"), ("bf16", "DOUBLE", "CAFFE")):
        monkeypatch.setattr(engine, "_precision", precision)
        assert Probe(caffe.blob.Dtype[dtype])._choose(False).engine == who
    # Changes with the preferred engine and the precision (solver/step.py).
    seen = [engine.settings_epoch()]
    for change in (lambda: engine.prefer("CAFFE"), lambda: caffe.set_precision("tf32"), lambda: caffe.set_precision("float32")):
        change()
        seen.append(engine.settings_epoch())
    assert len(set(seen)) == 4
    assert engine.settings_epoch() == seen[-1]


def test_engines_are_named_in_their_files():
    files = sorted((PACKAGE / "ops").glob("*/engine_*.pyx"))
    for path in files:
        folder, name = path.parent.name, path.stem.removeprefix("engine_").upper()
        importlib.import_module(f"minicaffe.ops.{folder}.operation")
        made = [make.__module__ for make, *_ in engine.ENGINES[name].computed_kinds().values()]
        assert f"minicaffe.ops.{folder}.{path.stem}" in made, f"ops/{folder}/__init__.py does not import {path.stem}"
    assert len(files) > len(engine.ENGINES)
    # Outside of docstrings: a new engine changes neither.
    for name in ("engine.pyx", "engine.pxd", "layouts.pyx", "layouts.pxd"):
        code = re.sub(r'""".*?"""', "", (PACKAGE / "engines" / name).read_text(), flags=re.S)
        assert not re.findall(rf"\b({'|'.join(engine.ENGINES)})\b|onednn|cudnn|winograd", code), name


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


def test_choice_holds_until_setting_changes():
    """It is made again by the next forward after a change, for a backward never: that is the engine's of forward."""
    text = 'force_backward: true layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 16, 12, 12] } } } '
    text += layer_text("Convolution", "c", "x", more="convolution_param { num_output: 16 kernel_size: 3 }")
    text += layer_text("Pooling", "p", "c", more="pooling_param { kernel_size: 2 }")
    text += layer_text("InnerProduct", "i", "p", more="inner_product_param { num_output: 3 }")
    net, last = make_net(text), [[None]] * 3
    for change in (lambda: None, lambda: caffe.set_num_threads(caffe.get_num_threads() % 3 + 1), lambda: engine.set_exact(not engine.get_exact()),
                   *(lambda name=name: engine.prefer(name) for name in ("", "CAFFE", "ONEDNN", "PLAIN", "WINOGRAD")),
                   lambda: caffe.set_precision("float32"), net.release):
        change()
        if change == net.release:
            assert primitives(net) == [[], [], []]
        elif last[0][0] is not None:
            net.backward_from_to(3, 0)
            assert primitives(net) == last
        for changed in (True, False):
            net.forward_from_to(0, 3)
            now = primitives(net)
            assert all(len({*map(id, made)}) == 1 for made in now)     # one engine for all
            assert [a[0] is b[0] for a, b in zip(now, last, strict=True)] == [not changed] * 3
            last = now


def primitives(net):
    return [operation.primitives() for layer in net.layers for operation in layer.operations()]


def test_engine_of_environment_and_layer(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "_preferred", None)
    monkeypatch.setenv("MINICAFFE_ENGINE", "mkl")
    with pytest.raises(errors.ConfigError, match="MINICAFFE_ENGINE: must be caffe or cudnn or onednn or plain or winograd, got 'mkl'"):
        engine.preferred()
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


TOP, ONE, PER_CHANNEL = Blob((2, 3, 4)), Blob((1,)), Blob((3,))
CALLS = {       # of an epilogue, by letters
    "s": lambda it: it.standardize(PER_CHANNEL, PER_CHANNEL, ONE, 1e-5),
    "a": lambda it: it.affine(PER_CHANNEL, PER_CHANNEL, (True, True)),
    "m": lambda it: it.affine(PER_CHANNEL, None, (True, True)),
    "b": lambda it: it.affine(None, PER_CHANNEL, (True, True)),
    "+": lambda it: it.add(TOP),
    "r": lambda it: it.rectify(0),
    "l": lambda it: it.rectify(0.25),
    "n": lambda it: it.rectify(-0.5),
    "p": lambda it: it.rectify(PER_CHANNEL)}


@pytest.mark.parametrize(("kind", "adds", "taken"), [
    ("Channel", False, "[samb]*[rlnp]?"), ("Channel", True, r"[samb]*\+?[rlnp]?"), ("Relu", False, "r?"), ("Relu", True, "r?"),
    ("Norm", False, "[amb]?[rl]?"), ("Norm", True, "[amb]?[rl]?")])
def test_which_layers_an_epilogue_takes(kind, adds, taken):
    """An affine map before an addend before slopes, or fewer: what is refused leaves what was taken."""
    for calls in itertools.product(CALLS, repeat=4):
        made, done = getattr(epilogue, f"{kind}Epilogue")(TOP, False, adds), ""
        for letter in calls:
            fits = re.fullmatch(taken, done + letter) is not None
            assert CALLS[letter](made) == fits, (done, letter)
            done += letter * fits
