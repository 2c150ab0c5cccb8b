"""The simulated CUDA driver: a ``libcuda.so.1`` that runs minicaffe's kernels in host memory, strictly."""

import importlib.resources
import os

from minicaffe.errors import DependencyError

_loaded = None  # whether the driver of this process is the simulated one; None before there is a driver


def library():
    """Return the path of the simulated driver. Raises DependencyError if this build has none."""
    path = importlib.resources.files("minicaffe.sim").joinpath("libcuda.so.1")
    if not path.is_file():
        raise DependencyError("this build has no simulated device (it is built on Linux); build minicaffe there")
    return os.fspath(path)


def selected():
    """Whether the driver of this process is the simulated one; before it has a driver, whether the environment asks for that."""
    return os.environ.get("MINICAFFE_DEVICE") == "sim" if _loaded is None else _loaded


def note_driver(simulated):
    """Remember which driver this process has from now on."""
    global _loaded
    _loaded = simulated
