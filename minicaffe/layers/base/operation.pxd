from minicaffe.layer cimport DeviceLayer
from minicaffe.engines.engine cimport Operation


cdef class OperationLayer(DeviceLayer):
    cdef public Operation op        # None for a type without one, Im2col
    cdef bint learns_weights(self)
