"""Training. Start reading at solver.py (the loop), step.py (one iteration) and sgd.py (solver types, with their formulas)."""

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, check_type, close_matches
from minicaffe.proto import upgrade
from minicaffe.solver.sgd import AdaDeltaSolver, AdaGradSolver, AdamSolver, NesterovSolver, RMSPropSolver, SGDSolver
from minicaffe.solver.solver import Solver

__all__ = ["AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "NesterovSolver", "RMSPropSolver", "SGDSolver", "Solver",
           "create_solver", "load_solver", "register_solver", "solver_class", "solver_types"]

_types = {c.__name__.removesuffix("Solver"): c
          for c in (SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)}


def solver_types():
    """Return the solver types as a dict from the name in `SolverParameter.type` to the class."""
    return dict(_types)


def register_solver(name, rule):
    """Make `rule`, a subclass of UpdateRule, the solver type called `name`, for `type` of a solver's file.

    Raises
    ------
    ConfigError, WrongTypeError
        If the name is taken by another type, or `rule` is not a subclass of UpdateRule.
    """
    check_type(name, str, "name", "the name of a solver type")
    if not name.isidentifier():
        raise ConfigError(f"the name of a solver type is letters, digits and _, such as Lion, got '{name}'", field="name")
    from minicaffe.solver.rules import make_solver_class
    made = make_solver_class(name, rule)
    if getattr(_types.setdefault(name, made), "rule_class", None) is not rule:
        raise ConfigError(f"solver type '{name}' is registered already; choose another name", field="name")


def solver_class(param, *, file=None, positions=None):
    """Return the class of the type that `param.type` names.

    Raises ConfigError for an unknown type; lists the known ones.
    """
    if param.type not in _types:
        raise ConfigError(f"unknown solver type '{param.type}'{close_matches(param.type, _types)}; known are "
                          f"{', '.join(_types)}; one of your own is made known by minicaffe.register_solver('{param.type}', Rule) "
                          "(docs/adding_a_solver.md)", field="type", file=str(file) if file is not None else None,
                          line=positions.line("type") if positions is not None else None)
    return _types[param.type]


def create_solver(param, *, file=None, positions=None, **place):
    """Return a solver of the type that `param.type` names; the arguments are those of `Solver`.

    Raises ConfigError for an unknown type; lists the known ones.
    """
    return solver_class(param, file=file, positions=positions)(param, file=file, positions=positions, **place)


def load_solver(path, solver_class=None, **place):
    """Read a solver file of any age and return its solver, or one of `solver_class` whatever the file's type."""
    with caffe.trusting(place.get("trusted", True)):
        param, positions = upgrade.read_solver_file(path, place.get("skip_unknown_fields", False))
    return (solver_class or create_solver)(param, file=path, positions=positions, **place)
