"""Times of a net's steps, on the CPU and on a device: which steps there are, and what they cost."""

import json

import numpy as np
import pytest
from helpers import layer_text, make_net, net_solver

import minicaffe
from minicaffe import cuda
from minicaffe.errors import DependencyError, ShapeError
from minicaffe.inspection import cost, timing

pytestmark = pytest.mark.no_plan("`minicaffe time` runs forward and backward of nets without a plan")

NET = layer_text("DummyData", "in", "", "x label", """dummy_data_param { shape { dim: 4 dim: 2 dim: 6 dim: 6 } shape { dim: 4 }
    data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } }""") + layer_text(
    "Convolution", "conv", "x", "y", 'convolution_param { num_output: 4 kernel_size: 3 bias_term: false engine: CAFFE weight_filler { type: "xavier" } }'
    ) + layer_text("BatchNorm", "norm", "y", "y") + layer_text("ReLU", "relu", "y", "y") + layer_text(
    "InnerProduct", "ip", "y", "z", 'inner_product_param { num_output: 3 weight_filler { type: "xavier" } }') + layer_text("SoftmaxWithLoss", "loss", "z label")
ORDER = ["in", "conv", "norm + relu", "ip", "loss"]


@pytest.fixture(params=["cpu", "sim"])
def where(request, device, monkeypatch):
    """Compute on the CPU, then on a device: that of ``--device gpu``, else the simulated one."""
    kind = "gpu" if request.param == "sim" and device == "gpu" else request.param
    monkeypatch.setenv("MINICAFFE_DEVICE", kind)
    try:
        minicaffe.set_mode_cpu() if kind == "cpu" else minicaffe.set_mode_gpu()
    except DependencyError as error:    # a build without CUDA
        pytest.skip(str(error))
    yield kind
    minicaffe.set_mode_cpu() if device == "cpu" else minicaffe.set_mode_gpu()


on_device = pytest.mark.parametrize("where", ["sim"], indirect=True)


def test_steps_are_those_of_the_schedule(where):
    net, losses, rounds = make_net(NET), [], []
    times = timing.measure(net, 3, losses.append, lambda number, ms: rounds.append((number, ms)))
    assert [" + ".join(step.layers) for step in times.steps] == ORDER + ORDER[:0:-1]
    assert [step.direction for step in times.steps] == ["forward"] * 5 + ["backward"] * 4
    assert [row.layers for row in net.schedule().rows if row.direction == "forward"] == [name.split(" + ") for name in ORDER]
    assert len(losses) == 1 and np.isfinite(losses[0])
    assert [number for number, _ in rounds] == [1, 2, 3] and times.total_ms == pytest.approx(sum(ms for _, ms in rounds))
    means = sum(step.mean for step in times.steps)
    assert 0 < means <= times.total_ms / 3 * (1 + 1e-6)
    forward, backward = times.by_layer(6)
    assert forward[2] > 0 and forward[3] == backward[3] == backward[0] == 0 and sum(map(sum, (forward, backward))) == pytest.approx(means)
    assert json.loads(json.dumps(times.as_dict()))["steps"][1]["types"] == ["Convolution"]
    assert times.device == where


def test_fused_missing_and_changed_layers(where):
    net = make_net(NET)
    times = timing.measure(net, 1)
    norm = next(step for step in times.steps if step.layers[0] == "norm" and step.direction == "forward")
    alone = [cost.of_node(node, "forward") for node in net.nodes[2:4]]
    assert norm.flops == alone[0].flops + alone[1].flops and norm.bytes == alone[0].bytes   # in place: what ReLU reads is there
    conv = next(step for step in times.steps if step.layers == ["conv"])
    assert (conv.flops, conv.bytes) == cost.of_node(net.nodes[1], "forward")
    assert timing.measure(make_net("name: 'none'"), 1).steps == []
    net = make_net(NET)
    with timing.record() as events:
        timing.measure(net, 1)
    assert [event.kind for event in events if event.name == "ip"].count("begin") >= 4      # of a warm-up and a round
    with pytest.raises(ShapeError, match="ip.*was reshaped"):
        timing.measure(net, 2, on_round=lambda number, ms: net.nodes[4].blobs[0].reshape((3, 7)))


def test_backward_of_a_deploy_net(where):
    """The net leaves it out, and `measure` runs it: the gradients of the weights count, and no other."""
    net = make_net(layer_text("Input", "in", "", "x", "input_param { shape { dim: 4 dim: 5 } }") + layer_text(
        "InnerProduct", "ip", "x", "y", "inner_product_param { num_output: 3 }"))
    [back] = [step for step in timing.measure(net, 1).steps if step.direction == "backward"]
    assert cost.of_node(net.nodes[1], "backward") == (0, 0)
    assert (back.layers, back.flops, back.gflop_s is None) == (["ip"], 2 * 4 * 5 * 3 + 4 * 3, False)


@on_device
def test_net_that_has_trained(where):
    """Its gradients were freed by the update."""
    solver = net_solver(NET, "memory")
    solver.step(4)
    assert timing.measure(solver.net, 1).total_ms > 0
    solver.step(1)


@on_device
def test_sleep_before_a_pass(where, monkeypatch):
    device, net = cuda.current(), make_net(NET)
    if where == "sim":      # measure does not sleep there; cuda.sleep compiles the same kernel for the host
        monkeypatch.setattr(timing, "_sleep", lambda device, seconds: cuda.sleep(int(seconds * device.clock_rate)))
    timing.measure(net, 1)
    rounds = timing._Rounds(net, device)
    try:
        with timing.record(rounds):
            took = rounds.run(0.5)
    except DependencyError as error:    # the simulated device needs a compiler for it
        pytest.skip(str(error))
    assert took < 400
