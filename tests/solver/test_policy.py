"""Learning-rate policies against their formulas, the multistep counter, and the checks at construction."""

import math

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
    "poly": ("power: 1.5 max_iter: 100", lambda t: 0.5 * (1 - t / 100) ** 1.5),
    "sigmoid": ("gamma: -0 stepsize: 20", lambda t: 0.25),
}


def test_every_policy_is_tested():
    assert FORMULAS.keys() == POLICIES.keys()


@pytest.mark.parametrize("policy", FORMULAS)
def test_formula(policy):
    fields, formula = FORMULAS[policy]
    solver = make_solver(f"lr_policy: '{policy}' base_lr: 0.5 {fields}")
    for t in range(40):
        assert solver.iter == t
        assert solver.learning_rate() == pytest.approx(formula(t), rel=1e-12)
        solver.step(1)


def test_sigmoid_falls_and_never_overflows():
    param = solver_param("lr_policy: 'sigmoid' base_lr: 1 gamma: 0.25 stepsize: 5000")
    assert rate(param, 5004, 0) == pytest.approx(1 / (1 + math.exp(-1)))
    assert rate(param, 0, 0) == pytest.approx(0, abs=1e-300)


def test_overflow_is_infinite_as_in_c():
    assert rate(solver_param("lr_policy: 'exp' base_lr: 1 gamma: 10"), 10**6, 0) == math.inf


def test_step_sets_current_step():
    solver = make_solver("lr_policy: 'step' gamma: 0.1 stepsize: 4")
    solver.step(9)
    assert solver.current_step == 2


def test_multistep_takes_one_step_an_evaluation(caplog):
    solver = make_solver("lr_policy: 'multistep' gamma: 0.5 base_lr: 1 stepvalue: 2 stepvalue: 2")
    solver.step(2)
    with caplog.at_level("INFO", "minicaffe.solver"):
        assert [solver.learning_rate() for _ in range(3)] == [0.5, 0.25, 0.25]
    assert "MultiStep Status: Iteration 2, step = 1" in caplog.messages


def test_poly_beyond_its_end():
    param = solver_param("lr_policy: 'poly' base_lr: 1 power: 1 max_iter: 10")
    assert rate(param, 10, 0) == 0
    assert rate(param, 11, 0) == pytest.approx(-0.1)  # as in Caffe
    param.power = 0.5
    with pytest.raises(ConfigError, match="max_iter"):
        rate(param, 11, 0)
    param.power = -1
    assert rate(param, 10, 0) == math.inf


@pytest.mark.parametrize(("fields", "named"), [
    ("lr_policy: 'wobbly'", "lr_policy"),
    ("lr_policy: ''", "lr_policy"),
    ("lr_policy: 'step' gamma: 0.1", "stepsize"),
    ("lr_policy: 'step' gamma: -0.1 stepsize: 3", "gamma"),
    ("lr_policy: 'exp' gamma: -1", "gamma"),
    ("lr_policy: 'inv' gamma: -1", "gamma"),
    ("lr_policy: 'multistep' gamma: -1", "gamma"),
    ("lr_policy: 'sigmoid' gamma: 1", "stepsize"),
    ("lr_policy: 'poly' power: 1", "max_iter"),
])
def test_checked_when_the_solver_is_built(fields, named):
    with pytest.raises(ConfigError) as error:
        make_solver(fields)
    assert error.value.field == named


def test_unknown_policy_names_itself_and_its_neighbours():
    with pytest.raises(ConfigError, match="'multstep'; did you mean 'multistep'"):
        make_solver("lr_policy: 'multstep'")
