from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.engine cimport Operation


cdef class OperationLayer(DeviceLayer):
    cdef public Operation op
