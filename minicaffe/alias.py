"""`install_as_caffe`: let ``import caffe`` give minicaffe, so that old pycaffe scripts run unchanged.

``python -m minicaffe.as_caffe script.py`` does it for a script that shall not be touched at all.
"""

import importlib
import importlib.machinery
import sys

from minicaffe.errors import ConfigError

# caffe's modules and ours; `_caffe`, pycaffe's compiled part, has the names of pycaffe.
MODULES = {"classifier": "classifier", "coord_map": "coord_map", "detector": "detector", "draw": "draw", "io": "io",
           "net_spec": "net_spec", "pycaffe": "pycaffe", "_caffe": "pycaffe", "proto": "proto",
           "proto.caffe_pb2": "proto.caffe_pb2"}


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
    ours = importlib.import_module("minicaffe")
    if sys.modules.get("caffe", ours) is not ours:
        found = getattr(sys.modules["caffe"], "__file__", None)
    else:
        found = _installed()
    if found and not force:
        raise ConfigError(f"another caffe is there ({found}); install_as_caffe(force=True) hides it from this process")
    for name in [name for name in sys.modules if name == "caffe" or name.startswith("caffe.")]:
        del sys.modules[name]
    sys.modules["caffe"] = ours
    for name, home in MODULES.items():
        sys.modules[f"caffe.{name}"] = importlib.import_module(f"minicaffe.{home}")
    ours._caffe = sys.modules["caffe._caffe"]


def _installed():
    """Return the file of a caffe that could be imported, or None. A folder of that name, as of Caffe's sources, is none."""
    if "caffe" in sys.modules:  # ours
        return None
    spec = importlib.machinery.PathFinder.find_spec("caffe")
    return spec.origin if spec is not None and spec.has_location else None
