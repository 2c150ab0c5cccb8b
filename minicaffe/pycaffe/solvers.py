"""pycaffe's solver classes, made from solver files."""

from minicaffe import solver as base_solver
from minicaffe.common import caffe
from minicaffe.proto import upgrade
from minicaffe.pycaffe.net import Net

__all__ = [
    "AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "NesterovSolver", "RMSPropSolver", "SGDSolver", "get_solver",
    "get_solver_from_file",
]


class SGDSolver(base_solver.SGDSolver):
    """SGD with momentum, from a solver prototxt, whose `type` is ignored, with pycaffe's Net; base of pycaffe's other solvers.

    As in pycaffe, a restored solver reads its data from the beginning; set `exact_resume` to continue from the snapshot's record.
    """

    exact_resume = False
    net: Net
    test_nets: list[Net]

    def __init__(self, solver_file, *, skip_unknown_fields=False, trusted=True, _read=None):
        with caffe.trusting(trusted):
            param, positions = _read or upgrade.read_solver_file(solver_file, skip_unknown_fields)   # `_read`: of `get_solver`
        super().__init__(param, file=str(solver_file), positions=positions, skip_unknown_fields=skip_unknown_fields,
                         trusted=trusted)

    def make_net(self, param, **options):
        """Return a pycaffe Net, where solvers of the core build one without its methods; solver/nets.py calls this for each net."""
        return Net(param, param.state.phase, **options)

    @property
    def lr(self):
        """The current learning rate; evaluating it can advance the multistep counter."""
        return self.learning_rate()


class NesterovSolver(SGDSolver, base_solver.NesterovSolver):
    """Nesterov's accelerated gradient, from a solver prototxt."""


class AdaGradSolver(SGDSolver, base_solver.AdaGradSolver):
    """AdaGrad, from a solver prototxt."""


class RMSPropSolver(SGDSolver, base_solver.RMSPropSolver):
    """RMSProp, from a solver prototxt."""


class AdaDeltaSolver(SGDSolver, base_solver.AdaDeltaSolver):
    """AdaDelta, from a solver prototxt."""


class AdamSolver(SGDSolver, base_solver.AdamSolver):
    """Adam, from a solver prototxt."""


_SOLVERS = {cls.__name__: cls for cls in (SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)}


def get_solver(solver_file, *, skip_unknown_fields=False, trusted=True):
    """Return the solver of the type that the prototxt names; the options are those of `minicaffe.solver.solver.Solver`."""
    with caffe.trusting(trusted):
        param, positions = upgrade.read_solver_file(solver_file, skip_unknown_fields)
    base = base_solver.solver_class(param, file=solver_file, positions=positions)
    # A type of `register_solver` gets its class here, as each of Caffe's has one above.
    cls = _SOLVERS.get(base.__name__) or type(base.__name__, (SGDSolver, base), {"__doc__": base.__doc__})
    return cls(solver_file, skip_unknown_fields=skip_unknown_fields, trusted=trusted, _read=(param, positions))


get_solver_from_file = get_solver
