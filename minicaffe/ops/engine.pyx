"""Operations ask, engines answer.

A layer describes what is to be computed as an Operation: plain data, set at reshape. Each engine that knows the kind of operation offers
a maker, which returns a Primitive or raises Refusal with the reason; the first in the order of `ENGINES` that is wanted and does not
refuse computes. Engine CAFFE is the last and refuses nothing. A Primitive gets blobs, and fetches the pointers that it needs itself.

The choice is made once for the CPU and once for the device, at the first use after a reshape. Primitives of other engines derive from
that of engine CAFFE, so that one that is refused only when it computes (a library's "not supported") lets that compute.
"""

import logging
import os

from minicaffe.blob cimport Blob, Dtype
from minicaffe.device.context cimport Context

from minicaffe.errors import ConfigError, Error

DEFAULT, CAFFE, CUDNN = 0, 1, 2     # the field `engine` of layers
ENGINES = {"CUDNN": CUDNN, "ONEDNN": None, "CAFFE": CAFFE}  # in the order in which they are asked; None: no value of that field
ON_DEVICE = {"CUDNN": (True,), "ONEDNN": (False,), "CAFFE": (False, True)}
log = logging.getLogger(__name__)
_makers = {}        # kind of operation -> {engine: maker}
_told = set()
_preferred = None   # the engine of layers with engine DEFAULT; "" for none; None: as MINICAFFE_ENGINE says
cdef unsigned _epoch = 1


class Refusal(Error):
    """An engine does not compute an operation; the message says why."""


cdef class Primitive:
    """An operation as an engine computes it; each kind of operation has a subclass with its methods, and each engine one of that."""


cdef class Operation:
    """What is to be computed, and who does.

    Parameters
    ----------
    dtype : Dtype
        The type of all blobs.
    engine : int
        The layer's field: DEFAULT, CAFFE or CUDNN.
    """

    def __cinit__(self, Dtype dtype, int engine=DEFAULT):
        self.dtype, self.engine = dtype, engine
        self.refusals = {}

    cdef int changed(self) except -1:
        """Say that the description changed: the engines are asked anew."""
        self.host = self.device = None
        return 0

    cdef Primitive primitive(self, const Context& on):
        """Who computes on this context."""
        if self.epoch != _epoch or self.threads != on.threads.count:    # a library may have made it for a number of threads
            self.changed()
            self.epoch, self.threads = _epoch, on.threads.count
        if on.stream != NULL:
            if self.device is None:
                self.device = self._choose(True)
            return self.device
        if self.host is None:
            self.host = self._choose(False)
        return self.host

    def _choose(self, bint device):
        makers = _makers[type(self)]
        for name in ENGINES:
            if name in makers and device in ON_DEVICE[name] and _wanted(name, self.engine):
                try:
                    return makers[name](self)
                except Refusal as refusal:
                    self.refused(name, refusal.message)

    cdef int refused(self, str engine, str reason) except -1:
        """Remember that `engine` does not compute this; the log says so once for each reason."""
        self.refusals[engine] = reason
        if (engine, reason) not in _told:
            _told.add((engine, reason))
            log.warning("engine %s refuses: %s; engine CAFFE computes instead", engine, reason)
        return 0

    cdef void* scratch(self, const Context& on, long long count) except? NULL:
        """Scratch memory of `count` elements or more, for the CPU or the device as the context is; its contents are undefined."""
        if self.memory is None:
            self.memory = Blob((0,), self.dtype, "scratch")
        if self.memory.count < count:
            self.memory.reshape_to((count,))
        return self.memory.mutable_data_on(on)

    def describe(self):
        """Return who computes: a dict with `operation`, `engine` (None before the first use) and `refused`, a dict of reasons."""
        made = self.device or self.host
        return {"operation": type(self).__name__, "engine": made.engine if made is not None else None, "refused": dict(self.refusals)}


def offer(kind, engine, maker):
    """Let `engine` answer for operations of class `kind`: ``maker(operation)`` returns a Primitive or raises Refusal."""
    _makers.setdefault(kind, {})[engine] = maker


def preferred():
    """Return the engine that layers with engine DEFAULT ask for first, "" if none was named.

    Raises
    ------
    ConfigError
        If MINICAFFE_ENGINE names no engine.
    """
    global _preferred
    if _preferred is None:
        wish = os.environ.get("MINICAFFE_ENGINE", "").upper()
        if wish and wish not in ENGINES:
            raise ConfigError(f"must be {' or '.join(name.lower() for name in sorted(ENGINES))}, got '{wish.lower()}'",
                              field="MINICAFFE_ENGINE")
        _preferred = wish
    return _preferred


def prefer(engine):
    """Let layers with engine DEFAULT ask this engine first; "" for none."""
    global _preferred, _epoch
    _preferred = engine
    _epoch += 1


def _in_child():
    prefer(_preferred)      # what a library made may wait for threads that do not survive a fork: choose anew


os.register_at_fork(after_in_child=_in_child)


def _wanted(name, field):
    return name == "CAFFE" or field == ENGINES[name] or (field == DEFAULT and preferred() == name)
