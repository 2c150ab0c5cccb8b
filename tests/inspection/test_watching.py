"""Watch: what it measures is what NumPy finds, and iterations that are not watched run as without it."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import layer_text, net_solver

from minicaffe.common import caffe
from minicaffe.errors import Error
from minicaffe.inspection.watch import Watch, extremes, measure, norm
from minicaffe.net.run import BEFORE_FORWARD

NET = layer_text("DummyData", "in", "", "x y", """dummy_data_param { shape { dim: 8 dim: 6 } shape { dim: 8 dim: 4 }
    data_filler { type: "gaussian" std: 2 } data_filler { type: "constant" } }""") + layer_text(
    "InnerProduct", "ip", "x", more='inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 1 } }') + layer_text(
    "ReLU", "relu", "ip", "ip") + layer_text("Sigmoid", "squash", "ip", "s") + layer_text("EuclideanLoss", "loss", "s y")


def make(net=NET, plan=None, **fields):
    return net_solver(net, plan, base_lr=0.1, random_seed=5, **fields)


@pytest.mark.parametrize("plan", [None, "memory"])
def test_samples_are_what_numpy_says(plan):
    solver = make(plan=plan)
    watch = Watch(solver, 2)
    solver.step(1)
    names = [sample.get("blob") or sample.get("parameter") or sample["diff"] + " diff" for sample in watch.samples]
    samples = {f"{name}:{sample['layer']}": sample for name, sample in zip(names, watch.samples)}
    assert list(samples) == ["x:in", "y:in", "ip:ip", "ip:relu", "s:squash", "loss:loss", "ip diff:ip", "ip diff:relu", "s diff:squash",
                             "ip[0]:ip", "ip[1]:ip"]
    caffe.seed(5)
    net = make().net
    weight = net.param_table.params[0]
    net.clear_param_diffs()
    net.forward_backward()
    norm_of, rectified, s = np.linalg.norm, net.blobs["ip"].data, net.blobs["s"].data
    below = net.blobs["ip"].diff      # ReLU's backward has overwritten what Sigmoid's gave
    found = {(name, field): samples[name][field] for name, field in (
        ("ip:relu", "norm"), ("ip[0]:ip", "norm"), ("ip[0]:ip", "data"), ("ip[0]:ip", "update"), ("s diff:squash", "norm"), ("ip diff:ip", "norm"))}
    assert list(found.values()) == pytest.approx([norm_of(rectified), norm_of(weight.diff), norm_of(weight.data), 0.1 * norm_of(weight.diff),
                                                  norm_of(s) / 8, norm_of(below)], rel=1e-5)      # the target is 0
    assert samples["ip:relu"]["zeros"] == np.mean(rectified == 0) > 0 and samples["ip:ip"]["zeros"] == 0
    assert samples["s:squash"]["saturated"] == np.mean((s < 0.01) | (s > 0.99)) > 0 and samples["ip:relu"]["saturated"] is None
    assert not any("batch" in sample for sample in watch.samples)       # there is one
    assert all(sample["not_finite"] == sample["wrong"] == 0 and sample["first"] is None for sample in watch.samples)
    assert samples["ip diff:ip"]["zeros"] == np.mean(below == 0) > samples["ip diff:relu"]["zeros"] == 0
    assert (samples["s:squash"]["min"], samples["s:squash"]["max"]) == (s.min(), s.max())
    assert samples["ip[0]:ip"]["values"] == {"min": weight.data.min(), "max": weight.data.max(), "wrong": 0, "first": None}


def test_first_wrong_batch():
    solver, batches = make(iter_size=3), []
    watch = Watch(solver, 1)

    def spoil(index):
        if solver.net.nodes[index].name == "relu":
            batches.append(index)
            if len(batches) == 5:
                solver.net.blobs["ip"].data[2, 1] = np.inf

    solver.net.add_hook(BEFORE_FORWARD, spoil)
    for batch in 2, 1:
        solver.step(1)
        assert {sample["batch"] for sample in watch.samples if "parameter" not in sample} == {batch}
    [relu] = [sample for sample in watch.samples if sample["layer"] == "relu" and "blob" in sample]
    assert (relu["wrong"], relu["first"]) == (1, [2, 1])
    assert [sample["diff"] for sample in watch.samples if "diff" in sample] == ["ip", "ip", "s"]       # the batch behind it adds none


@pytest.mark.parametrize("params, names", [
    ('param { name: "w" }', ["ip[0]", "ip[1]", "two[1]"]), ('param { name: "w" } param { lr_mult: 0 }', ["ip[0]", "two[1]"]),
    ('param { name: "w" lr_mult: 0 } param { lr_mult: 0 }', ["two[1]"])])
def test_parameters_without_a_gradient(params, names):
    solver = make(NET.replace('bottom: "x" top: "ip"', f'bottom: "x" top: "ip" {params}') + layer_text(
        "InnerProduct", "two", "x", more='param { name: "w" } inner_product_param { num_output: 4 }') + layer_text("EuclideanLoss", "more", "two y"))
    watch = Watch(solver, 1)
    solver.step(1)
    assert [sample["parameter"] for sample in watch.samples if "parameter" in sample] == names


@pytest.mark.parametrize("arguments, message", [
    ((None, 1), "solver must be a Solver, got None (NoneType)"), ((0,), "every: must be at least 1, got 0"),
    ((-3,), "every: must be at least 1, got -3"), ((1.0,), "every must be a number of iterations, got 1.0 (float)"),
    (("2",), "every must be a number of iterations, got '2' (str)"), ((1, 5), "on_samples must be callable, got 5 (int)")])
def test_wrong_arguments(arguments, message):
    solver = make()
    with pytest.raises(Error) as caught:
        Watch(*arguments) if arguments[0] is None else Watch(solver, *arguments)
    assert str(caught.value).endswith(message)
    assert solver.listeners == solver.callbacks == [] and solver.net.observer_reason() is None


def test_closed_watches():
    solver = make()
    watch = Watch(solver, 1)
    assert solver.net.observer_reason() and solver.callbacks and solver.listeners == [watch]
    watch.close()
    assert solver.net.observer_reason() is None and solver.callbacks == solver.listeners == []
    solver.step(1)
    assert watch.samples == watch.records == []
    heard = []
    watch = Watch(solver, 1, lambda *_: watch.close())
    solver.listeners.append(SimpleNamespace(on_iteration=lambda solver: heard.append(solver.iter)))
    solver.step(2)
    assert heard == [2, 3] and solver.callbacks == [] and solver.net.observer_reason() is None


def test_gradients_of_tops():
    solver = make(NET.replace('bottom: "s" bottom: "y"', 'bottom: "s" bottom: "ip"') + layer_text("Silence", "seen", "y", "") + layer_text(
        "TanH", "aside", "ip", "t"))
    watch = Watch(solver, 1)
    solver.step(1)
    diffs = {(sample["layer"], sample["diff"]): sample["norm"] for sample in watch.samples if "diff" in sample}
    assert list(diffs) == [("ip", "ip"), ("relu", "ip"), ("squash", "s")]
    tops = [(sample["layer"], sample["blob"]) for sample in watch.samples if "blob" in sample]      # a Split computes nothing
    assert tops == [("in", "x"), ("in", "y"), ("ip", "ip"), ("relu", "ip"), ("squash", "s"), ("loss", "loss"), ("aside", "t")]
    s, ip = solver.net.blobs["s"].data, solver.net.blobs["ip"].data
    assert diffs["relu", "ip"] == pytest.approx(np.linalg.norm((s - ip) / 8 * (s * (1 - s) - 1)), rel=1e-5)


def test_watched_iterations(device):
    solvers, iterations, seen = [make(plan="memory") for _ in range(2)], [], []
    watch = Watch(solvers[0], 3, lambda solver, iteration, samples: iterations.append(iteration))
    solvers[0].listeners.append(SimpleNamespace(on_iteration=lambda solver: seen.append(solver.net.observer_reason() is None)))
    for solver in solvers:
        caffe.seed(5)
        solver.step(7)
    assert iterations == [0, 3, 6] == [iteration for iteration, _ in watch.records]
    assert seen == [True, True, False, True, True, False, True]     # after iterations 2 and 5 the next one is watched
    for mine, theirs in zip(*(solver.net.param_table.params for solver in solvers), strict=True):
        np.testing.assert_array_equal(mine.data, theirs.data)
    watch.close()
    watch.close()
    solvers[0].step(3)
    assert iterations == [0, 3, 6] and solvers[0].callbacks == []


def test_values_that_are_not_finite():
    found = measure(np.float32([[3, np.nan], [np.inf, 4], [0, 0]]))
    assert found == {"norm": 5.0, "zeros": 2 / 6, "saturated": None, "not_finite": 2 / 6, "min": 0.0, "max": 4.0, "wrong": 2,
                     "first": [0, 1]}
    assert extremes(np.float32([np.nan])) == {"min": None, "max": None, "wrong": 1, "first": [0]}
    assert extremes(np.zeros((2, 0))) == {"min": None, "max": None, "wrong": 0, "first": None}
    assert norm(np.float32([1e30, 1e30])) == pytest.approx(np.sqrt(2) * 1e30)     # whose square is no float32
    assert measure(np.zeros((0, 3)))["norm"] == 0
    assert measure(np.float64([-1, 0.5, 0.995]), "TanH")["saturated"] == pytest.approx(2 / 3)


def test_norm_of_large_values():
    """It goes into JSON, which has no infinity."""
    for dtype, value in ("f4", 1e30), ("f8", 1e200), ("f8", 1.5e308):
        with np.errstate(all="raise"):
            assert norm(np.array([value, -value, np.nan, np.inf, 0], dtype)) == pytest.approx(min(value * 2 ** 0.5, np.finfo(float).max), rel=1e-6)
    assert norm(np.zeros(3)) == 0
