"""Modules by the names that users know: ``minicaffe.io`` is pycaffe/io.py, ``minicaffe.onnx`` is of an add-on (minicaffe.modules).

They are found at their first use, by ``import minicaffe.io`` or as an attribute.
"""

import importlib
import importlib.machinery
import sys

from minicaffe import entry_points
from minicaffe.pycaffe import SOLVERS

OF_CORE = {
    "Classifier": "minicaffe.pycaffe.classifier:Classifier",
    "Detector": "minicaffe.pycaffe.detector:Detector",
    "_caffe": "minicaffe.pycaffe._caffe",
    "classifier": "minicaffe.pycaffe.classifier",
    "coord_map": "minicaffe.pycaffe.coord_map",
    "detector": "minicaffe.pycaffe.detector",
    "Layer": "minicaffe.layers.python:Layer",
    "UpdateRule": "minicaffe.solver.rules:UpdateRule",
    "allow_python_layers": "minicaffe.layers.python:allow_python_layers",
    "install_as_caffe": "minicaffe.as_caffe:install_as_caffe",
    "io": "minicaffe.pycaffe.io",
    "net_spec": "minicaffe.pycaffe.net_spec",
    "register_solver": "minicaffe.solver:register_solver",
    **{name: f"minicaffe.pycaffe.solvers:{name}" for name in SOLVERS},
}
_own_names = {}     # public name of a module -> the name under which it is imported and in `sys.modules`


class _PublicModules:
    """Finder of modules whose public name is not their own, and of those below them.

    It is after the finder of files, and from the first such name on also before it: that one would import ``minicaffe.onnx.export``
    a second time.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the spec of a module whose loader imports it by its own name; None for all others."""
        parent, _, last = name.rpartition(".")
        if parent in _own_names:
            _own_names[name] = f"{_own_names[parent]}.{last}"
        elif parent == "minicaffe" and name not in _own_names and (target := _target_of(last)) and ":" not in target:
            name_modules(name, target)
        return importlib.machinery.ModuleSpec(name, _Loader(_own_names[name])) if name in _own_names else None


class _Loader:      # of a spec of `_PublicModules`; the import system calls `create_module`, then `exec_module`
    def __init__(self, own_name):
        self.own_name = own_name

    def create_module(self, spec):      # the module itself, which then is in `sys.modules` under both names
        module = importlib.import_module(self.own_name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module):      # it ran when it was imported by its own name
        module.__spec__ = self.spec     # the import system replaced it


def _is_file(name):
    """Return whether another finder, of files, has the module ``minicaffe.NAME``: then no entry points are read for the name."""
    finders = [finder for finder in sys.meta_path if finder is not _PublicModules]
    return any(finder.find_spec(f"minicaffe.{name}", sys.modules["minicaffe"].__path__) for finder in finders)


def _target_of(name):
    """Return the ``module`` or ``module:attribute`` behind a public name of the core or of an add-on; None without one."""
    if name in OF_CORE:
        return OF_CORE[name]
    if name.startswith("_") or name == "addons" or _is_file(name):      # the folder may not be installed
        return None
    found = entry_points.find("modules", name)
    return found and found.value


def attribute(name):
    """Return the object ``minicaffe.NAME`` of the core or an add-on, for `minicaffe.__getattr__`; None if there is none."""
    target = _target_of(name)
    if not target:
        return importlib.import_module(f"minicaffe.{name}") if not name.startswith("_") and _is_file(name) else None
    return entry_points.import_target(target) if ":" in target else importlib.import_module(f"minicaffe.{name}")


def names():
    """Return the public names of the core and of add-ons that are imported at their first use."""
    return [*OF_CORE, *(name for name in entry_points.additions("modules") if "." not in name)]


def name_modules(name, own_name):
    """Make ``import NAME.x`` import module x of the package `own_name`: ``caffe.io`` that of minicaffe, for `install_as_caffe`."""
    _own_names[name] = own_name
    if sys.meta_path[0] is not _PublicModules:
        sys.meta_path.insert(0, _PublicModules)


sys.meta_path.append(_PublicModules)
