cdef class NetLock:
    cdef list blobs                  # only the thread that holds the lock may change their shapes
    cdef readonly list waiting                # (thread, its closed lock) in order of arrival
    cdef unsigned long long owner    # 0: none
    cdef int depth                   # how often the owner has entered
    cdef int wait(self, unsigned long long thread) except -1
    cdef int wake_next(self) except -1
