"""The simulated CUDA driver: a ``libcuda.so.1`` that runs minicaffe's kernels in host memory, strictly."""

import importlib.resources
import os

from minicaffe.errors import DependencyError


def library():
    """Return the path of the simulated driver. Raises DependencyError if this build has none."""
    path = importlib.resources.files("minicaffe.sim").joinpath("libcuda.so.1")
    if not path.is_file():
        raise DependencyError("this build has no simulated device (it is built on Linux); build minicaffe there")
    return os.fspath(path)


def selected():
    """Whether the environment asks for the simulated device."""
    return os.environ.get("MINICAFFE_DEVICE") == "sim"
