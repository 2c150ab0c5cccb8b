"""The limit on the bytes of one array whose size a file defines: ``MINICAFFE_MAX_BLOB_BYTES``.

A prototxt of twenty bytes can define a blob of gigabytes. Code that allocates memory of a size read from a file calls
`check_bytes` first, which raises with the size; otherwise the operating system would end the process much later. The sum over
all arrays is not checked here; an allocator ``limit:SIZE`` (minicaffe.memory.use) limits that.
"""

import functools
import os

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.memory.sizes import host_memory, parse_size

VARIABLE = "MINICAFFE_MAX_BLOB_BYTES"
# 2^31 - 1 floats, the most that Caffe can count: every float32 net that Caffe can run is accepted. VGG-16 with a batch of 256,
# among the largest published nets, has a blob of 3.1 GiB.
DEFAULT = 8 << 30


def max_blob_bytes():
    """Return the budget in bytes: the environment's, by default 8 GiB, or all memory of the machine or container if that is
    less.

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
