"""Allocators by name: what ``memory.use(place, name)`` and the command line's ``--allocator`` understand."""

import re

from minicaffe.errors import ConfigError, close_matches
from minicaffe.memory.allocator import LimitAllocator
from minicaffe.memory.buddy import BuddyAllocator
from minicaffe.memory.caching import CachingAllocator
from minicaffe.memory.pinned import CachingHostAllocator
from minicaffe.memory.place import PinnedPlace

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def make_allocator(name, upstream, streams=None):
    """Stack allocators on `upstream`.

    Parameters
    ----------
    name : str
        ``plain`` (`upstream` itself), ``caching``, ``buddy`` or ``limit:SIZE`` with a size such as ``2GiB``; several are
        joined by ``+``, the outermost first: ``caching+limit:2GiB``.
    upstream : Allocator
        Takes memory from the system or driver.
    streams : StreamOrder, optional
        Of the device, for ``caching``.

    Returns
    -------
    Allocator

    Raises
    ------
    ConfigError
        If a part of the name is unknown, or a size cannot be read.
    """
    makers = {
        "plain": lambda below: below,
        "caching": lambda below: _caching(below, streams),
        "buddy": BuddyAllocator,
        "limit": LimitAllocator,
    }
    result = upstream
    for part in reversed(name.split("+")):
        kind, colon, size = part.strip().partition(":")
        if kind not in makers:
            raise ConfigError(f"unknown allocator '{kind}'{close_matches(kind, makers)}; known are {', '.join(makers)}")
        if bool(colon) != (kind == "limit"):
            raise ConfigError(f"allocator '{part}': limit needs a size and no other takes one; write e.g. limit:2GiB")
        result = makers[kind](result, parse_size(size)) if colon else makers[kind](result)
    return result


def parse_size(text):
    """Read bytes from text such as ``512``, ``64KiB``, ``1.5GiB``; raise ConfigError if it cannot be read."""
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in units or float(found[1]) * units[found[2]] >= 1 << 63:
        raise ConfigError(f"'{text}' is no size; write a number and one of {', '.join(u for u in UNITS if u)}")
    return int(float(found[1]) * units[found[2]]) if "." in found[1] else int(found[1]) * units[found[2]]


def _caching(below, streams):
    return (CachingHostAllocator if below.place == PinnedPlace() else CachingAllocator)(below, streams)
