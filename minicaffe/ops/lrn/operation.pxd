from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive

cdef extern from "minicaffe/ops/lrn/kernel.hpp" nogil:
    struct LrnShape "mc::LrnShape":
        long long groups, rows, width, block, half_rows, half_columns
        double k, alpha, beta


cdef class LRNPrimitive(Primitive)


cdef class LRN(Operation):
    cdef LrnShape shape
    cdef LRNPrimitive ran   # computed the last forward pass, and may have kept something for backward
    cdef Blob scale     # s, kept by engine CAFFE on a device
    cdef bint scaled    # whether `scale` is that of the last forward
    cdef int forward(self, const Context& on, Blob x, Blob y) except -1
    cdef int backward(self, const Context& on, Blob x, Blob y) except -1


cdef class LRNPrimitive(Primitive):
    cdef int forward(self, const Context& on, LRN op, Blob x, Blob y) except -1
    cdef int backward(self, const Context& on, LRN op, Blob x, Blob y) except -1
