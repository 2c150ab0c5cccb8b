"""Plan: which nets of a workspace run, how often, and when to stop (Caffe2 ``PlanDef``, ``ExecutionStep``, ``plan_executor.cc``).

A plan is made in Python of steps; Caffe2 read it from a message. Different from Caffe2: a step may have both `num_iter` and
`should_stop_blob`, and one with ``num_iter=1`` is its ``only_once``; a stop blob that is missing is an error instead of an endless
loop; a function may replace a net. Steps run one after another: there are no concurrent substeps, reports
beside a run, or workspaces of a step's own.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable

import numpy as np

from minicaffe.errors import ConfigError, DataError, Error, WrongTypeError, check_type, int_of, shown


class Step:
    """Run nets, or other steps, again and again.

    Parameters
    ----------
    name : str
        For error messages.
    nets : str, function or Step, or sequence of them
        Names of nets; a function is called with the workspace, for what no net does, such as an update.
    num_iter : int, optional
        How often; by default once, or with `should_stop_blob` until that stops it.
    should_stop_blob : str, optional
        Name of one number, read after each net or substep: the step ends if it is not 0. It is a blob of the step's last net
        that has one of that name, or else a slot of the workspace.
    backward : bool
        Whether the nets run backward, too; not those of other steps in it.

    Raises
    ------
    ConfigError, WrongTypeError
        Naming the step.
    """

    def __init__(self, name, nets, *, num_iter=None, should_stop_blob=None, backward=False):
        self.name = check_type(name, str, "the name of a step", "a str")
        self.nets = _listed(nets, str | Step, f"{self}: nets")
        if not self.nets:
            raise ConfigError(f"{self}: needs nets")
        self.num_iter, self.should_stop_blob, self.backward = num_iter, should_stop_blob, backward
        if should_stop_blob is not None:
            check_type(should_stop_blob, str, f"{self}: should_stop_blob", "the name of a number")
        elif num_iter is None:
            self.num_iter = 1
        if num_iter is not None and int_of(num_iter, f"{self}: num_iter") < 0:
            raise ConfigError(f"{self}: must be an integer from 0 on, got {shown(num_iter)}", field="num_iter")

    def net_names(self):
        """List the nets of the step and the steps in it, each once, in order."""
        parts = (part.net_names() if isinstance(part, Step) else [part] for part in self.nets if isinstance(part, str | Step))
        return list(dict.fromkeys(itertools.chain(*parts)))

    def run(self, workspace):
        """Run the step, see `Workspace.run_plan`."""
        with _placed(self):
            for _ in range(self.num_iter) if self.num_iter is not None else itertools.count():
                for part in self.nets:
                    if isinstance(part, Step):
                        part.run(workspace)
                    elif isinstance(part, str):
                        with _placed(f"net '{part}'"):
                            workspace.run_net(part, self.backward)  # found by name each time: it may have been deleted or replaced
                    else:
                        with _placed(f"function '{getattr(part, '__name__', part)}'"):
                            part(workspace)
                    if self.should_stop_blob is not None and self._stops(workspace):
                        return

    def _stops(self, workspace):
        """Return whether the stop blob is not 0."""
        name, nets = self.should_stop_blob, workspace.nets
        with _placed(f"should_stop_blob '{name}'"):
            spaces = [nets[net].workspace for net in self.net_names()[::-1] if net in nets]
            value = next((space for space in spaces if name in space.local_names()), workspace).blob(name)
            try:
                array = np.asarray(value)
            except (TypeError, ValueError):
                array = np.empty(0)
            if array.size != 1 or array.dtype.kind not in "biuf":
                raise WrongTypeError(f"must be one number, got {type(value).__name__} of shape {list(array.shape)}")
            if math.isnan(array.item()):
                raise DataError("must be a number, got nan")
            return array.item() != 0

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
        self.steps = _listed(steps, Step, f"{self}: steps")

    def run(self, workspace):
        """Run the plan, see `Workspace.run_plan`."""
        with _placed(self):
            for step in self.steps:
                with _placed(step):
                    for name in step.net_names():
                        workspace.net(name)     # raises
            for step in self.steps:
                step.run(workspace)

    def __str__(self):
        return f"plan '{self.name}'" if self.name else "plan"


def _listed(parts, kind, what):
    """Return a part, or some, as a tuple; raise WrongTypeError unless they are of a type, or if str is one, functions."""
    alone = isinstance(parts, str | Step) or callable(parts) or not isinstance(parts, Iterable)
    for part in (parts := (parts,) if alone else tuple(parts)):
        if not isinstance(part, kind) and (kind is Step or not callable(part)):
            wanted = "of the type Step" if kind is Step else "names of nets, functions of the workspace or steps"
            raise WrongTypeError(f"{what} are {wanted}, got {shown(part)}")
    return parts


@contextlib.contextmanager
def _placed(place):
    """Put the name of a plan, step or net in front of the message of an error inside; other exceptions get it as a note."""
    try:
        yield
    except Error as error:
        error.message = f"{place}: {error.message}"
        raise
    except Exception as error:  # of a user's function, layer or hook
        error.add_note(f"in {place}")
        raise
