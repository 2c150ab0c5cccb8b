"""Training: solver types, learning-rate policies, fused updates, snapshots. Start reading at solver.py."""

from minicaffe.errors import ConfigError, close_matches
from minicaffe.proto import upgrade
from minicaffe.solver.sgd import AdaDeltaSolver, AdaGradSolver, AdamSolver, NesterovSolver, RMSPropSolver, SGDSolver
from minicaffe.solver.solver import Solver

__all__ = ["AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "NesterovSolver", "RMSPropSolver", "SGDSolver", "Solver",
           "create_solver", "load_solver", "solver_types"]

_types = {c.__name__.removesuffix("Solver"): c
          for c in (SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)}


def solver_types():
    """Return the solver types as a dict from the name in `SolverParameter.type` to the class."""
    return dict(_types)


def create_solver(param, *, file=None, positions=None, **place):
    """Return a solver of the type that `param.type` names; the arguments are those of `Solver`.

    Raises ConfigError for an unknown type; lists the known ones.
    """
    if param.type not in _types:
        raise ConfigError(f"unknown solver type '{param.type}'{close_matches(param.type, _types)}; known are "
                          f"{', '.join(_types)}", field="type", file=file,
                          line=positions.line("type") if positions is not None else None)
    return _types[param.type](param, file=file, positions=positions, **place)


def load_solver(path, solver_class=None, **place):
    """Read a solver file of any age and return its solver, or one of `solver_class` whatever the file's type."""
    param, positions = upgrade.read_solver_file(path, place.get("skip_unknown_fields", False))
    return (solver_class or create_solver)(param, file=path, positions=positions, **place)
