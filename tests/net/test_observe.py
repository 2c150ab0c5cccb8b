"""What debug_info writes, line by line."""

import logging

import numpy as np
import pytest
from helpers import layer_text, make_net

from minicaffe import memory
from minicaffe.errors import ConfigError, WrongTypeError
from minicaffe.net.run import AFTER_BACKWARD

NET = """debug_info: true state { phase: TRAIN }
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" param { name: "w" } param { lr_mult: 0 }
  inner_product_param { num_output: 2 weight_filler { value: 0.5 } bias_filler { value: -1 } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 2 }"""
FORWARD = """Layer in, top blob x data: 1
Layer ip, top blob y data: 0.5
Layer ip, param blob w data: 0.5
Layer ip, param blob 1 data: 1
Layer relu, top blob y data: 0.5
Layer loss, top blob loss data: 2"""
BACKWARD = """Layer loss, bottom blob y diff: 2
Layer relu, bottom blob y diff: 2
Layer ip, param blob 0 diff: 4
All net params (data, diff): L1 norm = (5, 24); L2 norm = (1.87083, 9.79796)"""


@pytest.mark.parametrize("plan", [None, "memory"])
def test_lines_of_debug_info(plan, caplog):
    net = make_net(NET, plan=plan)
    net.blobs["x"].data[...] = 1
    forward = [f"    [Forward] {line}" for line in FORWARD.splitlines()]
    backward = [f"    [Backward] {line}" for line in BACKWARD.splitlines()]
    with caplog.at_level(logging.INFO, "minicaffe.net"):
        caplog.clear()
        net.forward_backward()
        assert caplog.messages == forward + backward and caplog.records[-1].levelname == "ERROR"      # as in Caffe
        caplog.clear()
        net.forward_from_to(1, 2)
        net.backward_from_to(2, 2)
        assert caplog.messages == forward[1:5] + backward[1:2]
        caplog.clear()
        net.debug_info = False
        net.clear_param_diffs()
        net.forward_backward()
        assert not caplog.records
    np.testing.assert_array_equal(net.nodes[1].blobs[0].diff, 4)


def test_hooked_runs_read_losses_last(device):
    """On a GPU the host would wait for each layer with a loss."""
    net = make_net(NET.replace("debug_info: true", ""))
    net.add_hook(AFTER_BACKWARD, lambda index: None)
    net.blobs["x"].data[...] = 1
    with memory.record() as events:
        assert net.forward_from_to(0, 3) == 4 and net.forward_from_to(0, 2) == 0
    kinds = [(event.kind, event.name) for event in events if event.kind in ("end", "loss")]
    assert kinds == [("end", name) for name in ("in", "ip", "relu", "loss")] + [("loss", "loss")] + [
        ("end", name) for name in ("in", "ip", "relu")]


@pytest.mark.parametrize("kind, more", [("Reshape", "reshape_param { shape { dim: 1 } }"), ("Split", "")])
def test_loss_overwritten_by_a_view(kind, more, device):
    net = make_net(layer_text("Input", "x", more="input_param { shape { dim: 2 dim: 3 } }") + layer_text("Reduction", "loss", "x", more="loss_weight: 1")
                   + layer_text(kind, "v", "loss", more=more) + layer_text("Power", "scale", "v", "v", "power_param { scale: 10 }"))
    net.blobs["x"].data[...] = 1
    assert net.forward_from_to(0, len(net.layers) - 1) == 6
    net.add_hook(AFTER_BACKWARD, print)
    assert net.forward_from_to(0, len(net.layers) - 1) == 6


@pytest.mark.parametrize("plan", [None, "memory"])
def test_passes_of_a_layer_object(plan, device):
    """They are called from when they are assigned, also where the layer was fused."""
    net = make_net(NET.replace("debug_info: true", ""), plan=plan)
    relu, side = net.layers[2], "cpu" if device == "cpu" else "gpu"

    def weight_diff():
        net.clear_param_diffs()
        net.forward_backward()
        return net.nodes[1].blobs[0].diff

    net.blobs["x"].data[...] = 1
    assert net.forward_backward() == 4
    relu.note = 1
    net.forward_backward()
    del relu.note
    setattr(relu, f"forward_{side}", lambda bottom, top: top[0].data.fill(7))       # as many attributes as before
    np.testing.assert_array_equal(weight_diff(), 4)     # 2 records with 2 each
    net.forward_from_to(0, 3)
    assert net.forward_backward() == 2 * 4 * 7
    setattr(relu, f"backward_{side}", lambda top, propagate_down, bottom: bottom[0].diff.fill(3))
    np.testing.assert_array_equal(weight_diff(), 6)
    delattr(relu, f"forward_{side}"), delattr(relu, f"backward_{side}")
    assert net.forward_from_to(0, 3) == 4


def test_wrong_hooks():
    net = make_net(NET)
    cases = [(ConfigError, when, f"when: must be from 0 to 3, BEFORE_FORWARD to AFTER_BACKWARD, got {when}") for when in (-1, 4, 2**70)] + [
        (WrongTypeError, when, f"when must be an int, got {when!r} ({type(when).__name__})") for when in ("1", 1.5, None, [1])]
    for call in (net.add_hook, net.remove_hook):
        for error, when, message in cases:
            with pytest.raises(error) as caught:
                call(when, print)
            assert str(caught.value) == message
    with pytest.raises(WrongTypeError, match="hook"):
        net.add_hook(AFTER_BACKWARD, "print")
    assert net.observer_reason() == "debug_info reads every blob"
    net.add_hook(AFTER_BACKWARD, print)
    assert net.observer_reason() == "callbacks run between layers"
    for when in (0, 1, 2, AFTER_BACKWARD):
        if when == AFTER_BACKWARD:
            net.remove_hook(when, print)
        with pytest.raises(ConfigError, match="^hook: this hook was not added there, or was removed before: "):
            net.remove_hook(when, print)
    assert net.observer_reason() == "debug_info reads every blob"
