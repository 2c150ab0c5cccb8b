"""What observes a net for a while leaves nothing in it when the iteration fails: later ones run as if there had been no observer."""

import numpy as np
import pytest

from minicaffe.addons import trace
from minicaffe.addons.export import exporting
from minicaffe.inspection import timing
from minicaffe.layer import Layer, register_layer
from minicaffe.memory import reporter
from minicaffe.net.run import AFTER_FORWARD


class FailingLayer(Layer):
    """Doubles its bottom, or raises in the pass that a test names."""

    exact_num_bottom_blobs = exact_num_top_blobs = 1
    fails = None

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward_cpu(self, bottom, top):
        if self.fails == "forward":
            raise ArithmeticError("forward")
        top[0].data[...] = 2 * bottom[0].cpu_data

    def backward_cpu(self, top, propagate_down, bottom):
        if self.fails == "backward":
            raise ArithmeticError("backward")
        bottom[0].diff[...] = 2 * top[0].cpu_diff


register_layer("FailsWhileObserved", FailingLayer)
NET = """
name: "observed"
layer { name: "in" type: "Input" top: "x" top: "label" input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "own" type: "FailsWhileObserved" bottom: "ip" top: "own" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "own" bottom: "label" top: "loss" }
"""
INPUTS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3) / 6, "label": np.array([0, 3], np.float32)}


def recorded(solver):
    with trace.record(solver):
        solver.step(1)


OBSERVERS = {
    "recorded": (recorded, ["forward", "backward"]), "measured": (lambda solver: timing.measure(solver.net, 1), ["forward", "backward"]),
    "compared": (lambda solver: exporting.run_net(solver.net, INPUTS), ["forward"])}


def make(make_solver, plan):
    solver = make_solver(NET, plan, test_iter=[1], test_interval=1000, test_initialization=False)
    for net in (solver.net, *solver.test_nets):
        net.feed(**INPUTS)
    return solver


@pytest.mark.parametrize("plan", [None, "memory"])
@pytest.mark.parametrize(("name", "fails"), [(name, fails) for name, (_, passes) in OBSERVERS.items() for fails in passes])
def test_an_error_ends_the_observation(on_cpu, make_solver, monkeypatch, plan, name, fails):
    solver, twin = make(make_solver, plan), make(make_solver, plan)
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(ArithmeticError, match=fails):
            patch.setattr(FailingLayer, "fails", fails)
            OBSERVERS[name][0](solver)
    for net in (solver.net, *solver.test_nets):
        assert net.observer_reason() is None
        with pytest.raises(Exception, match="was not added"):
            net.remove_hook(AFTER_FORWARD, print)
    assert not solver.callbacks and not solver.listeners and not reporter.is_recording()
    solver.iter = twin.iter
    solver.step(2)
    twin.step(2)
    for mine, other in zip([*solver.net.learnable_params, *solver.history], [*twin.net.learnable_params, *twin.history], strict=True):
        np.testing.assert_array_equal(mine.data, other.data)
    assert solver.smoothed_loss == twin.smoothed_loss


def test_steps_after_an_error(on_cpu, make_solver, monkeypatch):
    for fails in "forward", "backward":
        solver, other = make(make_solver, None), make(make_solver, None)
        with trace.record(solver) as made:
            with monkeypatch.context() as patch, pytest.raises(ArithmeticError, match=fails):
                patch.setattr(FailingLayer, "fails", fails)
                solver.step(1)
            other.step(1)
            solver.step(1)
        at = next(number for number, step in enumerate(made.steps) if (step["kind"], step["layer"]) == (fails, "own"))
        events = made.events[made.steps[at]["first"]:made.steps[at]["last"]]
        assert events[-1].kind == "end" and sum(event.kind == "begin" for event in events) == 1
        after = [step["layer"] for step in made.steps[at:] if step["kind"] != "between"]
        assert after[1:3] == ["in (another net)", "ip (another net)"] and after[-1] == "update"
    # The update of a rule that raises, which the program catches, has no end: what comes next is of the next iteration.
    solver = make(make_solver, None)
    solver.add_callback(lambda: reporter.event("mark"), lambda: reporter.event("begin", name="no end", detail="update"))
    with trace.record(solver) as made:
        solver.step(3)
    marks = [number for number, event in enumerate(made.events) if event.kind == "mark"]
    where = [next(step for step in made.steps if step["first"] <= number < step["last"]) for number in marks]
    assert [(step["iteration"], step["kind"]) for step in where] == [(0, "between"), (1, "between"), (2, "between")]
