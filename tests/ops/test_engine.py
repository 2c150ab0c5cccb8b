"""Which engine computes an operation, and what is said of those that do not (minicaffe/ops/engine.pyx)."""

import logging

import pytest

import minicaffe as caffe
from minicaffe import errors
from minicaffe.ops import engine


class Probe(engine.Operation):
    """A kind of operation for which two engines answer with their names."""


class Answer(engine.Primitive):
    pass


def refuse(operation):
    raise engine.Refusal("probes of odd size")


@pytest.fixture
def makers(monkeypatch):
    """The makers of Probe; settings are put back."""
    monkeypatch.setattr(engine, "_makers", {Probe: {}})
    monkeypatch.setattr(engine, "_told", set())
    monkeypatch.setattr(engine, "absent", set())
    before = engine.preferred()
    engine.offer(Probe, "CAFFE", Answer)
    engine.offer(Probe, "CUDNN", Answer)
    yield
    engine.prefer(before)


@pytest.mark.parametrize(("field", "preferred", "device", "who"), [
    (engine.DEFAULT, "", True, "CUDNN"), (engine.DEFAULT, "", False, "CAFFE"), (engine.DEFAULT, "CAFFE", True, "CAFFE"),
    (engine.DEFAULT, "ONEDNN", True, "CAFFE"), (engine.DEFAULT, "CUDNN", True, "CUDNN"), (engine.DEFAULT, "CUDNN", False, "CAFFE"),
    (engine.CUDNN, "", True, "CUDNN"), (engine.CUDNN, "", False, "CAFFE"), (engine.CAFFE, "CUDNN", True, "CAFFE")])  # fmt: skip
def test_who_is_asked(makers, field, preferred, device, who):
    engine.prefer(preferred)
    assert Probe(caffe.blob.Dtype.FLOAT, field)._choose(device).engine == who


@pytest.mark.parametrize(("field", "preferred", "who"), [
    (engine.DEFAULT, "", "CAFFE"), (engine.DEFAULT, "CUDNN", "CUDNN"), (engine.CUDNN, "", "CUDNN")])  # fmt: skip
def test_an_engine_without_a_library_is_used_only_by_name(makers, field, preferred, who):
    engine.absent.add("CUDNN")
    engine.prefer(preferred)
    assert Probe(caffe.blob.Dtype.FLOAT, field)._choose(True).engine == who


def test_a_refusal_is_kept_and_told_once(makers, caplog):
    engine.offer(Probe, "CUDNN", refuse)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            operation = Probe(caffe.blob.Dtype.FLOAT, engine.CUDNN)
            assert operation._choose(True).engine == "CAFFE"
            assert operation.describe()["refused"] == {"CUDNN": "probes of odd size"}
    assert [record.getMessage() for record in caplog.records] == [
        "engine CUDNN refuses: probes of odd size; engine CAFFE computes instead"]


def test_what_is_refused_by_default_is_told_at_level_debug(makers, caplog):
    """Unless the engine is preferred by name."""
    engine.offer(Probe, "CUDNN", refuse)
    for preferred, level in ("", logging.DEBUG), ("CUDNN", logging.WARNING):
        engine.prefer(preferred)
        caplog.clear()
        with caplog.at_level(logging.DEBUG, engine.log.name):
            assert Probe(caffe.blob.Dtype.FLOAT)._choose(True).engine == "CAFFE"
        assert [record.levelno for record in caplog.records] == [level]


def test_the_epoch_of_the_settings(makers):
    """Changes with the preferred engine and the precision (solver/iteration.py)."""
    seen = [engine.settings_epoch()]
    for change in (lambda: engine.prefer("CAFFE"), lambda: caffe.set_precision("tf32"), lambda: caffe.set_precision("float32")):
        change()
        seen.append(engine.settings_epoch())
    assert len(set(seen)) == 4
    assert engine.settings_epoch() == seen[-1]


def test_an_unknown_engine_in_the_environment(monkeypatch):
    monkeypatch.setattr(engine, "_preferred", None)
    monkeypatch.setenv("MINICAFFE_ENGINE", "mkl")
    with pytest.raises(errors.ConfigError, match="MINICAFFE_ENGINE: must be caffe or cudnn or onednn or winograd, got 'mkl'"):
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
