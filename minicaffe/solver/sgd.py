"""The solver types: learning rate, clipping, and one update rule each (Caffe sgd_solver.cpp, adam_solver.cpp and so on).

The arithmetic on elements is defined in ops/update/kernel.hpp. All types derive from SGD, as in Caffe.
"""

import functools
import logging
import math

import numpy as np

from minicaffe.blob import Blob
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error
from minicaffe.solver import policy
from minicaffe.solver.iteration import DistributedIteration, GraphIteration, SeparateUpdate, UpdateDuringBackward
from minicaffe.solver.solver import Solver
from minicaffe.solver.update import Rule, update_params

log = logging.getLogger("minicaffe.solver")


class SGDSolver(Solver):
    """Gradient descent with momentum; the base class of the other types."""

    rule = Rule.SGD
    histories = 1  # history blobs for each parameter
    use_graphs = True  # on a GPU, replay the iteration as one CUDA graph where that can be (solver/iteration.py)

    def _build(self, dtype, net_files):
        super()._build(dtype, net_files)
        params, param = self.net.learnable_params, self.param
        self.history = [Blob(blob.shape, blob.dtype, f"{blob.name} history") for _ in range(self.histories) for blob in params]
        self.net.lock.add(self.history)
        self._recorded = GraphIteration()
        known = param.regularization_type in ("L1", "L2")
        if not known and param.weight_decay and any(self.net.params_weight_decay):
            raise ConfigError(f"unknown regularization type '{param.regularization_type}'; known are L1 and L2",
                              field="regularization_type")

    def learning_rate(self):
        """Return the rate of the current iteration; with the policies step and multistep this updates `current_step`."""
        step = policy.next_step(self.param, self.iter, self.current_step)
        if step != self.current_step:
            self.current_step = step
            if self.param.lr_policy == "multistep":
                log.info("MultiStep Status: Iteration %d, step = %d", self.iter, step)
        return policy.rate(self.param, self.iter, step) * self.rate_factor()

    def constants(self, rate):
        """Return the update rule's rate, momentum, momentum2 and delta (ops/update/kernel.hpp); `rate` is the learning rate."""
        return rate, self.param.momentum, 0.0, 0.0

    def _update_plateau(self):
        """Update the state of policy plateau with the smoothed loss: lower the rate if its minimum is too long ago."""
        loss = float(np.float32(self.smoothed_loss))  # as stored in a snapshot, so that a resumed training does the same
        step, self.minimum_loss, self.iter_last_event = policy.update_plateau(
            self.param, self.iter, loss, self.current_step, self.minimum_loss, self.iter_last_event)
        if step != self.current_step:
            self.current_step = step
            log.info("Plateau Status: Iteration %d, step = %d", self.iter, step)
        display = self.param.display
        if display and self.iter % display == 0 and self.iter_last_event > self.iter - display:
            log.info("Plateau Status: Iteration %d, current minimum_loss = %g", self.iter, self.minimum_loss)

    def apply_update(self):
        """Update every learnable parameter from its diff, count the iteration, and return the learning rate.

        Each diff holds afterwards what was subtracted from the data, unless it was recycled by a plan.

        Raises
        ------
        Error
            If this process trains together with others, and the gradients are not those of all of them.
        """
        if self._exchange is not None and not self._has_global_gradients:
            raise Error(f"apply_update() on {self.group.name()} needs the gradients of all ranks, and these are its own; call "
                        "gradients() before it, or step(1) in place of both")
        self._has_global_gradients = False
        if self.param.lr_policy == "plateau":
            self._update_plateau()
        return self._end_iteration(updated=False)

    def _end_iteration(self, updated=True):
        """Update the parameters unless they are `updated`, count the iteration, and return its learning rate."""
        rate = self.learning_rate()
        if self.param.display and self.iter % self.param.display == 0:
            log.info("Iteration %d, lr = %g", self.iter, rate)
        if not updated:
            self.update(self.constants(rate)[0])
        self.iter += 1
        self._has_global_gradients = self._partly_updated = False
        return rate

    def update(self, rate, which=None, part=None):
        """Update the learnable parameters with `rate`, as `constants` gives it.

        `which` has the numbers of those that are updated; of a single one `part` may be all (`update_params`).
        """
        param, net, scale = self.param, self.net, self._gradient_scale()
        _, momentum, momentum2, delta = self.constants(rate)
        count = len(net.learnable_params)
        which = range(count) if which is None else which
        update_params(self.rule, [net.learnable_params[i] for i in which],
                      [self.history[n * count + i] for n in range(self.histories) for i in which],
                      [net.params_lr[i] for i in which], [net.params_weight_decay[i] for i in which], rate, scale,
                      param.weight_decay, param.regularization_type == "L1", momentum, momentum2, delta, part)

    def _choose_iteration(self):
        """Return the class or object of solver/iteration.py that computes the next iteration."""
        if self.updates_itself or {"gradients", "apply_update"} & vars(self).keys():
            return SeparateUpdate
        if caffe.mode == "gpu" and self.use_graphs:
            return self._recorded
        self._recorded.work.forget()
        if self._exchange is not None:
            return DistributedIteration
        if caffe.mode == "cpu" and self.net.plan and self.net.observer_reason() is None and self.update_obstacle() is None \
                and not self.param.snapshot_diff:
            return UpdateDuringBackward
        return SeparateUpdate

    def make_update_callback(self):
        """Return the function that updates parameters while backward runs, as `forward_backward` calls its `on_gradients`."""
        return functools.partial(self._update_subset, self.constants(self.learning_rate())[0])

    def _update_subset(self, rate, which, part=None, last=False):
        self._partly_updated = True       # until the iteration is counted
        if which:
            self.update(rate, which, part)
        return which

    def update_obstacle(self):
        """Return why the update cannot run during backward, or in the same CUDA graph; None if it can."""
        if self.param.iter_size > 1 and self._exchange is None:
            return "iter_size is more than 1"
        if self.param.clip_gradients >= 0:
            return "clip_gradients needs the gradients' norm on the host"
        if self.param.lr_policy == "plateau":
            return "the rate of policy plateau follows from the loss of the same iteration"
        return "callbacks run in the middle of an iteration" if self.callbacks else None

    def capture_obstacle(self):
        """Return why data of other processes cannot be received in a CUDA graph; None if they can, or there are none."""
        if self._exchange is None:
            return None
        if not self._exchange.transport.on_device:
            return "MPI sends the gradients through the host"
        if self._sync_batch_norm_layers:
            return "BatchNorm exchanges statistics by MPI"
        return "iter_size is more than 1" if self.param.iter_size > 1 else None

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


class RMSPropSolver(AdaGradSolver):
    """Rates that fall with the running mean of squared gradients."""

    rule = Rule.RMSPROP

    def check_param(self):
        super().check_param()
        if not 0 <= self.param.rms_decay < 1:
            raise ConfigError(f"must be at least 0 and less than 1, got {self.param.rms_decay:g}", field="rms_decay")

    def constants(self, rate):
        return rate, self.param.rms_decay, 0.0, self.param.delta


class AdaDeltaSolver(SGDSolver):
    """Steps in the ratio of past steps to past gradients; `momentum` is the decay of both means."""

    rule = Rule.ADADELTA
    histories = 2

    def constants(self, rate):
        return rate, self.param.momentum, 0.0, self.param.delta


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
