"""Training on parameters, gradients and history in oneDNN's layouts: the numbers of engine CAFFE, and no reorders for them."""

import numpy as np
import pytest
from helpers import in_threads, layer_text, make_net, net_solver

from minicaffe import memory


# Channels that fill blocks, that are padded, groups, 1x1, and weights that are used twice.
def conv(name, bottom, top, fields, more=""):
    return layer_text("Convolution", name, bottom, top, f'{more} convolution_param {{ {fields} weight_filler {{ type: "xavier" }} }}')


SHARED = "num_output: 32 kernel_size: 3 pad: 1 group: 2 bias_term: false", 'param { name: "w" }'
LAYERS = (conv("conv1", "x", "a", "num_output: 32 kernel_size: 3 pad: 1") + layer_text("ReLU", "relu", "a", "a") + conv("conv2", "a", "b", *SHARED)
          + conv("conv3", "b", "c", *SHARED) + conv("conv4", "c", "d", "num_output: 24 kernel_size: 1") + layer_text("EuclideanLoss", "loss", "d t"))
RULES = {
    "SGD": {"momentum": 0.9, "base_lr": 1e-4},
    "Nesterov": {"momentum": 0.9, "base_lr": 1e-4},
    "AdaGrad": {"momentum": 0, "delta": 1e-3, "base_lr": 0.01},
    "RMSProp": {"momentum": 0, "rms_decay": 0.9, "delta": 1e-3, "base_lr": 0.01},
    "AdaDelta": {"momentum": 0.95, "delta": 1e-4, "base_lr": 1},
    "Adam": {"momentum": 0.9, "momentum2": 0.99, "delta": 1e-3, "base_lr": 0.01},
}
EXTRAS = [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "regularization_type": "L1"}, {"iter_size": 2}, {"clip_gradients": 0.5},
          {"debug_info": True, "display": 1}]
TOLERANCE = 1e-3    # of the largest value, after three updates


def text_of(images):
    return "".join(layer_text("Input", name, more=f"input_param {{ shape {{ dim: [{images}, {channels}, 8, 8] }} }}")
                   for name, channels in (("x", 20), ("t", 24))) + LAYERS


def make(rule, images=2, **extra):
    solver = net_solver(text_of(images), type=rule, random_seed=3, **RULES[rule], **extra)
    fill(solver.net)
    return solver


def fill(net):
    random = np.random.default_rng(net.blob_by_name("x").shape[0])
    for name in ("x", "t"):
        blob = net.blob_by_name(name)
        blob.data[...] = random.standard_normal(blob.shape)


def values_of(blobs):
    return [blob.cpu_data.copy() for blob in blobs]


def assert_near(ours, others, tolerance=TOLERANCE):
    for mine, other in zip(ours, others, strict=True):
        assert np.abs(mine - other).max() <= tolerance * np.abs(other).max() > 0


@pytest.mark.no_plan("looks at gradients after the update")
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("rule", RULES)
def test_rules(onednn, rule, extra):
    found = []
    for use in (True, False):
        onednn(use)
        solver = make(rule, **extra)
        solver.step(3)
        params = solver.net.learnable_params
        for blob, history in zip(params, solver.history) if use else ():
            layouts = {blob.layout_of_data(), blob.layout_of_diff(), history.layout_of_data()}
            assert blob.num_axes != 4 or len(layouts) == 1 and None not in layouts
        found.append(values_of([*params, *solver.history]))
    assert_near(*found)


def test_parameters_stay_in_their_layouts(onednn):
    solver = make("Adam", clip_gradients=0.5, weight_decay=0.1)
    solver.step(2)
    with memory.record() as events:
        solver.step(2)
    blobs = solver.net.learnable_params + solver.history
    names = {blob.data_memory.name for blob in blobs} | {blob.diff_memory.name for blob in blobs}
    assert [event.name for event in events if event.kind == "reorder" and event.name in names] == []
    # 0 / 0 in the padding of conv1's 20 channels; elsewhere every gradient is other than 0.
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
        solver, other, test = make("SGD"), make("SGD"), make_net(text_of(5))
        solver.param.snapshot_prefix = str(tmp_path / str(use))
        params = solver.net.learnable_params
        view = params[0].data
        solver.step(1)
        assert np.array_equal(view, params[0].cpu_data)
        del view
        params[1].data[...] *= 2
        solver.history[0].data[...] *= 0.5
        solver.step(1)
        _, state = solver.snapshot()
        solver.step(1)
        ends.append(values_of(params))
        other.restore(state)
        other.step(1)
        for found, expected in zip(values_of(other.net.learnable_params), ends[-1], strict=True):
            assert np.array_equal(found, expected)
        test.share_with(solver.net)
        fill(test)
        for net in (test, solver.net):
            net.forward_from_to(0, len(net.layers) - 1)
            ends[-1] += values_of([net.blob_by_name("d")])
    assert_near(*ends)


def test_gradients_added_until_cleared(onednn):
    net, sums = make("SGD").net, []
    for clears in (False, False, True, True):
        if clears:
            net.clear_param_diffs()
            assert not any(blob.cpu_diff.any() for blob in net.learnable_params)
        net.forward_backward()
        sums.append([blob.cpu_diff.copy() for blob in net.learnable_params])
    once, twice, *others = sums
    for other in (*others, [values / 2 for values in twice]):
        assert_near(other, once)


def test_threads_with_nets_that_share_weights(onednn):
    """Batches of other sizes may want the weights in other layouts, of which each thread has its own turn."""
    nets = [make("SGD", images=images).net for images in (1, 2, 7)]
    for net in nets[1:]:
        net.share_with(nets[0])
    def work(i, times=30):
        found = []
        for _ in range(times):
            nets[i].forward_from_to(0, len(nets[i].layers) - 1)
            found += values_of([nets[i].blob_by_name("d")])
            assert_near(found[-1:], found[:1] if times == 1 else expected[i], 1e-4)
        return found
    expected = [work(i, 1) for i in range(3)]
    in_threads(work, range(3))
