from minicaffe.blob cimport Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.activation.operation cimport Activation
from minicaffe.engines.epilogue cimport ConcatSlice

cdef class ActivationLayer(DeviceLayer):
    cdef readonly Activation op
    cdef bint reads_bottom                 # the gradient needs x, which an in-place forward overwrites
    cdef Blob kept                         # x, if `keeps_bottom`
    cdef readonly ConcatSlice part         # of a Concat's top, which is this top, if the Concat computes the gradient; or None
    cpdef defer_gradient(self, ConcatSlice part)
