ctypedef void (*mark_function)(size_t address, size_t nbytes) noexcept nogil


cdef class RedZones:
    cdef readonly size_t nbytes         # of a gap; 0: nothing is marked
    cdef mark_function poison           # of the simulated driver
    cdef mark_function unpoison
    cdef void close(self, size_t address, size_t nbytes) noexcept
    cdef void open(self, size_t address, size_t nbytes) noexcept
