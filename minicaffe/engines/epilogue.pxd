from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout


cdef class ConcatSlice:
    cdef readonly Blob whole        # the top of the Concat, whose reshape makes one slice for each bottom
    cdef readonly long long first   # the first channel of the part there
    cdef readonly long long unit    # common divisor of the channels of all parts: blocks of channels must not contain two parts
    cdef readonly str concat_name   # the Concat's layer
    cdef long long pitch            # bytes in the whole from one image to the next, in the layout of the last `begin`
    cdef bint written               # set by a primitive that wrote its result here, so that the Concat need not copy it
    cdef public object relu         # the ReLU that wrote the values in place, if the Concat may compute its gradient; or None
    cdef char* begin(self, const Context& on, Layout layout) except? NULL
    cdef bint take_written(self)


cdef class Epilogue:
    cdef readonly Blob top      # where the result is stored: the top of the last fused layer, set by net/step.pyx
    cdef ConcatSlice part              # or here, if the primitive can; then it sets `written` of the part. None: only in `top`
    cdef readonly bint fuses_backward  # the operation's own backward computes the gradients of the fused layers, too
    cdef readonly bint allows_sum       # the chosen primitive can add another blob
    cpdef bint standardize(self, Blob mean, Blob variance, Blob factor, double eps) except -1
    cpdef bint affine(self, Blob scale, Blob shift, learned) except -1
    cpdef bint add(self, Blob addend) except -1
    cpdef bint rectify(self, slopes) except -1
    cdef bint is_current(self) except -1


cdef class ChannelEpilogue(Epilogue):
    cdef vector[double] scale, shift    # a value for each channel; both empty: none
    cdef Blob addend                    # of the shape of the result, or None
    cdef vector[float] slopes           # a value for each channel, or one for all; empty: none
    cdef vector[float] factors, terms   # of `compute_factors`: a value for each channel; empty: not yet
    cdef list sources                   # the parameters that were read
    cdef vector[char] seen              # their bytes then
    cdef vector[double] read(self, Blob blob) except *
    cdef void append_affine(self, const vector[double]& scale, const vector[double]& shift) noexcept
    cdef int compute_factors(self, Blob bias) except -1


cdef class ReluEpilogue(Epilogue):
    cdef bint rectifies         # whether there is a ReLU; the same below


cdef class NormEpilogue(Epilogue):
    cdef Blob scale, shift      # parameters with a value for each channel, or None
    cdef bint scale_learned, shift_learned      # whether they get gradients
    cdef double slope           # for negative values; 1: none
    cdef bint rectifies
