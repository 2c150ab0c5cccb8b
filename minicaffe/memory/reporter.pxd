from minicaffe.memory.containers cimport unordered_set


cdef class MemoryCounts:
    cdef size_t live, peak, count, allocations      # bytes now, at most so far; blocks now, in total so far
    cdef void count_alloc(self, size_t nbytes) noexcept
    cdef void count_free(self, size_t nbytes) noexcept


cdef class Reporter:
    cdef bint recording                   # whether there are `records`; test it before event(), which then costs one branch
    cdef tuple records                    # the lists that receive events, one for each active `record`
    cdef unordered_set[size_t] blocks     # live Buffers, borrowed references: a Buffer removes itself before it dies
    cdef dict places                      # place -> MemoryCounts
    cdef MemoryCounts add(self, block, place, size_t nbytes)
    cdef void remove(self, block, MemoryCounts usage, size_t nbytes) noexcept
    cdef long long clock(self) except -1  # ns, for `took`; 0 while nothing is recorded
    cdef int event(self, str kind, place, size_t address, size_t nbytes, str name, str detail, long long took=*) except -1
