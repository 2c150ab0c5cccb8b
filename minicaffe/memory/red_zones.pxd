ctypedef void (*mark_function)(size_t address, size_t nbytes) noexcept nogil


cdef class RedZones:
    cdef readonly size_t nbytes
    cdef mark_function poison
    cdef mark_function unpoison
    cdef void close(self, size_t address, size_t nbytes) noexcept
    cdef void open(self, size_t address, size_t nbytes) noexcept
