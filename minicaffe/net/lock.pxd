cdef class NetLock:
    cdef list blobs                  # kept in shape for the thread that holds the lock
    cdef readonly list waiting                # (thread, its closed lock) in the order of coming
    cdef unsigned long long owner    # 0: nobody
    cdef int depth                   # how often the owner has entered
    cdef int wait(self, unsigned long long thread) except -1
    cdef int pass_on(self) except -1
