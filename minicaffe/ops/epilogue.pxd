from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout


cdef class Part:
    cdef readonly Blob whole
    cdef readonly long long first   # its first channel there
    cdef readonly long long unit    # of which the channels of all parts are multiples
    cdef readonly str by            # the layer that joins it with the others
    cdef long long pitch            # bytes in the whole from one image to the next, in the layout of the last `begin`
    cdef bint written               # in place of the blob that would have been copied
    cdef public bint rectified      # its values are those of a ReLU, whose gradient is computed where those of the parts are taken apart
    cdef char* begin(self, const Context& on, Layout layout) except? NULL
    cdef bint take(self)


cdef class Epilogue:
    cdef readonly Blob top      # where the result goes: that of the last layer that joined
    cdef Part part              # or there, of which the operation tells the part; None: only to `top`
    cdef readonly bint carries  # the operation computes the gradients of the layers that join, too, by its own backward
    cdef readonly bint adds     # it can add another blob
    cpdef bint standardize(self, Blob mean, Blob variance, Blob factor, double eps) except -1
    cpdef bint affine(self, Blob scale, Blob shift, learned) except -1
    cpdef bint add(self, Blob addend) except -1
    cpdef bint rectify(self, slopes) except -1


cdef class ChannelEpilogue(Epilogue):
    cdef vector[double] scale, shift    # a value for each channel; both empty: there is none of them
    cdef Blob addend                    # of the shape of the result, or None
    cdef vector[float] slopes           # a value for each channel, or one for all; empty: none
    cdef vector[float] factors, terms   # rounded: ``factors y + terms``
    cdef void then(self, const vector[double]& scale, const vector[double]& shift) noexcept
    cdef int round(self, Blob bias) except -1


cdef class ReluEpilogue(Epilogue):
    cdef bint rectifies


cdef class NormEpilogue(Epilogue):
    cdef Blob scale, shift      # or None
    cdef bint scale_learned, shift_learned      # whether they get gradients
    cdef double slope           # of what is below 0
    cdef bint rectifies
