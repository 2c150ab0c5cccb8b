from minicaffe.blob cimport Blob
from minicaffe.engines.engine cimport Operation
from minicaffe.engines.epilogue cimport NormEpilogue
from minicaffe.loops.lanes.caffe cimport Channels

cdef enum Deviation:        # the formula of the divisor, by the numbers of ops/batch_norm/kernel.hpp
    EPS_INSIDE
    EPS_OUTSIDE
    NONE


cdef class Standardize(Operation):
    cdef Channels shape
    cdef Deviation rule
    cdef bint given, in_place           # given: mean and variance are not computed from x; in_place: x and y are one blob
    cdef object group                   # the processes with common statistics, or None
    cdef long long elsewhere            # number of values of a channel in the others, in the last forward
    cdef double eps
    cdef double unbiased                # count / (count - 1): the factor from the variance to the unbiased one
    cdef Blob mean, variance, factor, scale, shift      # a value for each channel; factor: 1 / deviation, scale: times gamma
    cdef Blob sums                      # four for each channel: scratch memory of backward
    cdef NormEpilogue fused_epilogue    # the epilogue of the last forward whose gradients backward computes, or None
    cdef bint needs_x_copy(self)
    cdef Blob values(self, Blob bottom)
    cdef int set_shape(self, long long outer, long long channels, long long inner, bint in_place) except -1
    cdef int allreduce_moments(self) except -1
    cdef int allreduce_gradient_terms(self) except -1


cdef class BatchNorm(Standardize):
    pass
