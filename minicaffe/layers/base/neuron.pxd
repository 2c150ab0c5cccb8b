from minicaffe.blob cimport Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.activation.operation cimport Activation

cdef class ActivationLayer(DeviceLayer):
    cdef readonly Activation op
    cdef bint reads_bottom                 # the gradient needs x, which an in-place forward overwrites: backward raises
    cdef Blob kept                         # x of the last forward in place, if `keeps_bottom`; else None
    # Whether the Concat that reads the top computes the gradient, from its own top, until the next forward (net/compile.pyx).
    cdef public bint deferred
