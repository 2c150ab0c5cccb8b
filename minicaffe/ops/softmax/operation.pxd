from minicaffe.blob cimport Blob
from minicaffe.ops.engine cimport Operation


cdef class Softmax(Operation):
    cdef long long outer, channels, inner
    cdef int see(self, Blob x, int axis) except -1
