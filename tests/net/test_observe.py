"""What debug_info writes, line by line."""

import logging

import numpy as np
import pytest
from helpers import make_net

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
        assert [record.getMessage() for record in caplog.records] == forward + backward
        assert caplog.records[-1].levelname == "ERROR"      # as in Caffe
        caplog.clear()
        net.forward_from_to(1, 2)
        net.backward_from_to(2, 2)
        assert [record.getMessage() for record in caplog.records] == forward[1:5] + backward[1:2]
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


@pytest.mark.parametrize("view", ['"Reshape" reshape_param { shape { dim: 1 } }', '"Split"'])
@pytest.mark.parametrize("hooked", [False, True])
def test_loss_overwritten_by_a_view(view, hooked, device):
    net = make_net('''layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "loss" type: "Reduction" bottom: "x" top: "loss" loss_weight: 1 }
        layer { name: "view" bottom: "loss" top: "v" type: ''' + view + '''}
        layer { name: "scale" type: "Power" bottom: "v" top: "v" power_param { scale: 10 } }''')
    if hooked:
        net.add_hook(AFTER_BACKWARD, print)
    net.blobs["x"].data[...] = 1
    assert net.forward_from_to(0, len(net.layers) - 1) == 6


@pytest.mark.parametrize("plan", [None, "memory"])
def test_passes_of_a_layer_object(plan, device):
    """They are called from when they are assigned, also where the layer was fused."""
    net = make_net(NET.replace("debug_info: true", ""), plan=plan)
    relu, side = net.layers[2], "cpu" if device == "cpu" else "gpu"
    net.blobs["x"].data[...] = 1
    assert net.forward_backward() == 4

    def forward(bottom, top):
        top[0].data[...] = 7

    def backward(top, propagate_down, bottom):
        bottom[0].diff[...] = 3

    relu.note = 1
    net.forward_backward()
    del relu.note
    setattr(relu, f"forward_{side}", forward)       # as many attributes as before
    net.clear_param_diffs()
    net.forward_backward()
    net.forward_from_to(0, 3)
    assert net.forward_backward() == 2 * 4 * 7
    np.testing.assert_array_equal(net.nodes[1].blobs[0].diff, 8)        # 2 records with 2 each, of two runs
    setattr(relu, f"backward_{side}", backward)
    net.clear_param_diffs()
    net.forward_backward()
    np.testing.assert_array_equal(net.nodes[1].blobs[0].diff, 6)
    delattr(relu, f"forward_{side}"), delattr(relu, f"backward_{side}")
    assert net.forward_from_to(0, 3) == 4


def test_wrong_hooks():
    net = make_net(NET)
    hook = print
    for call in (net.add_hook, net.remove_hook):
        for when in (-1, 4, 2**70):
            with pytest.raises(ConfigError) as caught:
                call(when, hook)
            assert str(caught.value) == f"when: must be from 0 to 3, BEFORE_FORWARD to AFTER_BACKWARD, got {when}"
        for when in ("1", 1.5, None, [1]):
            with pytest.raises(WrongTypeError) as caught:
                call(when, hook)
            assert str(caught.value) == f"when must be an int, got {when!r} ({type(when).__name__})"
    with pytest.raises(WrongTypeError, match="hook"):
        net.add_hook(AFTER_BACKWARD, "print")
    assert net.observer_reason() == "debug_info reads every blob"
    net.add_hook(AFTER_BACKWARD, hook)
    for when in range(3):
        with pytest.raises(ConfigError, match="^hook: this hook was not added there, or was removed before: "):
            net.remove_hook(when, hook)
    assert net.observer_reason() == "callbacks run between layers"
    net.remove_hook(AFTER_BACKWARD, hook)
    assert net.observer_reason() == "debug_info reads every blob"
    with pytest.raises(ConfigError, match="^hook: this hook was not added there, or was removed before: "):
        net.remove_hook(AFTER_BACKWARD, hook)
