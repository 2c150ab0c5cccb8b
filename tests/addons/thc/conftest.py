"""These tests need a device, in the default run too; the simulated one needs a compiler for kernels of one's own."""

import pytest
from cplusplus import compiler
from device_fixtures import cache, gpu_mode, place, sim  # noqa: F401


@pytest.fixture(scope="module")
def needs_compiler(device):
    if device != "gpu":
        compiler()
