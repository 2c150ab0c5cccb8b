cdef int clear_gradients(list params) except -1
