"""Learning-rate policies: from iteration to rate (Caffe sgd_solver.cpp, GetLearningRate; plateau is of the SSD fork).

Different from Caffe: constants are checked when the solver is built, not at the first update. A power that overflows is
infinite, as in C.
"""

import logging
import math

import numpy as np

from minicaffe.errors import ConfigError, close_matches

log = logging.getLogger("minicaffe.solver")


def _pow(base, exponent):
    """``base ** exponent`` of C: overflow gives infinity instead of an exception."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _poly(param, t, current_step):
    """``base_lr (1 - t / max_iter)^power``; ConfigError where a root of a negative number would give nan."""
    left = 1 - t / param.max_iter
    if left < 0 and param.power % 1:  # of inf it is nan, which is true too
        raise ConfigError(f"poly with power {param.power:g} has no rate beyond max_iter {param.max_iter}, got iteration {t}; "
                          "raise max_iter", field="max_iter")
    if left == 0 and param.power < 0:
        return math.copysign(math.inf, param.base_lr)
    return param.base_lr * _pow(left, param.power)


def _step_rate(param, t, current_step):
    """``base_lr gamma^current_step``, for all policies that count steps."""
    return param.base_lr * _pow(param.gamma, current_step)


POLICIES = {  # each: function(param, t, current_step)
    "fixed": lambda param, t, _: param.base_lr,
    "step": _step_rate,       # base_lr gamma^floor(t / stepsize): `current_step` carries the exponent
    "exp": lambda param, t, _: param.base_lr * _pow(param.gamma, t),
    "inv": lambda param, t, _: param.base_lr * _pow(1 + param.gamma * t, -param.power),
    "multistep": _step_rate,  # `current_step` counts the stepvalues that were reached
    "plateau": _step_rate,    # it counts the windows that ended without a lower loss (`update_plateau`)
    "poly": _poly,          # base_lr (1 - t / max_iter)^power
    # base_lr / (1 + exp(-gamma (t - stepsize))); exp overflows beyond 709, where the rate is 0 to all digits anyway
    "sigmoid": lambda param, t, _: param.base_lr / (1 + math.exp(min(700.0, -param.gamma * (t - param.stepsize)))),
}


def check_policy(param):
    """Check lr_policy and its constants. Raises ConfigError with the field."""
    policy = param.lr_policy
    if policy not in POLICIES:
        what = f"unknown learning-rate policy '{policy}'" if policy else "is not set"
        raise ConfigError(f"{what}{close_matches(policy, POLICIES)}; known are {', '.join(POLICIES)}", field="lr_policy")
    if policy in ("step", "sigmoid") and param.stepsize <= 0:
        raise ConfigError(f"policy '{policy}' needs a stepsize of at least 1, got {param.stepsize}", field="stepsize")
    if policy not in ("fixed", "poly") and not param.gamma >= 0:
        raise ConfigError(f"policy '{policy}' needs a gamma of at least 0, got {param.gamma:g}", field="gamma")
    if policy == "plateau" and not (param.plateau_winsize and all(window >= 1 for window in param.plateau_winsize)):
        raise ConfigError("policy 'plateau' needs a plateau_winsize for each time that the rate may fall, all of them at least 1, "
                          f"got {list(param.plateau_winsize)}", field="plateau_winsize")
    if policy == "poly" and param.max_iter <= 0:
        raise ConfigError(f"policy 'poly' needs a max_iter of at least 1, got {param.max_iter}", field="max_iter")


def next_step(param, t, current_step):
    """Return `current_step` as an evaluation of the rate at iteration `t` leaves it (multistep: at most one more)."""
    if param.lr_policy == "step":
        return t // param.stepsize
    if param.lr_policy == "multistep" and current_step < len(param.stepvalue) and t >= param.stepvalue[current_step]:
        return current_step + 1
    return current_step


def update_plateau(solver):
    """Update the state of policy plateau with the loss of the present iteration, the mean of the last `average_loss` losses.

    An event is a loss lower than all before it, or a step down of the rate. When ``plateau_winsize[current_step]`` iterations have
    gone by without one, the rate goes down; after the last window it stays.
    """
    param, t = solver.param, solver.iter
    loss = float(np.float32(solver.smoothed_loss))  # as stored in a snapshot, so that a resumed training does the same
    if loss < solver.minimum_loss:
        solver.minimum_loss, solver.iter_last_event = loss, t
    windows = param.plateau_winsize[solver.current_step:]
    if windows and t >= solver.iter_last_event + windows[0]:
        solver.current_step, solver.iter_last_event = solver.current_step + 1, t
        log.info("Plateau Status: Iteration %d, step = %d", t, solver.current_step)
    if param.display and t % param.display == 0 and solver.iter_last_event > t - param.display:
        log.info("Plateau Status: Iteration %d, current minimum_loss = %g", t, solver.minimum_loss)


def rate(param, t, current_step):
    """Return the learning rate at iteration `t`; `current_step` as `next_step` gave it."""
    return POLICIES[param.lr_policy](param, t, current_step)
