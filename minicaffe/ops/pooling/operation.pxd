from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive

cdef extern from "minicaffe/ops/pooling/kernel.hpp" nogil:
    struct PoolShape "mc::PoolShape":
        long long height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w

cdef enum:
    MAX = 0          # minicaffe.proto PoolingParameter.PoolMethod
    AVE = 1
    STOCHASTIC = 2


cdef class PoolingPrimitive(Primitive)


cdef class Pooling(Operation):
    cdef PoolShape shape
    cdef int method
    cdef long long images, channels
    cdef bint drawn                         # STOCHASTIC draws, as in TRAIN
    cdef bint mask_shown                    # the mask is a top
    cdef PoolingPrimitive ran               # computed the last forward pass, and knows its maxima
    cdef unsigned long long seed, start     # of the random numbers for the next forward pass
    cdef int forward(self, const Context& on, Blob x, Blob y, Blob mask) except -1
    cdef int backward(self, const Context& on, Blob x, Blob y, Blob mask) except -1


cdef class PoolingPrimitive(Primitive):
    cdef int forward(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1
    cdef int backward(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1
