"""The solver types: learning rate, clipping, and one update rule each (Caffe sgd_solver.cpp, adam_solver.cpp and so on).

`formula` of each type is its rule in NumPy, for reading. A training computes the same by the functors of ops/update/kernel.hpp, in
one pass over the memory of each parameter; tests/solver/test_rules.py compares both. All types derive from SGD, as in Caffe.
"""

import logging
import math

import numpy as np

from minicaffe.errors import ConfigError, Error
from minicaffe.solver import policy
from minicaffe.solver.solver import Solver
from minicaffe.solver.update import Rule, update_params

log = logging.getLogger("minicaffe.solver")


class SGDSolver(Solver):
    """Gradient descent with momentum; the base class of the other types."""

    rule = Rule.SGD
    histories = 1
    use_graphs = True  # on a GPU, replay the iteration as one CUDA graph where that can be (solver/step.py)

    def formula(self, g, history, rate):
        """Return the step that is subtracted from a parameter, and renew its `history`.

        Parameters
        ----------
        g : ndarray of any shape
            The gradient, times 1 / (iter_size x ranks) and the factor of `clip_gradients`, plus the weight decay.
        history : list of ndarray of the same shape
            The `histories` arrays of the parameter, zeros at first.
        rate : float
            As `constants` gives it, times the parameter's `lr_mult`.
        """
        v, = history
        v[...] = self.param.momentum * v + rate * g
        return v

    def learning_rate(self):
        """Return the rate of the current iteration; with the policies step and multistep this updates `current_step`."""
        step = policy.next_step(self.param, self.iter, self.current_step)
        if step != self.current_step:
            self.current_step = step
            if self.param.lr_policy == "multistep":
                log.info("MultiStep Status: Iteration %d, step = %d", self.iter, step)
        return policy.rate(self.param, self.iter, step) * self.rate_factor()

    def constants(self, rate):
        """Return the update rule's rate, momentum (or decay), momentum2 and delta (ops/update); `rate` is the learning rate."""
        return rate, self.param.momentum, 0.0, 0.0

    def apply_update(self):
        """Update every learnable parameter from its diff, count the iteration, and return the learning rate.

        Each diff holds afterwards what was subtracted from the data, unless it was recycled by a plan.

        Raises
        ------
        Error
            If this process trains together with others, and the gradients are not those of all of them.
        """
        if self.exchange is not None and not self.training_step.has_global_gradients:
            raise Error(f"apply_update() on {self.group.name()} needs the gradients of all ranks, and these are its own; call "
                        "gradients() before it, or step(1) in place of both")
        if self.param.lr_policy == "plateau":
            policy.update_plateau(self)
        return self.training_step.update(self)

    def update(self, rate, which=None, part=None):
        """Update the learnable parameters with `rate`, as `constants` gives it.

        `which` has the numbers of those that are updated (None: all); of a single one `part` may select elements (`update_params`).
        """
        param, net, scale = self.param, self.net, self._gradient_scale()
        _, momentum, momentum2, delta = self.constants(rate)
        count = len(net.learnable_params)
        which = range(count) if which is None else which
        update_params(self.rule, [net.learnable_params[i] for i in which],
                      [self.history[n * count + i] for n in range(self.histories) for i in which],
                      [net.params_lr[i] for i in which], [net.params_weight_decay[i] for i in which], rate, scale,
                      param.weight_decay, param.regularization_type == "L1", momentum, momentum2, delta, part)

    @property
    def replaces_step(self):
        """bool: whether a class or object has its own `gradients`, `apply_update` or `update`, which work with all gradients."""
        kind = type(self)
        return ((kind.gradients, kind.apply_update, kind.update) != (SGDSolver.gradients, SGDSolver.apply_update, SGDSolver.update)
                or not vars(self).keys().isdisjoint(("gradients", "apply_update")))

    def _gradient_scale(self):
        """Return the factor of the gradients: 1 / (batches x ranks), times that of `clip_gradients`."""
        scale = 1 / (self.param.iter_size * self.group.size)
        if self.param.clip_gradients >= 0:
            scale *= self._clip_factor(self.param.clip_gradients * self.group.size)
        return scale

    def _clip_factor(self, limit):
        """Return the factor that limits the L2 norm of all gradients to `limit`; 1 if it is smaller."""
        # All ranks use the norm of rank 0, as the others may round in another way.
        norm = self.group.broadcast_from_root(math.sqrt(sum(blob.sumsq_diff() for blob in self.net.learnable_params)))
        if not norm > limit:
            return 1.0
        factor = limit / norm
        log.info("Gradient clipping: scaling down gradients (L2 norm %g > %g) by scale factor %g", norm, limit, factor)
        return factor


class NesterovSolver(SGDSolver):
    """Momentum with the gradient of the next position (Nesterov)."""

    rule = Rule.NESTEROV

    def formula(self, g, history, rate):
        v, momentum = history[0], self.param.momentum
        old = v.copy()
        v[...] = momentum * old + rate * g
        return (1 + momentum) * v - momentum * old


class AdaGradSolver(SGDSolver):
    """Rates that fall with the sum of squared gradients."""

    rule = Rule.ADAGRAD

    def check_param(self):
        super().check_param()
        if self.param.momentum:
            name = type(self).__name__.removesuffix("Solver")
            raise ConfigError(f"{name} has no momentum, got {self.param.momentum:g}; leave it out", field="momentum")

    def constants(self, rate):
        return rate, 0.0, 0.0, self.param.delta

    def formula(self, g, history, rate):
        v, = history
        v += g**2
        return rate * g / (np.sqrt(v) + self.param.delta)


class RMSPropSolver(AdaGradSolver):
    """Rates that fall with the running mean of squared gradients."""

    rule = Rule.RMSPROP

    def check_param(self):
        super().check_param()
        if not 0 <= self.param.rms_decay < 1:
            raise ConfigError(f"must be at least 0 and less than 1, got {self.param.rms_decay:g}", field="rms_decay")

    def constants(self, rate):
        return rate, self.param.rms_decay, 0.0, self.param.delta

    def formula(self, g, history, rate):
        v, decay = history[0], self.param.rms_decay
        v[...] = decay * v + (1 - decay) * g**2
        return rate * g / (np.sqrt(v) + self.param.delta)


class AdaDeltaSolver(SGDSolver):
    """Steps in the ratio of past steps to past gradients; `momentum` is the decay of both means."""

    rule = Rule.ADADELTA
    histories = 2

    def constants(self, rate):
        return rate, self.param.momentum, 0.0, self.param.delta

    def formula(self, g, history, rate):
        v, steps = history
        decay, delta = self.param.momentum, self.param.delta
        v[...] = decay * v + (1 - decay) * g**2
        step = g * np.sqrt((steps + delta) / (v + delta))
        steps[...] = decay * steps + (1 - decay) * step**2
        return rate * step


class AdamSolver(SGDSolver):
    """Means of gradient (`momentum`) and squared gradient (`momentum2`) with bias correction."""

    rule = Rule.ADAM
    histories = 2

    def check_param(self):
        super().check_param()
        for field in ("momentum", "momentum2"):  # at 1 the bias correction would divide by 0 or make every step 0
            value = getattr(self.param, field)
            if not 0 <= value < 1:
                raise ConfigError(f"must be at least 0 and less than 1 for Adam, got {value:g}", field=field)

    def constants(self, rate):
        beta1, beta2, t = self.param.momentum, self.param.momentum2, self.iter + 1
        return rate * math.sqrt(1 - beta2**t) / (1 - beta1**t), beta1, beta2, self.param.delta

    def formula(self, g, history, rate):
        m, v = history
        beta1, beta2 = self.param.momentum, self.param.momentum2
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g**2
        return rate * m / (np.sqrt(v) + self.param.delta)     # `rate` holds the bias correction
