from libcpp.vector cimport vector

from minicaffe.memory.allocator cimport Allocator
from minicaffe.memory.containers cimport unordered_map
from minicaffe.memory.provider cimport StreamOrder


cdef size_t NO_STREAM


cdef class StreamAllocator(Allocator):
    cdef StreamOrder streams                            # of the device; None: all work is in order
    cdef size_t reserved_bytes                          # bytes of `upstream`, in use or not
    cdef unordered_map[size_t, vector[size_t]] users    # address of a live block -> the streams besides its own that use it
    cdef unordered_map[size_t, size_t] waiting          # address of a freed block -> number of its pending events
    cdef size_t requested_stream          # stream of the current request; NO_STREAM: the current stream
    cdef dict queues                                    # stream -> deque of (event, address), the oldest first
    cdef size_t own_stream(self, size_t address) except? -2
    cdef int make_available(self, size_t address) except -1
    cdef int free_unused_segments(self) except -1
    cdef size_t next_stream(self) except? -2
    cdef void* alloc_for_stream(self, size_t nbytes, size_t stream) except NULL
    cdef void* alloc_upstream(self, size_t nbytes, size_t stream) except NULL
    cdef bint defer_free(self, size_t address) except -1
    cdef int reclaim_waiting(self, bint wait) except -1
    cdef void free_upstream(self, size_t address) noexcept
