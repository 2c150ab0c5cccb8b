"""The first gradient of an iteration overwrites zeros that were not written; later ones are added to it.

Between iterations the gradients are filled with NaN, which would stay wherever something is added that should be overwritten.
"""

import numpy as np
import pytest
from helpers import layer_text
from training import NET, gradients, iteration, losses, make_net, make_solver, recorded_launches

import minicaffe
from minicaffe.memory import SyncedHead


def poison(net):
    for blob in net.learnable_params:
        blob.fill_diff(np.nan)


def zeroed(work):
    """The names of the gradients that `work` fills with zeros by launches."""
    with recorded_launches() as events:
        work()
    fills = [event.detail for event in events if event.kind == "launch" and event.name.startswith("ZeroAll")]
    assert any(event.kind == "launch" for event in events)
    return [part.split(" diff")[0] for detail in fills for part in detail.split("; ")[1:]]


def check_same(net, want):
    for again, first in zip(gradients(net), want, strict=True):
        np.testing.assert_array_equal(again, first)


def test_first_overwritten_next_added():
    """Also where the host's copy of a gradient is the valid one: its values do not return."""
    net = make_net()
    iteration(net)
    want = gradients(net)
    minicaffe.set_mode_cpu()
    host = make_net()
    iteration(host)
    for ours, theirs in zip(want, gradients(host)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    assert sum(np.abs(gradient).max() > 0 for gradient in want) == len(want) - 4    # BatchNorm's sums, and the fixed weights
    minicaffe.set_mode_gpu()
    for _ in range(3):
        poison(net)
        iteration(net)
        check_same(net, want)
    net.forward_backward()
    for twice, first in zip(gradients(net), want):
        np.testing.assert_allclose(twice, 2 * first, rtol=1e-5, atol=1e-7)
    held = [blob.diff for blob in net.learnable_params]
    for view in held:
        view[...] = 7
    iteration(net)
    check_same(net, want)


def test_zero_fill_of_added_gradients():
    net = make_net()
    iteration(net)
    for _ in range(2):
        assert zeroed(lambda: iteration(net)) == ["embed[0]", "embed[1]"]
    gradients(net)  # now the others have values, too
    assert zeroed(lambda: iteration(net)) == ["norm[0]", "norm[1]", "norm[2]", "embed[0]", "embed[1]", "fixed[0]"]
    net.clear_param_diffs()
    assert not any(gradient.any() for gradient in gradients(net))     # zeros for a reader
    assert "conv[0]" in zeroed(lambda: iteration(net))      # which nothing overwrote since they were cleared
    solver = make_solver(NET)
    solver.use_graphs = False
    solver.step(1)
    assert zeroed(lambda: solver.step(1)) == []


def test_no_images():
    """Nothing is computed, and the gradients are zeros."""
    net = make_net()
    iteration(net)
    for name in "x", "words", "label":
        net.blob_by_name(name).reshape((0, *net.blob_by_name(name).shape[1:]))
    net.reshape_all()
    for _ in range(2):
        iteration(net)
        assert not any(gradient.any() for gradient in gradients(net))


def test_device_view_sees_zeros():
    net = make_net()
    iteration(net)
    blob = net.learnable_params[0]
    view = blob.mutable_gpu_diff
    assert np.array(blob.cpu_diff).any()
    assert "conv[0]" in zeroed(net.clear_param_diffs)
    assert blob.diff_memory.head == SyncedHead.HEAD_AT_GPU
    del view
    iteration(net)
    net.clear_param_diffs()
    assert blob.diff_memory.head == SyncedHead.UNINITIALIZED


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("fields", [{}, {"iter_size": 2}, {"type": "Adam"}], ids=["sgd", "iter_size", "adam"])
def test_trainings(graphs, fields):
    """By single launches and by replays, with what an iteration left replaced by NaN: the losses of the CPU."""
    found = []
    for mode in minicaffe.set_mode_gpu, minicaffe.set_mode_cpu:
        mode()
        solver = make_solver(NET, **fields)
        solver.use_graphs = graphs
        found.append([])
        for _ in range(6):
            found[-1] += losses(solver, 1)
            poison(solver.net)
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-5)


def solver_of_parameters(count):
    """A solver whose net has `count` parameters of some sizes, one of more than a block of either launch takes."""
    sizes = [1 + 7 * i % 40 for i in range(count)]
    sizes[-1] = 9000
    net = "".join(layer_text("Parameter", f"p{i}", more=f"parameter_param {{ shape {{ dim: {size} }} }}")
                  + layer_text("Reduction", f"r{i}", f"p{i}", more="loss_weight: 1 reduction_param { operation: SUMSQ }") for i, size in enumerate(sizes))
    solver = make_solver(net, base_lr=0.1)
    for i, param in enumerate(solver.net.learnable_params):
        param.data[...] = np.arange(param.count) % 5 + i % 11
    return solver


@pytest.mark.parametrize("count", [48, 49, 192, 193])
def test_limits_of_a_launch(count):
    """48 parameters are updated by one launch, and 192 gradients filled by one: each of them, and of those of the next launch."""
    found = []
    for mode in minicaffe.set_mode_cpu, minicaffe.set_mode_gpu:
        mode()
        solver = solver_of_parameters(count)
        solver.step(2)
        found.append([param.cpu_data.copy() for param in solver.net.learnable_params])
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
    views = []      # which make the fill happen at once
    for param in solver.net.learnable_params:
        param.diff[...] = 3
        param.scale_diff(1)
        views.append(param.mutable_gpu_diff)
    assert len(zeroed(solver.net.clear_param_diffs)) == count
    assert not any(param.cpu_diff.any() for param in solver.net.learnable_params)
