cdef class Generator:
    cdef public unsigned long long seed
    cdef public unsigned long long offset      # number of counters that were used
    cdef unsigned long long reserve(self, long long count) noexcept
