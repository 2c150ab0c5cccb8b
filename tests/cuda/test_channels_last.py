"""Channels last on a device: what follows a convolution computes the same as in plain order, without reorders where none is needed, and
so do trainings, whatever a script does between iterations. On the simulated device the fake cuDNN computes the convolutions.

The cases are in channels_last_cases.py; a process runs them all.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from channels_last_cases import FORWARDS, LAYERS, TRAININGS, variants
from processes import start

pytestmark = pytest.mark.usefixtures("on_a_device")
HERE = Path(__file__).resolve().parent
CHECKED = "residual views", "mixed batches", "test net", "planes"


def results(request, place, what, names=None, settings=""):
    environment = {}
    if place == "sim":
        fake = request.getfixturevalue("fake")
        environment = {"MINICAFFE_CUDNN": str(fake), "FAKE_LOG": os.devnull, "FAKE_COMPUTES": "1"}
    text = start([sys.executable, "-X", "faulthandler", str(HERE / "channels_last_cases.py"), what, json.dumps(names)], place, settings, 0, None,
                 MINICAFFE_CUDNN_TUNE="0", **environment)
    assert "the slow cuDNN" not in text, text
    return [json.loads(line) for line in re.findall(r"^RESULT (.*)$", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def layers(request, place):
    return {result["name"]: result for result in results(request, place, "layers")}


@pytest.fixture(scope="module")
def trainings(request, place):
    return {(result["name"], result["plan"], result["graph"]): result for result in results(request, place, "trainings")}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(layers, name):
    result = layers[name]
    assert "error" not in result, result["error"]
    worst, where = result["apart"]
    assert worst < 1e-5, where
    assert result["converted"] and not result["plain_reordered"]     # of the input at least
    if LAYERS[name].get("keeps"):
        assert not result["reordered"]


@pytest.mark.parametrize(("name", "plan", "graph"), [(name, *variant) for name in TRAININGS for variant in variants(name)])
def test_trainings(trainings, name, plan, graph):
    check_training(trainings[name, plan, graph])


# A CUDA graph is not recorded again because a caller read or wrote; it is after a change of the mode, as in "sums".
REPLAYED = {"residual", "lenet", "mixed", "planes", "planes read", "residual read", "mixed read", "read now and then", "restored", "feed",
            "residual views", "lenet views"}


def check_training(result):
    assert "error" not in result, result["error"]
    worst, where = result["apart"]
    assert worst < 1e-4, where
    if result["graph"] and result["name"] in REPLAYED:
        assert result["recorded"] == 1 and result["replayed"] >= 4


def test_forwards_by_a_graph(request, place):
    found = {result["name"]: result for result in results(request, place, "forwards")}
    assert found.keys() == FORWARDS.keys()
    for name, result in found.items():
        assert all(result["same"]) and result["replayed"] == 3, name


@pytest.mark.parametrize("check", ["race=1", "uninitialized=1", "deferred=1"])
def test_under_the_checks(request, only_sim, place, check):
    found = results(request, place, "trainings", CHECKED, check)
    assert len(found) == sum(len(variants(name)) for name in CHECKED)
    for result in found:
        check_training(result)


@pytest.mark.parametrize("check", ["race=1", "deferred=1"])
def test_of_a_peer(request, only_sim, place, check):
    assert results(request, place, "peers", settings=f"devices=2,peers=0-1,{check}") == [{"refused": True}]
