"""Live blocks of memory, and events.

`live` and `table` list every live block of every place with its blob's name (Caffe2's memory reporter). `record` collects events
in its with block: allocation, free, split, merge, copy, head change. Other modules add kinds: begin and end of a layer, launch
of a kernel, call of a library. `minicaffe trace` groups them into steps. Caffe had neither. Memory passed to ``set_cpu_data``
is foreign and not listed.

The GIL is the lock here. No loop over a C++ container creates Python objects: that may run the garbage collector, which may
free Buffers and so change the container.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libcpp.vector cimport vector

from collections import namedtuple
from contextlib import contextmanager
from threading import Lock
from time import perf_counter_ns

Block = namedtuple("Block", "address nbytes place name")
Block.__doc__ = "One live block; `name` is that of its blob, or ''."
Event = namedtuple("Event", "time kind place address nbytes name detail took", defaults=(0,))
Event.__doc__ = """An event that ended at `time` (ns, time.perf_counter_ns); `detail` is its direction, or ''. `took` is the
duration (ns) of copies, reorders, launches and calls, 0 of other kinds. `address` is where a block begins; for head changes and
layers it is the ``id`` of the SyncedMemory and the Node."""
Stats = namedtuple("Stats", "live peak reserved count allocations")
Stats.__doc__ = """Bytes live now, their maximum so far, bytes held from upstream; blocks live now, all blocks allocated so far."""


cdef class MemoryCounts:
    """Counters of one allocator (`Allocator.usage`) or one place (`Reporter.places`)."""

    cdef void count_alloc(self, size_t nbytes) noexcept:
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        self.count += 1
        self.allocations += 1

    cdef void count_free(self, size_t nbytes) noexcept:
        self.live -= nbytes
        self.count -= 1


cdef class Reporter:
    """The C interface: one object, `reporter`. Buffers call `add` and `remove`; allocators, SyncedMemory and others `event`."""

    def __cinit__(self):
        self.records = ()
        self.places = {}

    cdef MemoryCounts add(self, block, place, size_t nbytes):
        """List a new Buffer as live; return the counts of its place, which it stores for `remove`."""
        cdef MemoryCounts usage = self.places.get(place)
        if usage is None:
            usage = self.places.setdefault(place, MemoryCounts())
        self.blocks.insert(<size_t><void*>block)
        usage.count_alloc(nbytes)
        return usage

    cdef void remove(self, block, MemoryCounts usage, size_t nbytes) noexcept:      # in the Buffer's deallocation
        self.blocks.erase(<size_t><void*>block)
        usage.count_free(nbytes)

    cdef long long clock(self) except -1:   # the start of what an event reports, for its duration `took`
        return perf_counter_ns() if self.recording else 0

    cdef int event(self, str kind, place, size_t address, size_t nbytes, str name, str detail, long long took=0) except -1:
        """Append an Event, which has these members, to all `records`; the caller tests `recording` first."""
        # Event(...) takes three times as long.
        happened = new_tuple(Event, (perf_counter_ns(), kind, place, address, nbytes, name, detail, took))
        for events in self.records:
            events.append(happened)
        return 0


cdef object new_tuple = tuple.__new__
reporter = Reporter()
cdef Reporter _reporter = reporter
cdef object _record_lock = Lock()


def live():
    """List the live blocks as `Block` tuples, the largest first."""
    cdef vector[size_t] found
    cdef size_t block
    for block in _reporter.blocks:      # this loop creates no Python object
        Py_INCREF(<object><void*>block)
        found.push_back(block)
    buffers = []
    for block in found:
        buffers.append(<object><void*>block)
        Py_DECREF(<object><void*>block)
    blocks = [Block(b.address, b.nbytes, b.place, b.name) for b in buffers]
    return sorted(blocks, key=lambda b: (-b.nbytes, b.address))


def table():
    """Format `live` as text: bytes, place, address, name; then a line for each place with its live and peak bytes."""
    lines = [f"{'bytes':>15}  {'place':<14} {'address':<18} name"]
    lines += [f"{b.nbytes:>15,}  {b.place!r:<14} {b.address:<#18x} {b.name}".rstrip() for b in live()]
    for place, used in stats().items():
        lines.append(f"{used.live:>15,}  {place!r:<14} live in {used.count} blocks, at most {used.peak:,}")
    return "\n".join(lines)


def stats():
    """Return ``{place: Stats}`` for every place used so far.

    `reserved` equals `live` here; ``minicaffe.memory.stats(place)`` includes the caches of allocators.
    """
    return {place: _stats(usage, (<MemoryCounts>usage).live) for place, usage in list(_reporter.places.items())}


def _stats(MemoryCounts usage not None, size_t reserved):
    return Stats(usage.live, usage.peak, reserved, usage.count, usage.allocations)


def event(str kind, *, place=None, size_t address=0, size_t nbytes=0, str name="", str detail="", long long took=0):
    """Record an event of another module, such as ``prefetch``, if any `record` is active."""
    if _reporter.recording:
        _reporter.event(kind, place, address, nbytes, name, detail, took)


def is_recording():
    """Return whether a `record` is active."""
    return _reporter.recording


@contextmanager
def record(events=None):
    """Collect `Event` tuples of all threads in a list while the ``with`` block runs; blocks may nest.

    Parameters
    ----------
    events : optional
        An object with a method ``append``, in place of the list.
    """
    events = [] if events is None else events
    with _record_lock:
        _reporter.records += (events,)
        _reporter.recording = True
    try:
        yield events
    finally:
        with _record_lock:
            _reporter.records = tuple(r for r in _reporter.records if r is not events)
            _reporter.recording = len(_reporter.records) > 0
