from minicaffe.blob cimport Blob
from minicaffe.ops.engine cimport Operation
from minicaffe.ops.epilogue cimport NormEpilogue
from minicaffe.ops.lanes.caffe cimport Channels

cdef enum Deviation:        # ops/batch_norm/kernel.hpp
    EPS_INSIDE
    EPS_OUTSIDE
    NONE


cdef class Standardize(Operation):
    cdef Channels shape
    cdef Deviation rule
    cdef bint given, in_place           # given: mean and variance are not computed from x
    cdef object group                   # the processes whose values count together, or None
    cdef long long elsewhere            # how many values of a channel the others had in the last forward
    cdef double eps
    cdef double unbiased                # what makes the variance of the last forward that of a sample
    cdef Blob mean, variance, factor, scale, shift      # one value a channel
    cdef Blob sums                      # four for each channel, of backward
    cdef NormEpilogue carried           # the epilogue that the last forward computed and of which backward is due, or None
    cdef bint keeps_x(self)
    cdef int see(self, long long outer, long long channels, long long inner, bint in_place) except -1
    cdef int join_moments(self) except -1
    cdef int join_gradients(self) except -1


cdef class BatchNorm(Standardize):
    pass
