from minicaffe.engines.engine cimport Blob, Operation

cdef extern from "minicaffe/ops/pooling/kernel.hpp" nogil:
    struct PoolShape "mc::PoolShape":
        long long images, channels, height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w

cdef enum:
    MAX = 0          # minicaffe.proto PoolingParameter.PoolMethod
    AVE = 1
    STOCHASTIC = 2


cdef class Pooling(Operation):
    cdef PoolShape shape
    cdef int method
    cdef bint drawn                         # STOCHASTIC draws a pixel, as in TRAIN; else its mean is computed
    cdef Blob mask                          # of the next pass: the position in its plane of the pixel of each output, or None
    cdef bint mask_shown                    # the mask is a top
    cdef unsigned long long seed, start     # of the random numbers for the next forward pass: the stream, and the first number
