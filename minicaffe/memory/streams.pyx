"""The base of allocators that keep freed blocks, and so must know the order of streams.

A device runs the work of one stream in order, that of two streams in any order. So a freed block can be reused on its own
stream at once: pending work of its last user there runs first. A block that other streams used as well is reused only after
they have passed the point of the free, where an event is recorded (after PyTorch's ``recordStream``). Streams are numbers here
(the driver's handles) and events any objects; `cuda/` implements `StreamOrder` (memory/provider.pyx).

All its methods may run other code, so the records here are consistent before each call.
"""

cimport cython
from cython.operator cimport dereference
from libcpp.vector cimport vector

from minicaffe.memory.allocator cimport Allocator, bytes_of
from minicaffe.memory.provider cimport StreamOrder

from collections import deque

from minicaffe.errors import ConfigError, Error, WrongTypeError
from minicaffe.memory.place import CPUPlace
from minicaffe.memory.sizes import checked

cdef size_t NO_STREAM = <size_t>-1      # of a block that belongs to none
cdef object PAGEABLE = CPUPlace()
cdef object make_deque = deque         # a C variable: the last blocks are freed after the globals of modules are cleared


@cython.no_gc_clear
cdef class StreamAllocator(Allocator):
    """An allocator that keeps freed blocks, and so has to track which streams still use them (abstract).

    A subclass overrides `alloc_ptr`, `own_stream`, `make_available`, `free_unused_segments` and `free_ptr`. Its `free_ptr` returns
    early if `defer_free` is true: other streams still use the block, and `reclaim_waiting` frees it later. The arguments are as of
    `CachingAllocator`: if there are streams, `free` of `upstream` must wait for all of them, as cuMemFree does.
    """

    def __init__(self, Allocator upstream not None, StreamOrder streams=None):
        super().__init__(upstream.place, upstream)
        self.streams = streams
        self.queues = {}
        self.requested_stream = NO_STREAM

    cdef size_t own_stream(self, size_t address) except? -2:
        """Return the stream of the live block at `address`, or NO_STREAM if it has none; PointerError if no block starts there."""
        raise Error(f"{type(self).__name__} must override own_stream")

    cdef int make_available(self, size_t address) except -1:
        """Make a freed block available again: `reclaim_waiting` calls it after all streams have finished with the block."""
        raise Error(f"{type(self).__name__} must override make_available")

    cdef int free_unused_segments(self) except -1:
        """Return all segments, or pools, without a live block to `upstream`: for `empty_cache`, or if `upstream` has no memory."""
        raise Error(f"{type(self).__name__} must override free_unused_segments")

    cdef size_t reserved(self) noexcept:    # of Allocator, as `malloc`, `record_stream` and `empty_cache` below
        return self.reserved_bytes

    cdef size_t next_stream(self) except? -2:
        """Return the stream of a request; `alloc_ptr` calls this first if there are `streams`."""
        cdef size_t stream = self.requested_stream
        if stream == NO_STREAM:
            return self.streams.current()
        self.requested_stream = NO_STREAM
        return stream

    cdef void* alloc_for_stream(self, size_t nbytes, size_t stream) except NULL:
        """As `alloc_ptr`, for work on `stream`, which is in `requested_stream`: an argument would cost `alloc_ptr` a call."""
        self.requested_stream = stream
        return self.alloc_ptr(nbytes)

    cdef void* alloc_upstream(self, size_t nbytes, size_t stream) except NULL:
        """Allocate a segment for `stream` from `upstream`, which may distinguish streams itself: a cache on a cache."""
        cdef void* ptr
        if isinstance(self.upstream, StreamAllocator):
            return (<StreamAllocator>self.upstream).alloc_for_stream(nbytes, stream)
        ptr = self.upstream.alloc_ptr(nbytes)
        if self.streams is not None and stream != NO_STREAM and stream != self.streams.current():
            try:    # an allocator further below may distinguish streams, and assumes the current one
                self.upstream.record_stream(<size_t>ptr, stream)
            except BaseException:
                self.upstream.free_ptr(ptr)
                raise
        return ptr

    cdef bint defer_free(self, size_t address) except -1:
        """Return whether streams besides its own use the freed block at `address`; if so, put it on their wait queues."""
        found = self.users.find(address)
        if found == self.users.end():
            return False
        cdef vector[size_t] others = dereference(found).second
        self.users.erase(found)
        self.waiting[address] = others.size()       # first, so that a second free by another thread is found
        try:
            events = [(stream, self.streams.record(stream)) for stream in sorted(others)]
        except BaseException:
            self.waiting.erase(address)
            self.users[address] = others
            raise
        for stream, event in events:
            self.queues.setdefault(stream, make_deque()).append((event, address))
        return True

    cdef int reclaim_waiting(self, bint wait) except -1:
        """Make freed blocks available that no stream uses any more: each allocation calls it. `wait`: wait for the streams."""
        for queue in list(self.queues.values()):
            while queue:
                event, address = queue.popleft()
                try:
                    if wait:
                        self.streams.wait(event)
                    elif not self.streams.done(event):
                        queue.appendleft((event, address))
                        break               # later events of this stream are not done either
                except BaseException:
                    queue.appendleft((event, address))
                    raise
                self.waiting[address] -= 1
                if self.waiting[address] == 0:
                    self.waiting.erase(<size_t>address)
                    self.make_available(address)
        return 0

    cdef void free_upstream(self, size_t address) noexcept:
        """Free memory in `upstream` during deallocation of this object: an error is printed, and the rest is still freed."""
        self.upstream.free_ptr(<void*>address)

    def malloc(self, nbytes, stream):
        nbytes = checked(nbytes)
        stream = stream_number(stream)
        if self.streams is None:
            raise single_stream_error(self)
        address = <size_t>self.alloc_for_stream(nbytes, stream)
        try:
            self.record_stream(address, stream)     # for a block that belongs to no stream
        except BaseException:
            self.free_ptr(<void*><size_t>address)
            raise
        return address

    def record_stream(self, address, stream):
        cdef size_t number = stream_number(stream)
        cdef size_t known, start = bytes_of(address, "address")
        if number == self.own_stream(start) or self.place == PAGEABLE:
            return      # a copy from pageable memory has read it when the call returns
        if self.streams is None:
            raise single_stream_error(self)
        for known in self.users[start]:
            if known == number:
                return
        self.users[start].push_back(number)

    def empty_cache(self):
        """Wait for blocks that other streams use, then return all memory without a live block to `upstream`."""
        self.reclaim_waiting(True)
        self.free_unused_segments()
        self.upstream.empty_cache()


def stream_number(stream):
    """Return the number of a stream: itself, or the `address` of a ``cuda.Stream``."""
    number = getattr(stream, "address", stream)
    if not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise WrongTypeError(f"a stream must be a cuda.Stream or its address (an int, at least 0), got {stream!r}")
    return number


cdef single_stream_error(Allocator allocator):      # returns the error of `malloc` and `record_stream` without `streams`
    return ConfigError(f"{type(allocator).__name__} was made without `streams`, so it supports only one stream")
