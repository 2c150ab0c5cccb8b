"""Training on parameters, gradients and history in oneDNN's layouts: the numbers of engine CAFFE, and no reorders for them."""


import numpy as np
import pytest
from helpers import in_threads

import minicaffe as caffe
from minicaffe import memory
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver

# Channels that fill blocks, that are padded, groups, 1x1, and weights that are used twice.
NET = """
    layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {0} dim: 20 dim: 8 dim: 8 }} }} }}
    layer {{ name: "t" type: "Input" top: "t" input_param {{ shape {{ dim: {0} dim: 24 dim: 8 dim: 8 }} }} }}
    layer {{ name: "conv1" type: "Convolution" bottom: "x" top: "a" convolution_param {{
              num_output: 32 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "relu" type: "ReLU" bottom: "a" top: "a" }}
    layer {{ name: "conv2" type: "Convolution" bottom: "a" top: "b" param {{ name: "w" }} convolution_param {{
              num_output: 32 kernel_size: 3 pad: 1 group: 2 weight_filler {{ type: "xavier" }} bias_term: false }} }}
    layer {{ name: "conv3" type: "Convolution" bottom: "b" top: "c" param {{ name: "w" }} convolution_param {{
              num_output: 32 kernel_size: 3 pad: 1 group: 2 weight_filler {{ type: "xavier" }} bias_term: false }} }}
    layer {{ name: "conv4" type: "Convolution" bottom: "c" top: "d" convolution_param {{
              num_output: 24 kernel_size: 1 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "loss" type: "EuclideanLoss" bottom: "d" bottom: "t" top: "loss" }}
"""
RULES = {
    "SGD": "momentum: 0.9 base_lr: 1e-4",
    "Nesterov": "momentum: 0.9 base_lr: 1e-4",
    "AdaGrad": "delta: 1e-3 base_lr: 0.01",
    "RMSProp": "rms_decay: 0.9 delta: 1e-3 base_lr: 0.01",
    "AdaDelta": "momentum: 0.95 delta: 1e-4 base_lr: 1",
    "Adam": "momentum: 0.9 momentum2: 0.99 delta: 1e-3 base_lr: 0.01",
}
EXTRAS = ["", "weight_decay: 0.1", "weight_decay: 0.1 regularization_type: 'L1'", "iter_size: 2", "clip_gradients: 0.5",
          "debug_info: true display: 1"]
TOLERANCE = 1e-3    # of the largest value, after three updates


def make(rule, extra="", images=2):
    text = f"type: '{rule}' {RULES[rule]} {extra} lr_policy: 'fixed' random_seed: 3 net_param {{ {NET.format(images)} }}"
    solver = create_solver(parse_text(text, caffe_pb2.SolverParameter, "solver.prototxt", keep_layer_fields=True)[0])
    fill(solver.net)
    return solver


def fill(net):
    random = np.random.default_rng(images := net.blob_by_name("x").shape[0])
    for name in ("x", "t"):
        blob = net.blob_by_name(name)
        blob.data[...] = random.standard_normal(blob.shape)
    return images


def assert_same(ours, other):
    for blob, expected in zip(ours, other, strict=True):
        limit = TOLERANCE * np.abs(expected.cpu_data).max()
        assert np.abs(blob.cpu_data - expected.cpu_data).max() <= limit > 0, blob.name


def in_blocks(solver):
    """Which weights, gradients and histories are in a layout of oneDNN."""
    weights = [i for i, blob in enumerate(solver.net.learnable_params) if blob.num_axes == 4]
    params, history = [solver.net.learnable_params[i] for i in weights], [solver.history[i] for i in weights]
    return ([blob.layout_of_data() for blob in params], [blob.layout_of_diff() for blob in params],
            [blob.layout_of_data() for blob in history])


@pytest.mark.no_plan("looks at gradients after the update")
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("rule", RULES)
def test_rules(onednn, rule, extra):
    solvers = []
    for use in (True, False):
        onednn(use)
        solvers.append(make(rule, extra))
        solvers[-1].step(3)
        if use:
            data, diff, history = in_blocks(solvers[-1])
            assert None not in data and data == diff == history
    ours, other = solvers
    assert_same(ours.net.learnable_params, other.net.learnable_params)
    assert_same(ours.history, other.history)


def test_parameters_are_not_reordered(onednn):
    solver = make("Adam", "clip_gradients: 0.5 weight_decay: 0.1")
    solver.step(2)
    with memory.record() as events:
        solver.step(2)
    blobs = solver.net.learnable_params + solver.history
    names = {blob.data_memory.name for blob in blobs} | {blob.diff_memory.name for blob in blobs}
    assert [event.name for event in events if event.kind == "reorder" and event.name in names] == []


def test_padding_rule_updates_plain(onednn):
    """0 / 0 in the padding of conv1's 20 channels; elsewhere every gradient is other than 0."""
    solver = make("AdaGrad")
    solver.param.delta = 0
    solver.step(3)
    assert all(np.isfinite(blob.cpu_data).all() for blob in solver.net.learnable_params)
    assert np.isfinite(solver.net.blob_by_name("loss").cpu_data)


def test_who_looks_and_writes_in_between(onednn, tmp_path):
    """Views that are held, values set from outside, a snapshot, a test net of another batch size: all as with engine CAFFE."""
    ends = []
    for use in (True, False):
        onednn(use)
        solver = make("SGD")
        solver.param.snapshot_prefix = str(tmp_path / str(use))
        view = solver.net.learnable_params[0].data
        solver.step(1)
        assert np.array_equal(view, solver.net.learnable_params[0].cpu_data)
        del view
        solver.net.learnable_params[1].data[...] *= 2
        solver.history[0].data[...] *= 0.5
        solver.step(1)
        _, state = solver.snapshot()
        solver.step(1)
        ends.append([blob.cpu_data.copy() for blob in solver.net.learnable_params])
        other = make("SGD")
        other.restore(state)
        other.step(1)
        for blob, expected in zip(other.net.learnable_params, ends[-1], strict=True):
            assert np.array_equal(blob.cpu_data, expected)
        test = caffe.net.net.Net(parse_text(NET.format(5), caffe_pb2.NetParameter, "test.prototxt", keep_layer_fields=True)[0])
        test.share_with(solver.net)
        fill(test)
        test.forward_from_to(0, len(test.layers) - 1)
        solver.net.forward_from_to(0, len(solver.net.layers) - 1)
        ends[-1] += [net.blob_by_name("d").cpu_data.copy() for net in (test, solver.net)]
    for ours, expected in zip(*ends, strict=True):
        assert np.abs(ours - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_gradients_added_until_cleared(onednn):
    net = make("SGD").net
    sums = []
    for _ in range(2):
        net.forward_backward()
        sums.append([blob.cpu_diff.copy() for blob in net.learnable_params])
    net.clear_param_diffs()
    assert not any(blob.cpu_diff.any() for blob in net.learnable_params)
    net.forward_backward()
    net.clear_param_diffs()
    net.forward_backward()
    for once, twice, blob in zip(*sums, net.learnable_params, strict=True):
        assert np.abs(twice - 2 * once).max() <= TOLERANCE * np.abs(once).max()
        assert np.abs(blob.cpu_diff - once).max() <= TOLERANCE * np.abs(once).max()


def test_threads_with_nets_that_share_weights(onednn):
    """Batches of other sizes may want the weights in other layouts, of which each thread has its own turn."""
    nets = [make("SGD", images=images).net for images in (1, 2, 7)]
    for net in nets[1:]:
        net.share_with(nets[0])
    expected = []
    for net in nets:
        net.forward_from_to(0, len(net.layers) - 1)
        expected.append(net.blob_by_name("d").cpu_data.copy())

    def work(i):
        for _ in range(30):
            nets[i].forward_from_to(0, len(nets[i].layers) - 1)
            assert np.abs(nets[i].blob_by_name("d").cpu_data - expected[i]).max() <= 1e-4 * np.abs(expected[i]).max()

    in_threads(work, range(3))
