"""pycaffe's solver classes, made from solver files, and NCCL, which is not there yet."""

from minicaffe import solver as solver_room
from minicaffe.errors import ConfigError, DependencyError
from minicaffe.proto import upgrade
from minicaffe.pycaffe.net import Net


class _FromFile:
    """What pycaffe's solver classes add to those of minicaffe.solver: made from a file, with pycaffe's Net.

    As in pycaffe, a restored solver reads its data from the beginning; set `exact_resume` to go on where they stood.
    """

    exact_resume = False

    def __init__(self, solver_file, *, skip_unknown_fields=False, trusted=True, _read=None):
        param, positions = _read or upgrade.read_solver_file(solver_file, skip_unknown_fields)
        super().__init__(param, file=str(solver_file), positions=positions, skip_unknown_fields=skip_unknown_fields,
                         trusted=trusted)

    def make_net(self, param, **options):
        return Net(param, param.state.phase, **options)

    def add_callback(self, on_start, on_gradients_ready=None):
        """Call both, without arguments, in every iteration: before the forward, and before the update.

        Raises
        ------
        ConfigError
            If only one is given: pycaffe takes an NCCL object there.
        """
        if on_gradients_ready is None:
            raise ConfigError("add_callback takes two callables, on_start and on_gradients_ready" if callable(on_start) else
                              "add_callback(nccl): this version trains on one device and has no NCCL")
        super().add_callback(on_start, on_gradients_ready)

    @property
    def lr(self):
        """The current learning rate; evaluating it can advance the multistep counter."""
        return self.learning_rate()


class SGDSolver(_FromFile, solver_room.SGDSolver):
    """SGD with momentum, from a solver prototxt; the file's `type` is not looked at."""


class NesterovSolver(_FromFile, solver_room.NesterovSolver):
    """Nesterov's accelerated gradient, from a solver prototxt."""


class AdaGradSolver(_FromFile, solver_room.AdaGradSolver):
    """AdaGrad, from a solver prototxt."""


class RMSPropSolver(_FromFile, solver_room.RMSPropSolver):
    """RMSProp, from a solver prototxt."""


class AdaDeltaSolver(_FromFile, solver_room.AdaDeltaSolver):
    """AdaDelta, from a solver prototxt."""


class AdamSolver(_FromFile, solver_room.AdamSolver):
    """Adam, from a solver prototxt."""


_SOLVERS = {cls.__name__.removesuffix("Solver"): cls for cls in (
    SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)}


def get_solver(solver_file, *, skip_unknown_fields=False, trusted=True):
    """Return the solver of the type that the prototxt names; the options are those of `minicaffe.solver.solver.Solver`."""
    param, positions = upgrade.read_solver_file(solver_file, skip_unknown_fields)
    if param.type not in _SOLVERS:
        raise ConfigError(f"unknown solver type '{param.type}'; known are {', '.join(_SOLVERS)}", field="type",
                          file=str(solver_file))
    return _SOLVERS[param.type](solver_file, skip_unknown_fields=skip_unknown_fields, trusted=trusted, _read=(param, positions))


get_solver_from_file = get_solver


class NCCL:
    """Joins processes that train together; this version trains on one device, so making one raises.

    Raises
    ------
    DependencyError
        Always. `has_nccl` tells beforehand.
    """

    def __init__(self, solver, uid):
        raise DependencyError(_NO_NCCL)

    @staticmethod
    def new_uid():
        """Raise DependencyError: there is no communicator to name."""
        raise DependencyError(_NO_NCCL)


def has_nccl():
    """Return False: this version trains on one device."""
    return False


_NO_NCCL = "minicaffe trains on one device so far and has no NCCL; ask caffe.has_nccl() first, and leave NCCL out where it is False"
