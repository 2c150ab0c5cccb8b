from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.loops.lanes.caffe cimport Channels

cdef class BroadcastLayer(DeviceLayer):
    cdef Channels axes      # of x in plain order
    cdef Channels stored    # in the layout of the present pass
    cdef Blob kept   # x, where the layer works in place and its gradient needs x
    cdef int split_axes(self, Blob x, int axis, int num_axes) except -1
    cdef Layout layout_forward(self, const Context& on, list bottom)
    cdef Layout layout_backward(self, const Context& on, list bottom, list top)
    cdef void* keep(self, const Context& on, list bottom, list top, Layout layout) except? NULL
    cdef Blob forward_x(self, list bottom, list top)


cdef class AxesLayer(BroadcastLayer):
    cdef object field   # scale_param or bias_param, for errors
    cdef Blob values(self, list bottom)
    cdef tuple parameter_shape(self, list bottom, param)
    cdef int view_by_values(self, list bottom, list top, param) except -1
    cdef int sum_dy(self, const Context& on, const void* dy, Blob values, bint learned) except -1
