"""The order of streams, as far as memory must know it.

A device runs the work of one stream in order, that of two streams in any order. So a block may be given out again on
its own stream at once: what its last user still does there comes first. A block that other streams used as well has to
wait until they got past the point where it was freed; an event recorded there tells (after PyTorch's ``recordStream``).
Streams are numbers here (the driver's handles) and events any objects; `cuda/` fills in `StreamOrder`.
"""

from collections import deque

from minicaffe.errors import ConfigError, Error


cdef class StreamOrder:
    """Streams and events of one device (abstract)."""

    cpdef size_t current(self) except? -1:
        """Give the stream that new work of this thread goes to."""
        raise Error(f"{type(self).__name__} must override current")

    cpdef record(self, size_t stream):
        """Give an event that is done when all work put on `stream` so far is."""
        raise Error(f"{type(self).__name__} must override record")

    cpdef bint done(self, event) except -1:
        """Say whether `event` is done, without waiting."""
        raise Error(f"{type(self).__name__} must override done")

    cpdef wait(self, event):
        """Let the host wait for `event`."""
        raise Error(f"{type(self).__name__} must override wait")


cdef class StreamUses:
    """Which blocks were used on further streams, and which freed ones still wait for those.

    All of `order` may run other code, so each method leaves the records consistent before it calls it.
    """

    def __init__(self, StreamOrder order):
        self.order = order
        self.streams = {}
        self.queues = {}

    cdef int add(self, size_t address, size_t stream) except -1:
        """Note that `stream` uses the live block at `address`."""
        if self.order is None:
            raise ConfigError("record_stream: this allocator was made without `streams`, so it knows only one stream")
        self.streams.setdefault(address, set()).add(stream)
        return 0

    cdef int retire(self, size_t address) except -1:
        """Record an event on each further stream of the block at `address`, which waits for them from now on."""
        events = [(stream, self.order.record(stream)) for stream in sorted(self.streams[address])]
        del self.streams[address]
        self.open[address] = len(events)
        for stream, event in events:
            self.queues.setdefault(stream, deque()).append((event, address))
        return 0

    cdef size_t pop(self, bint wait) except? 0:
        """Give the address of a block that waits no more, or 0; with `wait` it is waited for."""
        for queue in list(self.queues.values()):
            while queue:
                event, address = queue.popleft()
                try:
                    if wait:
                        self.order.wait(event)
                    elif not self.order.done(event):
                        queue.appendleft((event, address))
                        break               # what comes later on this stream is not done either
                except BaseException:
                    queue.appendleft((event, address))
                    raise
                self.open[address] -= 1
                if self.open[address] == 0:
                    self.open.erase(<size_t>address)
                    return address
        return 0
