"""Allocators by name, for ``memory.use(place, name)`` and the command line's ``--allocator``."""

import logging
import re

from minicaffe.errors import ConfigError, check_type, close_matches
from minicaffe.memory.allocator import LimitAllocator, SystemAllocator
from minicaffe.memory.buddy import BuddyAllocator
from minicaffe.memory.caching import CachingAllocator, CachingHostAllocator
from minicaffe.memory.place import PinnedPlace
from minicaffe.memory.sizes import host_memory, parse_size

logger = logging.getLogger(__name__)


def make_allocator(name, upstream, streams=None):
    """Build a stack of allocators on `upstream`.

    Parameters
    ----------
    name : str
        ``plain`` (`upstream` itself), ``caching``, ``buddy`` or ``limit:SIZE`` with a size such as ``2GiB`` or ``50%``. Join
        several with ``+``, the outermost first: ``caching+limit:2GiB``. Parameters are written ``kind:key=value,key=value``:

        - ``plain:alignment=4096``, of memory from the C library
        - ``caching:thc`` or ``caching:constants=thc``, ``caching:arena``; see `CachingAllocator`
        - ``buddy:min_chunk_size=64KiB,max_chunk_size=16MiB,first_pool_size=1MiB``; see `BuddyAllocator`
        - ``limit:2GiB`` or ``limit:max_bytes=2GiB``. A percentage is of the device's memory, on the host of all memory.
    upstream : Allocator
        Takes memory from the system or driver.
    streams : StreamOrder, optional
        Of the device, for ``caching`` and ``buddy``.

    Returns
    -------
    Allocator

    Raises
    ------
    ConfigError
        If a part of the name is unknown, or a value cannot be read or is out of range.
    """
    check_type(name, str, "name", "the name of an allocator")
    result = upstream
    for part in reversed(name.split("+")):
        kind, colon, text = part.strip().partition(":")
        if kind not in KINDS:
            raise ConfigError(f"unknown allocator '{kind}'{close_matches(kind, KINDS)}; known are {', '.join(KINDS)}")
        make, readers, first = KINDS[kind]
        try:
            result = make(result, streams=streams, **_parameters(text, readers, first, result) if colon else {})
        except ConfigError as error:
            raise error.at(field=f"allocator '{part.strip()}'")
    return result


def _parameters(text, readers, first, upstream):
    """Return ``value,key=value`` as a dict, parsed by `readers` (see KINDS); the first value may lack its key, which is `first`."""
    values = {}
    for item in text.split(","):
        key, equals, value = (word.strip() for word in item.partition("="))
        if not equals and first and not values:
            key, value = first, key
        elif not equals:
            raise ConfigError(f"'{item}' must be written key=value; known are {', '.join(readers)}")
        if key not in readers:
            raise ConfigError(f"unknown parameter '{key}'{close_matches(key, readers)}; known are {', '.join(readers)}")
        if key in values:
            raise ConfigError(f"{key} is given twice")
        values[key] = readers[key](value, upstream)
    return values


def _size(text, upstream):
    """Parse a size: a reader of KINDS."""
    return parse_size(text)


def _size_or_percentage(text, upstream):
    """Parse a size or a percentage of all memory at the place of `upstream`: a reader of KINDS."""
    if not text.endswith("%"):
        return parse_size(text)
    if not re.fullmatch(r"\d+(\.\d+)?%", text) or not 0 < float(text[:-1]) <= 100:
        raise ConfigError(f"a percentage must be above 0% and at most 100%, got '{text}'")
    total = host_memory() if upstream.place.on_host else (upstream.memory_info() or (0, 0))[1]
    if not total:
        raise ConfigError(f"the total memory of {upstream.place} is unknown, so '{text}' has no meaning; give a size such as 2GiB")
    nbytes = int(total * float(text[:-1]) / 100)
    logger.info("%s of the memory at %s is %s bytes", text, upstream.place, f"{nbytes:,}")
    return nbytes


def _plain(upstream, streams, alignment=None):
    """Return the allocator of ``plain``, which is `upstream`, or ``plain:alignment=N``."""
    if alignment is None:
        return upstream
    if not isinstance(upstream, SystemAllocator):
        raise ConfigError("alignment can be chosen where the C library gives the memory; here it comes from a "
                          f"{type(upstream).__name__}")
    return SystemAllocator(upstream.place, alignment)


def _caching(upstream, streams, **options):
    """Return an allocator of the kind ``caching`` that the place needs: blocks of page-locked memory are never split."""
    if upstream.place != PinnedPlace():
        return CachingAllocator(upstream, streams, **options)
    if options:
        raise ConfigError(f"the cache of page-locked memory takes no {', '.join(options)}")
    return CachingHostAllocator(upstream, streams)


def _limit(upstream, streams, max_bytes=None):
    """Return the allocator of ``limit:SIZE``."""
    if max_bytes is None:
        raise ConfigError("limit needs a size; write e.g. limit:2GiB or limit:50%")
    return LimitAllocator(upstream, max_bytes)


# kind -> function(upstream, streams=, **parameters), parameter -> function(text, upstream), the parameter that needs no key
KINDS = {
    "plain": (_plain, {"alignment": _size}, None),
    "caching": (_caching, {"constants": lambda text, upstream: text}, "constants"),
    "buddy": (BuddyAllocator, {"min_chunk_size": _size, "max_chunk_size": _size, "first_pool_size": _size}, None),
    "limit": (_limit, {"max_bytes": _size_or_percentage}, "max_bytes"),
}
