from minicaffe.blob cimport Blob
from minicaffe.memory.layout cimport Layout

cdef class ChannelsLast(Layout):
    cdef object __weakref__
    cdef long long sizes[3]     # images, channels, pixels
    cdef long long plain[3]     # strides in plain order
    cdef long long last[3]      # ... and in this one
    cdef int copy(self, bint back, size_t source, const long long* source_strides, size_t target, const long long* target_strides,
                  size_t stream) except -1

cdef Layout channels_last(tuple dims, int dtype)
cdef int find_strides(Layout layout, Blob blob, long long* strides) except -1
