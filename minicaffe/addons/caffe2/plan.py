"""Plan: which nets of a workspace run, how often, and when to stop (Caffe2 ``PlanDef``, ``ExecutionStep``, ``plan_executor.cc``).

A plan is made in Python of steps; Caffe2 read it from a message. Different from Caffe2: a step may have both `num_iter` and
`should_stop_blob`, and one with ``num_iter=1`` is its ``only_once``; a stop blob that is missing is an error instead of an endless
loop; a function may replace a net. Steps run one after another: there are no concurrent substeps, reports
beside a run, or workspaces of a step's own.
"""

import itertools
import math
from collections.abc import Iterable

import numpy as np

from minicaffe.errors import ConfigError, DataError, Error, WrongTypeError, shown


class Step:
    """Run nets, or other steps, again and again.

    Parameters
    ----------
    name : str
        For error messages.
    nets : str, function, or sequence of them
        Names of nets; a function is called with the workspace, for what no net does, such as an update.
    steps : Step, or sequence of Step
        In place of `nets`.
    num_iter : int, optional
        How often; by default once, or with `should_stop_blob` until that stops it.
    should_stop_blob : str, optional
        Name of one number, looked at after each net or substep: the step ends if it is not 0. It is a blob of the step's last net
        that has one of that name, or else a slot of the workspace.
    backward : bool
        Whether the nets run backward, too; substeps say it for themselves.

    Raises
    ------
    ConfigError, WrongTypeError
        Naming the step.
    """

    def __init__(self, name, nets=(), *, steps=(), num_iter=None, should_stop_blob=None, backward=False):
        if not isinstance(name, str):
            raise WrongTypeError(f"a step's name is a str, got {shown(name)}")
        self.name = name
        for given, what in ((nets, "nets"), (steps, "steps")):
            if not (isinstance(given, Iterable | Step) or callable(given)):
                raise WrongTypeError(f"must be {what} or a single one, got {shown(given)}", field=what)
        self.nets = (nets,) if isinstance(nets, str) or callable(nets) else tuple(nets)
        self.steps = (steps,) if isinstance(steps, Step) else tuple(steps)
        self.should_stop_blob = should_stop_blob
        self.backward = bool(backward)
        if bool(self.nets) == bool(self.steps):
            raise ConfigError(f"{self}: needs nets or steps, and not both")
        if backward and steps:
            raise ConfigError(f"{self}: has no nets to run; set it where the nets are, in the substeps", field="backward")
        if should_stop_blob is not None and not isinstance(should_stop_blob, str):
            raise WrongTypeError(f"{self}: is the name of a number, got {shown(should_stop_blob)}", field="should_stop_blob")
        for net in self.nets:
            if not isinstance(net, str) and not callable(net):
                raise WrongTypeError(f"{self}: nets are names of nets, or functions of the workspace, got {shown(net)}")
        _check_steps(self)
        if num_iter is None and should_stop_blob is None:
            num_iter = 1
        if num_iter is not None and (
                not isinstance(num_iter, (int, np.integer)) or isinstance(num_iter, bool) or num_iter < 0):
            raise ConfigError(f"{self}: must be an integer from 0 on, got {shown(num_iter)}", field="num_iter")
        self.num_iter = num_iter

    def net_names(self):
        """List the nets of the step and its substeps, each once, in order."""
        own = [net for net in self.nets if isinstance(net, str)]
        return list(dict.fromkeys([*own, *itertools.chain(*(step.net_names() for step in self.steps))]))

    def __str__(self):
        return f"step '{self.name}'"


class Plan:
    """Steps that `Workspace.run_plan` runs one after another.

    Parameters
    ----------
    steps : Step, or sequence of Step
    name : str
        For error messages.
    """

    def __init__(self, steps, name=""):
        self.name = name
        if not isinstance(steps, Iterable | Step):
            raise WrongTypeError(f"a plan is made of a Step or some, got {shown(steps)}")
        self.steps = (steps,) if isinstance(steps, Step) else tuple(steps)
        _check_steps(self)

    def run(self, workspace):
        """Run the plan, see `Workspace.run_plan`."""
        for step in self.steps:
            for name in step.net_names():
                try:
                    workspace.net(name)
                except Error as error:
                    raise _placed(error, self, step)
        for step in self.steps:
            _run(step, workspace, (self,))

    def __str__(self):
        return f"plan '{self.name}'" if self.name else "plan"


def _check_steps(parent):
    for step in parent.steps:
        if not isinstance(step, Step):
            raise WrongTypeError(f"{parent}: steps are of the type Step, got {shown(step)}")


def _run(step, workspace, place):
    """Run a step; `place` is the plan and the steps around it."""
    place = (*place, step)
    for _ in range(step.num_iter) if step.num_iter is not None else itertools.count():
        for part in step.steps or step.nets:
            if isinstance(part, Step):
                _run(part, workspace, place)
            else:
                _run_part(step, part, workspace, place)
            if step.should_stop_blob is not None and _stops(step, workspace, place):
                return


def _run_part(step, part, workspace, place):
    """Run one net, or call one function."""
    place = (*place, f"net '{part}'" if isinstance(part, str) else f"function '{getattr(part, '__name__', part)}'")
    try:
        if isinstance(part, str):
            workspace.run_net(part, step.backward)  # found by name each time: it may have been deleted or replaced
        else:
            part(workspace)
    except Error as error:
        raise _placed(error, *place)
    except Exception as error:  # of a user's function, layer or hook
        error.add_note(f"in {_joined(place)}")
        raise


def _stops(step, workspace, place):
    """Return whether a step's stop blob is not 0."""
    name = step.should_stop_blob
    try:
        nets = workspace.nets
        spaces = [nets[net].workspace for net in step.net_names()[::-1] if net in nets]
        value = next((space for space in spaces if name in space.local_names()), workspace).blob(name)
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):
            array = np.empty(0)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise WrongTypeError(f"must be one number, got {type(value).__name__} of shape {list(array.shape)}")
        number = array.item()
        if math.isnan(number):
            raise DataError("must be a number, got nan")
        return number != 0
    except Error as error:
        raise _placed(error, *place, f"should_stop_blob '{name}'")


def _placed(error, *place):
    """Put the names of plan, steps and net in front of an error's message; return it."""
    error.message = f"{_joined(place)}: {error.message}"
    return error


def _joined(place):
    return ": ".join(map(str, place))
