"""These tests need a device, in the default run too."""

from device_fixtures import cache, gpu_mode, place, sim  # noqa: F401
