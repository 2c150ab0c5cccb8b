"""Options that commands share: when they are applied, and how shells complete them."""

import pytest

from minicaffe.cli import options
from minicaffe.cli.train import train
from minicaffe.common import caffe
from minicaffe.engines import engine


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


def test_device_before_allocator(monkeypatch):
    done = []
    for name in ("device", "gpu", "allocator"):
        monkeypatch.setitem(options.SETTINGS, name, lambda ctx, value, name=name: done.append(name))
    train.make_context("train", ["--allocator=plain", "--gpu=0", "--device=sim", "f"])
    assert done == ["device", "gpu", "allocator"]


def test_completion_sets_nothing(monkeypatch):
    monkeypatch.setattr(options, "apply_settings", lambda ctx: pytest.fail("sets options"))
    train.make_context("train", ["--gpu", "7", "--quiet"], resilient_parsing=True)


def test_completed_texts():
    context = train.make_context("train", [], resilient_parsing=True)
    params = {param.name: param for param in train.params}
    for name, word, wanted in (("solver", "net", [("file", "net")]), ("json_path", "", [("file", "")]), ("precision", "t", [("plain", "tf32")])):
        assert [(item.type, item.value) for item in params[name].shell_complete(context, word)] == wanted
