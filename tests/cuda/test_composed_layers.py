"""Layers made of several operations in a training that is replayed as a CUDA graph: LSTM, RNN, SPP.

Layers whose backward uses what their forward kept, with a change of the mode between the two.
"""

import helpers
import numpy as np
import pytest
from helpers import layer_text
from training import NET, XAVIER, losses, make_solver

import minicaffe


def source(*shapes):
    """Tops x, cont and label, or x and label: normal numbers, ones and twos."""
    fillers = ['type: "gaussian" std: 1', *['type: "constant" value: 1'] * (len(shapes) - 2), 'type: "constant" value: 2']
    return layer_text("DummyData", "in", "", "x cont label" if len(shapes) == 3 else "x label", "dummy_data_param { " + " ".join(
        f"shape {{ dim: {shape} }}" for shape in shapes) + " ".join(f" data_filler {{ {filler} }}" for filler in fillers) + " }")


def classified(bottom):
    return layer_text("InnerProduct", "ip", bottom, "ip", f"inner_product_param {{ num_output: 4 {XAVIER} }}") + layer_text("SoftmaxWithLoss", "loss", "ip label")


NETS = {kind: source([5, 3, 4], [5, 3], [15]) + layer_text(kind, "r", "x cont", "y", 'recurrent_param { num_output: 6 weight_filler { type: "uniform" '
        "min: -0.5 max: 0.5 } }") + layer_text("Reshape", "flat", "y", "flat", "reshape_param { shape { dim: 15 dim: 6 } }") + classified("flat")
        for kind in ("LSTM", "RNN")}
NETS["SPP"] = (source([4, 2, 9, 7], [4]) + layer_text("Convolution", "conv", "x", "conv", f"convolution_param {{ num_output: 3 kernel_size: 3 pad: 1 {XAVIER} }}")
               + layer_text("SPP", "spp", "conv", "spp", "spp_param { pyramid_height: 2 }") + classified("spp"))


def trained(name, graphs, look=False, n=9):
    """Train; return losses, parameters and states. `look` reads the states on the host in between, as a snapshot does."""
    solver = make_solver(NETS[name])
    solver.use_graphs = graphs
    found, states = [], []
    for _ in range(n):
        found += losses(solver, 1)
        if look:
            states.append([layer.get_state() for layer in solver.net.layers])
    if graphs:
        assert solver.training_step.recorded.graph is not None
    return found, [blob.cpu_data.copy() for blob in solver.net.learnable_params], states


@pytest.mark.parametrize(("name", "look"), [("LSTM", False), ("RNN", False), ("SPP", False), ("LSTM", True), ("RNN", True)])
def test_replayed_training(name, look):
    (found, params, states), (wanted, wanted_params, wanted_states) = (trained(name, graphs, look) for graphs in (True, False))
    assert found == wanted and states == wanted_states
    for one, other in zip(params, wanted_params):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["LSTM", "RNN"])
def test_state_set_between_replays(name):
    results = []
    for graphs in (True, False):
        solver = make_solver(NETS[name])
        solver.use_graphs = graphs
        losses(solver, 5)
        layer = solver.net.layers[1]
        state = layer.get_state()
        losses(solver, 2)
        layer.set_state(state)
        losses(solver, 1)
        layer.reset()
        results.append(losses(solver, 1) + [blob.cpu_data.tolist() for blob in solver.net.learnable_params])
    assert results[0] == results[1]


def test_cpu_backward_between_replays():
    """It reads the softmax's probabilities in a scratch blob, of the last replay."""
    found = []
    for graphs in (True, False):
        solver = make_solver(NET)
        solver.use_graphs = graphs
        for _ in range(2):
            losses(solver, 3)
            minicaffe.set_mode_cpu()
            solver.net.clear_param_diffs()
            solver.net.backward_from_to(len(solver.net.nodes) - 1, 0)
            found.append([blob.cpu_diff.copy() for blob in solver.net.learnable_params])
            minicaffe.set_mode_gpu()
    for ours, theirs in zip(found[:2], found[2:]):
        for one, other in zip(ours, theirs):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


LAYERS = {
    "Interp": "interp_param { height: 9 width: 7 }",
    "Resize": "resize_param { height: 11 width: 8 }",
    "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }",
    "Normalize": "norm_param { across_spatial: false channel_shared: false scale_filler { type: 'constant' value: 2 } }",
    "MVN": "",
    "Crop": "crop_param { axis: 2 offset: 1 }",
    "LRN": "",
    "Pooling": "pooling_param { kernel_size: 3 stride: 2 }"}
def results(net, forward, backward):
    """Return the top and the gradient of the bottom, forward and backward in these modes."""
    modes = {"cpu": minicaffe.set_mode_cpu, "gpu": minicaffe.set_mode_gpu}
    modes[forward]()
    net.forward_from_to(0, len(net.nodes) - 1)
    modes[backward]()
    top = net.tops[-1][0]
    top.diff[...] = np.random.default_rng(2).normal(size=top.shape)
    net.backward_from_to(len(net.nodes) - 1, 0)
    return top.cpu_data.copy(), net.blobs["x"].cpu_diff.copy()


@pytest.mark.parametrize("kind", LAYERS)
def test_tops_and_gradients_are_the_same(kind):
    text = ("force_backward: true " + layer_text("Input", "in", "", "x size", "input_param { shape { dim: [2, 4, 6, 5] } shape { dim: [2, 4, 3, 3] } }")
            + layer_text(kind, "l", "x size" if kind == "Crop" else "x", "y", LAYERS[kind]))
    values = np.random.default_rng(1).normal(size=(2, 4, 6, 5))

    def made():
        net = helpers.make_net(text)
        net.blobs["x"].data[...] = values
        return net

    wanted = results(made(), "cpu", "cpu")
    assert np.abs(wanted[1]).max() > 0.01
    for pairs in ([("cpu", "gpu")], [("gpu", "cpu")], [("gpu", "gpu"), ("cpu", "gpu"), ("gpu", "cpu"), ("gpu", "gpu")]):
        net = made()
        for pair in pairs:
            for found, want in zip(results(net, *pair), wanted):
                np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5, err_msg=str(pair))
