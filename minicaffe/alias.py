"""Modules by the names that users know: ``minicaffe.io`` is pycaffe/io.py, and ``import caffe`` gives minicaffe once asked for.

``python -m minicaffe.as_caffe script.py`` asks for a script that shall not be touched at all.
"""

import importlib.machinery
import sys

from minicaffe import proto, pycaffe
from minicaffe.errors import ConfigError
from minicaffe.opencv import dnn
from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe import _caffe, classifier, coord_map, detector, draw, io, net_spec

MODULES = {"classifier": classifier, "coord_map": coord_map, "detector": detector, "dnn": dnn, "draw": draw, "io": io,
           "net_spec": net_spec, "pycaffe": pycaffe, "_caffe": _caffe, "proto": proto, "proto.caffe_pb2": caffe_pb2}


def name_modules(package):
    """Let ``import package.io``, ``from package.net_spec import Top`` and the like find minicaffe's modules."""
    for name, module in MODULES.items():
        sys.modules[f"{package}.{name}"] = module
        if "." not in name:
            setattr(sys.modules[package], name, module)


def install_as_caffe(force=False):
    """Make ``import caffe``, ``from caffe import layers as L, params as P``, ``from caffe.proto import caffe_pb2`` give minicaffe.

    Parameters
    ----------
    force : bool
        Do so where another caffe is installed or imported too. What imported that one before keeps it.

    Raises
    ------
    ConfigError
        If there is another caffe, without `force`.
    """
    ours = sys.modules["minicaffe"]
    if sys.modules.get("caffe", ours) is not ours:
        found = getattr(sys.modules["caffe"], "__file__", None)
    else:
        found = _installed()
    if found and not force:
        raise ConfigError(f"another caffe is there ({found}); install_as_caffe(force=True) hides it from this process")
    for name in [name for name in sys.modules if name == "caffe" or name.startswith("caffe.")]:
        del sys.modules[name]
    sys.modules["caffe"] = ours
    name_modules("caffe")


def _installed():
    """Return the file of a caffe that could be imported, or None. A folder of that name, as of Caffe's sources, is none."""
    if "caffe" in sys.modules:  # ours
        return None
    spec = importlib.machinery.PathFinder.find_spec("caffe")
    return spec.origin if spec is not None and spec.has_location else None
