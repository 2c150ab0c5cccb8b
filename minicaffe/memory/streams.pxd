from libcpp.unordered_map cimport unordered_map


cdef class StreamOrder:
    cpdef size_t current(self) except? -1
    cpdef record(self, size_t stream)
    cpdef bint done(self, event) except -1
    cpdef wait(self, event)


cdef class StreamUses:
    cdef StreamOrder order
    cdef dict streams                       # address -> set of streams, of live blocks
    cdef dict queues                        # stream -> deque of (event, address), the oldest first
    cdef unordered_map[size_t, int] open    # address -> events that are not done, of freed blocks
    cdef int add(self, size_t address, size_t stream) except -1
    cdef int retire(self, size_t address) except -1
    cdef size_t pop(self, bint wait) except? 0
