from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.activation.operation cimport Activation
from minicaffe.engines.epilogue cimport ConcatSlice

cdef class NeuronLayer(DeviceLayer):
    cdef public bint reads_bottom   # the gradient needs x, which an in-place forward overwrites
    cdef int check_in_place(self, list bottom, list top) except -1
    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil
    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil


cdef class ActivationLayer(NeuronLayer):
    cdef readonly Activation op
    cdef Blob kept                         # x, if `keeps_bottom`
    cdef readonly ConcatSlice part         # of a Concat's top, which is this top, if the Concat computes the gradient; or None
    cpdef defer_gradient(self, ConcatSlice part)
