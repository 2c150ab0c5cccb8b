from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.loops.lanes.caffe cimport Channels

cdef class BroadcastLayer(DeviceLayer):
    cdef Channels axes      # sizes outer x channels x inner of x in plain order; parameter k is of channel k
    cdef Channels stored    # the same in the layout of the present pass, for its loops
    cdef Blob kept          # x, where the layer works in place and its gradient needs x; else None
    cdef int split_axes(self, Blob x, int axis, int num_axes) except -1
    cdef Layout layout_forward(self, const Context& on, list bottom)
    cdef Layout layout_backward(self, const Context& on, list bottom, list top)
    cdef void* keep(self, const Context& on, list bottom, list top, Layout layout) except? NULL
    cdef Blob forward_x(self, list bottom, list top)


cdef class AxesLayer(BroadcastLayer):
    cdef object values_param, field     # scale_param or bias_param, which has axis, and its name, for errors
    cdef bint scales                    # Scale: the values are factors; false: Bias, they are added
    cdef int make_values(self, list bottom, param, str field, filler) except -1
    cdef Blob values(self, list bottom)
    cdef Blob bias(self, list bottom)
    cdef void* gradient_of(self, const Context& on, list bottom, Blob values, bint* add) except? NULL
