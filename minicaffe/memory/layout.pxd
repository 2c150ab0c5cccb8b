cdef class Layout:
    cdef readonly size_t nbytes         # of the private block
    cdef readonly size_t plain_nbytes   # of the array in plain order
    cdef readonly int dtype             # of its elements, which is that of the blob or BF16
    cdef readonly str name              # for events
    cdef readonly tuple dims            # the shape of the array
    cdef readonly int lanes             # number of channels, axis 1, whose elements are neighbours; 0: not by channels
    cdef readonly bint scaled           # its elements are computed from the plain array's, and are only read
    cdef readonly bint channels_last    # whether all channels of a pixel are neighbours: images NHWC
    cdef readonly bint on_device        # whether it is for memory of a device
    cpdef to_plain(self, size_t plain, size_t private, size_t stream=*)
    cpdef from_plain(self, size_t private, size_t plain, size_t stream=*)
    cpdef bint from_layout(self, size_t private, Layout source, size_t other) except -1
