"""The first gradient of an iteration overwrites zeros that were not written; later ones are added to it.

Between iterations the gradients are filled with NaN, which would stay wherever something is added that should be overwritten.
"""


import numpy as np
import pytest
from processes import run_gpu
from training import NET, gradients, iteration, losses, make_net, make_solver

import minicaffe
from minicaffe import cuda, memory
from minicaffe.memory import SyncedHead, SyncedMemory
from minicaffe.memory.zeros import claim_lazy_zeros, mark_zero
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import parse_text
from minicaffe.solver import create_solver


def poison(net):
    for blob in net.learnable_params:
        blob.fill_diff(np.nan)


def zeroed(work):
    """The names of the gradients that `work` fills with zeros by launches."""
    cuda.current().record_launches(True)
    with memory.record() as events:
        work()
    cuda.current().record_launches(False)
    fills = [event.detail for event in events if event.kind == "launch" and event.name.startswith("ZeroAll")]
    assert any(event.kind == "launch" for event in events)
    return [part.split(" diff")[0] for detail in fills for part in detail.split("; ")[1:]]


def test_first_overwritten_next_added():
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
        for again, first in zip(gradients(net), want):
            np.testing.assert_array_equal(again, first)
    net.forward_backward()
    for twice, first in zip(gradients(net), want):
        np.testing.assert_allclose(twice, 2 * first, rtol=1e-5, atol=1e-7)


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


def test_written_gradients_do_not_stay():
    """In the host's copy, which is the valid one then; nor does its device copy return."""
    net = make_net()
    iteration(net)
    want = gradients(net)
    held = [blob.diff for blob in net.learnable_params]
    for view in held:
        view[...] = 7
    iteration(net)
    for again, first in zip(gradients(net), want):
        np.testing.assert_array_equal(again, first)


def test_states():
    mem = SyncedMemory(64)
    assert claim_lazy_zeros(mem, True) and mem.head == SyncedHead.HEAD_AT_GPU
    assert not claim_lazy_zeros(mem, True)    # something to add to
    assert not mark_zero(mem, 60, True)          # a part
    assert not mark_zero(mem, 64, True)          # and nothing was overwritten since
    assert not claim_lazy_zeros(mem, True)
    for data in mem.gpu_data, mem.cpu_data, mem.mutable_cpu_data:
        data()
        assert mark_zero(mem, 64, True) and mem.head == SyncedHead.UNINITIALIZED
        assert mark_zero(mem, 64, True) and claim_lazy_zeros(mem, True)
    mark_zero(mem, 64, True)
    assert not np.frombuffer(mem.cpu_data(), np.uint8).any()


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


@pytest.mark.parametrize("checks", ["uninitialized=1,race=1", "deferred=1"])
def test_under_the_checks(place, checks):
    if place != "sim":
        pytest.skip("checks of the simulated device")
    run_gpu("""
    from training import gradients, iteration, make_net
    net = make_net()
    for _ in range(3):
        iteration(net)
        assert all(np.isfinite(gradient).all() for gradient in gradients(net))
    net.forward_backward()
    gradients(net)
    """, "sim", checks)


@pytest.mark.slow(4)
def test_more_parameters_than_a_launch_takes():
    """48 are updated by one launch, 192 gradients filled by one (minicaffe/ops/update): here 200 parameters, whose gradients are added to."""
    layers = "".join(f"""
        layer {{ name: "e{i}" type: "Embed" bottom: "words" top: "e{i}"
          embed_param {{ input_dim: 3 num_output: 2 bias_term: false
                         weight_filler {{ type: "uniform" min: -1 }} }} }}"""
                     for i in range(200))
    net = f"""
        layer {{ name: "words" type: "DummyData" top: "words" dummy_data_param {{ shape {{ dim: 4 }} data_filler {{ value: 2 }} }} }}
        {layers}
        layer {{ name: "sum" type: "Eltwise" {" ".join(f'bottom: "e{i}"' for i in range(200))} top: "sum" }}
        layer {{ name: "loss" type: "Reduction" bottom: "sum" top: "loss" loss_weight: 1 reduction_param {{ operation: SUMSQ }} }}"""
    text = f"base_lr: 1e-4 momentum: 0.9 lr_policy: 'fixed' random_seed: 5 net_param {{ {net} }}"
    found = []
    for mode in (minicaffe.set_mode_cpu, minicaffe.set_mode_gpu):
        mode()
        solver = create_solver(parse_text(text, caffe_pb2.SolverParameter, "solver.prototxt", keep_layer_fields=True)[0])
        before = [blob.cpu_data.copy() for blob in solver.net.learnable_params]
        solver.step(2)
        found.append([blob.cpu_data.copy() for blob in solver.net.learnable_params])
        assert len(before) == 200
        gradients_of = []
        for _ in range(3):
            solver.net.clear_param_diffs()
            solver.net.forward_backward()
            gradients_of.append(gradients(solver.net))
        for first, *others in zip(*gradients_of, strict=True):
            assert first.any() and all(np.array_equal(first, other) for other in others)
        assert all((a[2] != b[2]).all() for a, b in zip(before, found[-1], strict=True))
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
