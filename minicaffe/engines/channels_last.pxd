from minicaffe.blob cimport Blob
from minicaffe.memory.layout cimport Layout

cdef class ChannelsLast(Layout):
    cdef object __weakref__     # so that `channels_last` can find it again
    cdef long long sizes[3]     # images, channels, pixels
    cdef long long plain[3]     # strides of these axes in plain order, in elements
    cdef long long last[3]      # ... and in this one
    cdef int copy(self, bint back, size_t source, const long long* source_strides, size_t target, const long long* target_strides,
                  size_t stream) except -1

cdef Layout channels_last(tuple dims, int dtype)
cdef int find_strides(Layout layout, Blob blob, long long* strides) except -1
