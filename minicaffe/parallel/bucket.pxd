cdef class Bucket:
    cdef readonly list which
    cdef readonly list blobs
    cdef readonly list layouts
    cdef readonly bint bf16
    cdef readonly int dtype
    cdef readonly long long count
    cdef readonly long long nbytes
    cdef readonly object array
    cdef public long long began     # when it started, in nanoseconds
    cdef list counts        # elements of each
    cdef object own         # the array of more than one; None: the gradient's memory itself
    cdef void* gradient(self, int index) except NULL
    cdef int copy(self, bint out) except -1
