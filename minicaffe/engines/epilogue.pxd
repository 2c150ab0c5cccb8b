from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout


cdef class ConcatSlice:
    cdef readonly Blob whole
    cdef readonly long long first   # its first channel there
    cdef readonly long long unit    # common divisor of the channels of all parts
    cdef readonly str concat_name   # the layer that concatenates it with the others
    cdef long long pitch            # bytes in the whole from one image to the next, in the layout of the last `begin`
    cdef bint written               # the result was written here, so that no copy is needed
    cdef public object relu         # the ReLU that wrote the values in place, if the Concat may compute its gradient; or None
    cdef char* begin(self, const Context& on, Layout layout) except? NULL
    cdef bint take_written(self)


cdef class Epilogue:
    cdef readonly Blob top      # where the result is stored: the top of the last fused layer
    cdef ConcatSlice part              # or here; then the operation sets `written` of the part. None: only in `top`
    cdef readonly bint fuses_backward  # the operation's own backward computes the gradients of the fused layers, too
    cdef readonly bint allows_sum       # it can add another blob
    cpdef bint standardize(self, Blob mean, Blob variance, Blob factor, double eps) except -1
    cpdef bint affine(self, Blob scale, Blob shift, learned) except -1
    cpdef bint add(self, Blob addend) except -1
    cpdef bint rectify(self, slopes) except -1


cdef class ChannelEpilogue(Epilogue):
    cdef vector[double] scale, shift    # a value for each channel; both empty: none
    cdef Blob addend                    # of the shape of the result, or None
    cdef vector[float] slopes           # a value for each channel, or one for all; empty: none
    cdef vector[float] factors, terms   # ``factors top + terms``, rounded
    cdef void append_affine(self, const vector[double]& scale, const vector[double]& shift) noexcept
    cdef int compute_factors(self, Blob bias) except -1


cdef class ReluEpilogue(Epilogue):
    cdef bint rectifies


cdef class NormEpilogue(Epilogue):
    cdef Blob scale, shift      # or None
    cdef bint scale_learned, shift_learned      # whether they get gradients
    cdef double slope           # for negative values
    cdef bint rectifies
