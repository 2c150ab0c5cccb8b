"""Learning-rate policies against their formulas, the multistep counter, and the checks at construction."""

import math
from types import SimpleNamespace

import pytest
from bowl import make_solver, solver_param

from minicaffe.errors import ConfigError
from minicaffe.solver.policy import POLICIES, rate

FORMULAS = {
    "fixed": ("", lambda t: 0.5),
    "step": ("gamma: 0.5 stepsize: 10", lambda t: 0.5 * 0.5 ** (t // 10)),
    "exp": ("gamma: 0.75", lambda t: 0.5 * 0.75**t),
    "inv": ("gamma: 0.25 power: 0.75", lambda t: 0.5 * (1 + 0.25 * t) ** -0.75),
    "multistep": ("gamma: 0.5 stepvalue: 10 stepvalue: 15", lambda t: 0.5 * 0.5 ** ((t >= 10) + (t >= 15))),
    "plateau": ("gamma: 0.5 plateau_winsize: 100", lambda t: 0.5),
    "poly": ("power: 1.5 max_iter: 100", lambda t: 0.5 * (1 - t / 100) ** 1.5),
    "sigmoid": ("gamma: 0.25 stepsize: 20", lambda t: 0.5 / (1 + math.exp(-0.25 * (t - 20)))),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_formula(policy):
    fields, formula = FORMULAS[policy]
    solver = make_solver(f"lr_policy: '{policy}' base_lr: 0.5 {fields}")
    for t in range(40):
        assert solver.iter == t and solver.learning_rate() == pytest.approx(formula(t), rel=1e-12)
        solver.step(1)


def test_rates_of_edge_cases():
    def of(policy, iteration, fields):
        return rate(solver_param(f"lr_policy: '{policy}' base_lr: 1 {fields}"), iteration, 0)

    assert of("sigmoid", 5004, "gamma: 0.25 stepsize: 5000") == pytest.approx(1 / (1 + math.exp(-1)))
    assert of("sigmoid", 0, "gamma: 0.25 stepsize: 5000") == pytest.approx(0, abs=1e-300)
    assert of("exp", 10**6, "gamma: 10") == of("poly", 10, "power: -1 max_iter: 10") == math.inf
    assert of("poly", 10, "power: 1 max_iter: 10") == of("poly", 10, "power: 0.5 max_iter: 10") == 0
    assert of("poly", 11, "power: 1 max_iter: 10") == pytest.approx(-0.1)  # as in Caffe
    with pytest.raises(ConfigError, match="max_iter"):
        of("poly", 11, "power: 0.5 max_iter: 10")
    assert [make_solver(f"lr_policy: '{policy}' gamma: 0 base_lr: 0.5 stepvalue: 1").learning_rate() for policy in ("exp", "inv", "multistep")] == [0.5] * 3


def test_current_step_of_policies(caplog):
    solver, other = make_solver("lr_policy: 'multistep' gamma: 0.5 base_lr: 1 stepvalue: 2 stepvalue: 2"), make_solver("lr_policy: 'step' gamma: 0.1 stepsize: 4")
    solver.step(2), other.step(9)
    with caplog.at_level("INFO", "minicaffe.solver"):
        assert [solver.learning_rate() for _ in range(3)] == [0.5, 0.25, 0.25]
    assert "MultiStep Status: Iteration 2, step = 1" in caplog.messages and other.current_step == 2


def test_plateau_falls_after_window(caplog):
    """By hand: an event is a lower loss or a fall; windows of 3 and 2 iterations are counted from the last one."""
    losses = [5, 4, 4, 4, 4, 3, 3, 3, 2, 2, 9, 1, 9, 9, 9, 9]
    falls = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    events = [0, 1, 1, 1, 4, 5, 5, 7, 8, 8, 8, 11, 11, 11, 11, 11]
    solver = make_solver("lr_policy: 'plateau' base_lr: 1 gamma: 0.5 plateau_winsize: 3 plateau_winsize: 2 display: 2")
    coming = iter(losses)
    solver.gradients = lambda: next(coming)
    seen, rates = [], []
    solver.listeners.append(SimpleNamespace(
        on_iteration=lambda s: seen.append((s.current_step, s.iter_last_event, s.minimum_loss)),
        on_display=lambda s, record: rates.append(record["lr"])))
    with caplog.at_level("INFO", "minicaffe.solver"):
        solver.step(len(losses))
    assert seen == list(zip(falls, events, [min(losses[:t + 1]) for t in range(len(losses))], strict=True))
    assert rates == [0.5 ** fall for fall in falls[::2]]
    assert [line for line in caplog.messages if "Plateau" in line and "step" in line] == [
        "Plateau Status: Iteration 4, step = 1", "Plateau Status: Iteration 7, step = 2"]
    assert "Plateau Status: Iteration 8, current minimum_loss = 2" in caplog.messages
    assert not any("Iteration 10, current" in line for line in caplog.messages)


def test_plateau_mean_loss_and_reading():
    solver = make_solver("lr_policy: 'plateau' gamma: 0.5 plateau_winsize: 9 average_loss: 2")
    coming = iter([4.0, 2.0, 8.0])
    solver.gradients = lambda: next(coming)
    solver.step(3)
    assert (solver.minimum_loss, solver.iter_last_event) == (3.0, 1)
    solver = make_solver("lr_policy: 'plateau' base_lr: 1 gamma: 0.5 plateau_winsize: 1")
    assert [solver.learning_rate() for _ in range(3)] == [1, 1, 1]
    assert solver.current_step == 0 and solver.minimum_loss == math.inf


def test_checked_when_the_solver_is_built():
    for named, cases in {
            "lr_policy": ["'wobbly'", "''"], "stepsize": ["'step' gamma: 0.1", "'sigmoid' gamma: 1"], "max_iter": ["'poly' power: 1"],
            "gamma": ["'step' gamma: -0.1 stepsize: 3", "'exp' gamma: -1", "'inv' gamma: -1", "'multistep' gamma: -1", "'plateau' gamma: -0.5 plateau_winsize: 3"],
            "plateau_winsize": ["'plateau' gamma: 0.5", "'plateau' gamma: 0.5 plateau_winsize: 3 plateau_winsize: 0"]}.items():
        for fields in cases:
            with pytest.raises(ConfigError) as error:
                make_solver(f"lr_policy: {fields}")
            assert error.value.field == named
    with pytest.raises(ConfigError, match="'multstep'; did you mean 'multistep'"):
        make_solver("lr_policy: 'multstep'")
