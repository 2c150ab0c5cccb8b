"""Net.release: memory goes back, the next forward takes it again, and the numbers are those of a net that was not released."""

import gc

import numpy as np
import pytest
from helpers import layer_text, make_net, net_solver

import minicaffe
from minicaffe.errors import RecycledError
from minicaffe.memory import CPUPlace, CUDAPlace, PinnedPlace

INPUT = layer_text("Input", "in", "", "x l", "input_param { shape { dim: 2 dim: 4 dim: 12 dim: 12 } shape { dim: 2 } }")
CONV, D = (layer_text("Convolution", name, "x", more='convolution_param { num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }') for name in "cd")
END = layer_text("InnerProduct", "ip", "y", more='inner_product_param { num_output: 5 weight_filler { type: "xavier" } }') + layer_text(
    "SoftmaxWithLoss", "loss", "ip l")
RELU = layer_text("ReLU", "r", "c", "c")
BODIES = {
    "pooling": CONV + RELU + layer_text("Pooling", "p", "c", "y", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"),
    "norms": CONV + layer_text("BatchNorm", "b", "c", "c") + layer_text("Scale", "s", "c", "c", "scale_param { bias_term: true }")
             + layer_text("LRN", "n", "c") + layer_text("MVN", "y", "n"),
    "branches": CONV + D + layer_text("Concat", "k", "c d") + layer_text("Eltwise", "e", "c d") + layer_text("Flatten", "f", "e")
                + layer_text("Flatten", "g", "k") + layer_text("Concat", "y", "f g"),
    "in place": CONV + layer_text("Swish", "w", "c", "c") + layer_text("Scale", "s", "c", "c") + layer_text("PReLU", "p", "c", "c")
                + layer_text("Reshape", "y", "c", more="reshape_param { shape { dim: 0 dim: -1 } }"),
    "others": CONV + layer_text("Normalize", "n", "c") + layer_text("SPP", "s", "n", more="spp_param { pyramid_height: 2 }")
              + layer_text("Parameter", "q", more="parameter_param { shape { dim: 2 dim: 40 } }") + layer_text("Eltwise", "y", "s q"),
    "random": layer_text("DummyData", "d", more='dummy_data_param { shape { dim: 2 dim: 4 dim: 12 dim: 12 } data_filler { type: "gaussian" } }')
              + layer_text("Eltwise", "e", "x d") + layer_text("Dropout", "y", "e"),
    "lstm": layer_text("DummyData", "cont", more="dummy_data_param { shape { dim: 2 dim: 4 } data_filler { value: 1 } }")
            + layer_text("LSTM", "y", "x cont", more='recurrent_param { num_output: 6 weight_filler { type: "xavier" } }'),
}


def net_of(text, **options):
    minicaffe.set_random_seed(7)
    return fed(make_net(text, minicaffe.TRAIN, **options))


def fed(net):
    net.blobs["x"].data[...] = np.random.default_rng(3).normal(size=net.blobs["x"].shape)
    net.blobs["l"].data[...] = [1, 4]
    return net


def step(net):
    """Run forward and backward; return all that was computed."""
    net.clear_param_diffs()
    net.forward_backward()
    return [blob.cpu_diff.copy() for blob in net.learnable_params] + [net.blobs["ip"].cpu_data.copy(), net.blobs["loss"].cpu_data.copy()]


@pytest.mark.parametrize("plan", [None, "memory"])
@pytest.mark.parametrize("body", BODIES)
def test_numbers_after_release(body, plan, device):
    """Also if shapes are propagated before forward: the layers that fill a constant top fill it at once."""
    results = []
    for released in (False, True):
        net = net_of(INPUT + BODIES[body] + END, plan=plan, keep=["ip"] if plan else [])
        results.append([])
        for number in range(4):
            if released:    # the first time before anything ran
                net.release()
                net.release()
                if number == 3:
                    net.reshape_all()
            results[-1] += step(net)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.no_plan("a plan frees a blob in between")
def test_a_large_picture_leaves_nothing(device):
    place = CPUPlace() if device == "cpu" else CUDAPlace(0)
    net = net_of(INPUT + CONV + RELU + D.replace('"x"', '"c"'))

    def forward(side):
        net.blobs["x"].reshape(2, 4, side, side)
        net.blobs["x"].data[...] = 0.5
        net.forward_from_to(0, len(net.layers) - 1)
        return minicaffe.memory.used(place)

    gc.collect()
    small = forward(12)
    assert forward(400) > small + 2 * 2 * 8 * 400 * 400 * 4
    assert forward(12) > small + 2 * 2 * 8 * 400 * 400 * 4     # a blob keeps memory that is large enough
    net.release()
    released = minicaffe.memory.used(place)
    assert released < small
    assert forward(12) <= small * 1.1


STEPS = layer_text("Input", "in", "", "x cont", "input_param { shape { dim: 50 dim: 8 dim: 32 } shape { dim: 50 dim: 8 } }") + layer_text(
    "%s", "y", "x cont", more='recurrent_param { num_output: 64 weight_filler { type: "xavier" } }')


@pytest.mark.parametrize("text, computed, rest", [
    (layer_text("Input", "x", more="input_param { shape { dim: 2 dim: 4096 dim: 4 dim: 4 } }")
     + layer_text("SPP", "y", "x", more="spp_param { pyramid_height: 2 }"), 2 * 2 * 4096 * (1 + 4), 0),
    (STEPS % "LSTM", 6 * 50 * 8 * 64, 4 * 8 * 64), (STEPS % "RNN", 4 * 50 * 8 * 64, 2 * 8 * 64)], ids=["SPP", "LSTM", "RNN"])
def test_release_of_layers_own_memory(device, text, computed, rest):
    """`computed` elements are in memory after forward, at least; `rest` ones stay, the states of recurrent layers."""
    def used():
        return sum(minicaffe.memory.used(place) for place in (CPUPlace(), PinnedPlace(), CUDAPlace(0))[:1 if device == "cpu" else 3])

    minicaffe.set_random_seed(7)
    net = make_net(text, minicaffe.TRAIN)
    net.blobs["x"].data[...] = np.random.default_rng(3).normal(size=net.blobs["x"].shape)
    gc.collect()
    before = used()
    net.forward_from_to(0, 1)
    assert used() >= before + 4 * computed
    wanted = net.blobs["y"].data.copy()
    net.release()
    gc.collect()
    copied = 0 if device == "cpu" else rest + sum(blob.count for blob in (*net.input_blobs, *net.learnable_params))     # to the device
    assert used() < before + 4 * (rest + copied) + 1000
    net.forward_from_to(0, 1)
    np.testing.assert_array_equal(net.blobs["y"].data, wanted)


def test_what_is_gone_is_said():
    net = net_of(INPUT + BODIES["pooling"] + END)
    step(net)
    view = net.blobs["c"].data
    before, inputs, loss = view.copy(), net.blobs["x"].cpu_data.copy(), net.blobs["loss"].cpu_data.copy()
    net.release()
    for name in ("c", "y", "ip"):
        with pytest.raises(RecycledError, match=f"the data of blob '{name}' is gone: after net.release\\(\\) run forward first"):
            net.blobs[name].cpu_data  # noqa: B018
    with pytest.raises(RecycledError, match="is gone: after net.release"):
        net.backward_from_to(len(net.layers) - 1, 0)
    np.testing.assert_array_equal(view, before)
    np.testing.assert_array_equal(net.blobs["x"].cpu_data, inputs)
    np.testing.assert_array_equal(net.blobs["loss"].cpu_data, loss)
    assert "net.release() frees them until the next forward" in str(net.summary())
    step(net)


def test_training_continues(device):
    """Between iterations; a CUDA graph is recorded again."""
    losses = {True: [], False: []}
    for released, found in losses.items():
        minicaffe.set_random_seed(7)
        solver = net_solver(INPUT + BODIES["norms"] + END, base_lr=0.1)
        fed(solver.net)
        for i in range(8):
            solver.step(1)
            found.append(solver.net.blobs["loss"].cpu_data.item())
            if released and i % 3 == 2:
                solver.net.release()
    assert losses[True] == losses[False] and found[-1] < found[0]


@pytest.mark.parametrize("blob", ["ip", "y", "c"])
def test_gradient_given_after_next_forward(blob, device):
    """As scripts do that look at what a class or a feature depends on: the caller writes a diff, which no layer writes before."""
    nets = [net_of("force_backward: true\n" + INPUT + BODIES["pooling"] + END) for _ in range(2)]
    for net in nets:
        net.forward_from_to(0, len(net.layers) - 1)
        if net is nets[0]:
            net.release()
        net.forward_from_to(0, len(net.layers) - 1)
        assert not net.blobs[blob].cpu_diff.any()
        net.blobs[blob].diff[...] = 0.5
        net.backward_from_to(max(i for i, node in enumerate(net.nodes) if net.blobs[blob] in node.tops), 0)
    assert nets[0].blobs["x"].cpu_diff.any()
    np.testing.assert_array_equal(nets[0].blobs["x"].cpu_diff, nets[1].blobs["x"].cpu_diff)


@pytest.mark.parametrize("plan", [None, "memory"])
def test_input_changed_in_place_then_written(plan, device):
    net = net_of(INPUT + layer_text("Power", "p", "x", "x", "power_param { shift: 1 }") + layer_text("Power", "y", "x") + END, plan=plan, keep=["ip"])
    x = net.blobs["x"].data.copy()
    first = step(net)
    for _ in range(2):
        net.release()
        net.release()
        net.blobs["x"].data[...] = x
        for found, wanted in zip(step(net), first, strict=True):
            np.testing.assert_array_equal(found, wanted)
