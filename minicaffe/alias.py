"""On request ``import caffe`` gives minicaffe: its names and modules are then those of caffe.

``python -m minicaffe.as_caffe script.py`` does so for a script that must not be changed, and ``python -m minicaffe.as_caffe
--install`` for all programs of an environment: it writes a module ``caffe.py`` with `TEXT` there.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

from minicaffe.errors import ConfigError

TEXT = '''"""minicaffe under the name caffe, written by: python -m minicaffe.as_caffe --install"""

import minicaffe

minicaffe.install_as_caffe(force=True)


def __getattr__(name):      # a thread that waits for this import gets this module
    return getattr(minicaffe, name)
'''


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
    ours, present = sys.modules["minicaffe"], sys.modules.get("caffe")
    found = other_caffe(sys.path) if present is None else getattr(present, "__file__", None)
    if found and not force and present is not ours:
        raise ConfigError(f"another caffe is there ({found}); install_as_caffe(force=True) hides it from this process")
    for name in [name for name in sys.modules if name == "caffe" or name.startswith("caffe.")]:
        del sys.modules[name]
    sys.modules["caffe"] = ours
    ours.public_modules.name_modules("caffe", "minicaffe")


def other_caffe(paths):
    """Return the file of a caffe besides the alias that could be imported from `paths`, or None.

    A folder of that name without ``__init__.py``, as of Caffe's sources, is none.
    """
    for path in paths:
        spec = PathFinder.find_spec("caffe", [path])
        if spec is not None and spec.has_location and not is_alias(Path(spec.origin)):
            return spec.origin
    return None


def is_alias(path):
    """Return whether a file is the module that ``python -m minicaffe.as_caffe --install`` writes."""
    return path.is_file() and path.read_bytes() == TEXT.encode()
