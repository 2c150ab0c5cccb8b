"""Numbers of bytes: parsing, formatting, the size of the host's memory, and the limit on an array whose size a file defines.

A prototxt of twenty bytes can define a blob of gigabytes. Code that allocates memory of a size read from a file calls
`check_bytes` first, which raises with the size; otherwise the operating system would end the process much later. The sum over
all arrays is not checked here; an allocator ``limit:SIZE`` (minicaffe.memory.use) limits that.
"""

import functools
import numbers
import os
import re

from minicaffe.errors import ConfigError, ShapeError, WrongTypeError, shown

VARIABLE = "MINICAFFE_MAX_BLOB_BYTES"
# 2^31 - 1 floats, the most that Caffe can count: every float32 net that Caffe can run is accepted. VGG-16 with a batch of 256,
# among the largest published nets, has a blob of 3.1 GiB.
DEFAULT = 8 << 30
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def checked(value, what="nbytes"):
    """Return a number of bytes, or another count, as an int; raise `WrongTypeError` unless it is from 0 to below 2^64."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise WrongTypeError(f"{what} must be an int from 0 to below 2^64, got {shown(value)}")
    return int(value)


def parse_size(text):
    """Return the number of bytes of a text such as ``512``, ``64KiB``, ``1.5GiB``; raise ConfigError if it is invalid."""
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in units:
        raise ConfigError(f"'{text}' is not a size; write a number and one of {', '.join(u for u in UNITS if u)}")
    if float(found[1]) * units[found[2]] >= 1 << 63:
        raise ConfigError(f"'{text}' is too large; a size is less than 2^63 bytes")
    return int(float(found[1]) * units[found[2]]) if "." in found[1] else int(found[1]) * units[found[2]]


def size_text(nbytes):
    """Format a number of bytes for displays: ``312 KiB``, ``1.5 GiB``."""
    return scaled_text(nbytes, 1024, list(UNITS)[1:])


def scaled_text(value, step, units):
    """Format a number in the first of `units`, each of them `step` of the one before, in which it has at most three digits."""
    unit = 0
    while value >= (999.5 if unit else step) and unit < len(units) - 1:
        value, unit = value / step, unit + 1
    return f"{value:.{0 if value >= 99.95 or not unit else 1}f} {units[unit]}"


@functools.cache
def host_memory():
    """Return the bytes of memory of the machine, or of this process's container (its cgroup's limit) if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdecimal() else physical


def max_blob_bytes():
    """Return the budget of one blob, in bytes: the environment's, by default 8 GiB, or `host_memory` if that is less.

    Raises ConfigError if the environment's value is not a size such as ``4000000`` or ``512MiB``.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return min(DEFAULT, host_memory())
    try:
        return parse_size(text)
    except ConfigError as error:
        raise error.at(field=VARIABLE)


def check_bytes(nbytes, what):
    """Raise ShapeError if `nbytes`, of any size, exceed the budget; `what` begins the message: ``blob 'conv1' 64 3 7 7``."""
    budget = max_blob_bytes()
    if nbytes > budget:
        raise ShapeError(f"{what} would take {nbytes} bytes, the budget for one blob is {budget}; make it smaller, or if the "
                         f"file is right, set the environment variable {VARIABLE}={nbytes} or more")
