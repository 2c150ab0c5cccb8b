from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer

cdef class RowLayer(DeviceLayer):
    cdef Blob index       # int32, one for each row picked; None before the first use
    cdef const int* take_indices(self, const Context& on, Blob blob, long long limit, str field) except? NULL
    cdef long long row_bytes(self, Blob blob) except -1
