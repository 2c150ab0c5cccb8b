"""The most bytes that one array may take because a file says so: ``MINICAFFE_MAX_BLOB_BYTES``.

A prototxt of twenty bytes can ask for gigabytes. Whoever takes memory whose size a file gives calls `check_bytes` first: the
error then names the size, where the operating system would end the process much later. The sum over all arrays is not
looked at here; an allocator ``limit:SIZE`` (minicaffe.memory.use) limits that.
"""

import functools
import os

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.memory.sizes import host_memory, parse_size

VARIABLE = "MINICAFFE_MAX_BLOB_BYTES"
# What 2^31 - 1 floats take, the most that Caffe can count: no net in float32 that Caffe could run is refused. VGG-16 with a
# batch of 256, among the largest that were published, has a blob of 3.1 GiB.
DEFAULT = 8 << 30


def max_blob_bytes():
    """Return the budget in bytes: that of the environment, by default 8 GiB, or all memory of the machine or container where
    that is less.

    Raises ConfigError if the environment's value is no size such as ``4000000`` or ``512MiB``.
    """
    return _budget(os.environ.get(VARIABLE, ""))


def check_bytes(nbytes, what):
    """Raise ShapeError if `nbytes`, of any size, exceed the budget; `what` begins the message: ``blob 'conv1' 64 3 7 7``."""
    budget = max_blob_bytes()
    if nbytes > budget:
        raise ShapeError(f"{what} would take {nbytes} bytes, the budget for one blob is {budget}; make it smaller, or if the "
                         f"file is right, set the environment variable {VARIABLE}={nbytes} or more")


@functools.cache
def _budget(text):
    if text:
        try:
            return parse_size(text)
        except ConfigError as error:
            raise error.at(field=VARIABLE)
    return min(DEFAULT, host_memory())
