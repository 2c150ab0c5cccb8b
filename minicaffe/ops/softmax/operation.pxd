from minicaffe.blob cimport Blob
from minicaffe.ops.engine cimport Operation


cdef class Softmax(Operation):
    cdef long long outer, channels, inner
    cpdef int see(self, Blob x, int axis) except -1
