from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer

cdef class BroadcastLayer(DeviceLayer):
    cdef long long outer, channels, inner
    cdef Blob kept   # x, where the layer works in place and its gradient needs x
    cdef int see(self, Blob x, int axis, int num_axes) except -1
    cdef void* keep(self, const Context& on, list bottom, list top) except? NULL
    cdef const void* x_on(self, const Context& on, list bottom, list top) except? NULL


cdef class AxesLayer(BroadcastLayer):
    cdef object field   # scale_param or bias_param, for errors
    cdef Blob values(self, list bottom)
    cdef tuple parameter_shape(self, list bottom, param)
    cdef int see_values(self, list bottom, list top, param) except -1
    cdef int sum_dy(self, const Context& on, list top, void* out, bint add) except -1
