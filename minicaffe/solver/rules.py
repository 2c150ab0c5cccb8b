"""Solver types that a program defines in Python: an `UpdateRule` computes the step that is subtracted from a parameter.

Different from the types of sgd.py: the rule computes with NumPy arrays on the host, one parameter after the other, and after all
gradients are complete. In GPU mode parameters and gradients are copied to the host and back in every iteration.
"""

import logging

import numpy as np

from minicaffe.common import caffe
from minicaffe.device.threads import is_dry_run
from minicaffe.errors import ConfigError, Error, ShapeError, WrongTypeError, shown
from minicaffe.memory import reporter
from minicaffe.solver.sgd import SGDSolver

log = logging.getLogger("minicaffe.solver")


class UpdateRule:
    """The update of a solver type of your own; a subclass defines `step`, and `register_solver` makes it a type.

    Attributes
    ----------
    histories : int
        Of the class: how many arrays are kept for each parameter. They are zeros at first, and are stored in snapshots.
    param : SolverParameter
        Of the solver. A rule may read any of its fields, such as momentum, momentum2 and delta.
    iteration : int
        How many updates were done before this one.
    """

    histories = 1

    def __init__(self, param):
        self.param = param
        self.iteration = 0

    def check(self):
        """Raise ConfigError for a field of `param` that is wrong; called once, when the solver is made."""

    def step(self, weight, gradient, history, rate, decay):
        """Return what is subtracted from the parameter, and renew `history` in place.

        Parameters
        ----------
        weight : ndarray of any shape, float32 or float64
            The parameter, read-only.
        gradient : ndarray of the same shape
            The mean over `iter_size` batches and all processes, scaled by `clip_gradients`, without the weight decay.
        history : list of ndarray of the same shape
            The `histories` arrays of this parameter.
        rate : float
            The learning rate of this iteration times `lr_mult`.
        decay : float
            `weight_decay` times `decay_mult`.

        Returns
        -------
        ndarray of the same shape
        """
        raise Error(f"{type(self).__name__} does not define step(weight, gradient, history, rate, decay)")

    def penalty(self, weight, decay):
        """Return the gradient of the weight decay, for a `step` to add: ``decay * weight``, or ``decay * sign(weight)`` for L1."""
        return decay * (np.sign(weight) if self.param.regularization_type == "L1" else weight)


class RuleSolver(SGDSolver):
    """The solver of an UpdateRule; `make_solver_class` makes a subclass for each."""

    rule = formula = None       # `UpdateRule.step` takes their place
    rule_class = UpdateRule

    def check_param(self):
        super().check_param()
        self.update_rule = self.rule_class(self.param)      # `Solver.__init__` calls this method once
        self.update_rule.check()
        if caffe.mode == "gpu":
            log.warning("solver type %s computes its updates on the CPU: parameters and gradients are copied there and back in "
                        "every iteration", type(self).__name__.removesuffix("Solver"))

    def update(self, rate, which=None, part=None):
        """Update all learnable parameters; `which` and `part` are never given, as all gradients are complete before."""
        net, scale = self.net, self._gradient_scale()
        params = net.learnable_params
        names = ", ".join(blob.name for blob in params)
        self.update_rule.iteration = self.iter
        reporter.event("begin", name=names, detail="update")
        for i, blob in enumerate(params):
            history = [self.history[n * len(params) + i].data for n in range(self.histories)]
            data, diff = blob.data, blob.diff
            if is_dry_run():    # only allocates, for an estimate of memory: values are undefined
                continue
            self.training_step.partly_updated = True     # until the iteration is counted; the rule may fail at any parameter
            gradient = diff if scale == 1 else diff * diff.dtype.type(scale)
            weight = data.view()
            weight.flags.writeable = False
            step = self.update_rule.step(weight, gradient, history, rate * net.params_lr[i],
                                         self.param.weight_decay * net.params_weight_decay[i])
            if np.shape(step) != data.shape:
                what = f"an array of shape {list(step.shape)}" if isinstance(step, np.ndarray) else shown(step)
                raise ShapeError(f"{self.rule_class.__name__}.step returned {what} for the parameter {blob.name} of shape "
                                 f"{list(data.shape)}; return an array of that shape, which is subtracted", field="type")
            diff[...] = step
            data -= diff
        reporter.event("end", name=names, detail="update")


def make_solver_class(name, rule):
    """Return the solver class of a type called `name`, whose updates `rule` computes.

    Raises
    ------
    WrongTypeError, ConfigError
        If `rule` is not a subclass of UpdateRule, lacks `step`, or its `histories` is not a number of arrays.
    """
    if not (isinstance(rule, type) and issubclass(rule, UpdateRule)):
        raise WrongTypeError(f"the rule of a solver type is a subclass of UpdateRule, got {shown(rule)}", field=name)
    if rule.step is UpdateRule.step:
        raise ConfigError(f"{rule.__name__} does not define step(weight, gradient, history, rate, decay)", field=name)
    if type(rule.histories) is not int or not 0 <= rule.histories <= 8:
        raise ConfigError(f"{rule.__name__}.histories must be a number of arrays from 0 to 8, got {shown(rule.histories)}",
                          field=name)
    return type(f"{name}Solver", (RuleSolver,), {"rule_class": rule, "histories": rule.histories, "__doc__": rule.__doc__})
