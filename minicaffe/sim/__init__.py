"""The simulated CUDA driver: a ``libcuda.so.1`` that runs minicaffe's kernels in host memory, with strict checks."""

import importlib.resources
import os

from minicaffe.errors import DependencyError

_loaded = None  # whether this process's driver is the simulated one; None until a driver is loaded


def library():
    """Return the path of the simulated driver. Raises DependencyError if this build has none."""
    path = importlib.resources.files("minicaffe.sim").joinpath("libcuda.so.1")
    if not path.is_file():
        raise DependencyError("this build has no simulated device (it is built on Linux); build minicaffe there")
    return os.fspath(path)


def selected():
    """Whether this process's driver is the simulated one; before a driver is loaded, whether the environment selects it."""
    return os.environ.get("MINICAFFE_DEVICE") == "sim" if _loaded is None else _loaded


def set_loaded_driver(simulated):
    """Store whether the driver that was loaded is the simulated one."""
    global _loaded
    _loaded = simulated
