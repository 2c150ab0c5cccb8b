"""Softmax along one axis (Caffe softmax_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.softmax.operation cimport Softmax

from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import axis_of


cdef class SoftmaxLayer(DeviceLayer):
    """``y = exp(x - max x) / sum exp(x - max x)`` along `softmax_param.axis`, for each of the other positions by itself.

    ``dx = y (dy - sum dy y)``. The top has the bottom's shape; in place is fine.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef Softmax softmax

    cpdef layer_setup(self, list bottom, list top):
        self.softmax = Softmax(self.dtype, self.param.softmax_param.engine)

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        self.softmax.see(x, axis_of(x, self.param.softmax_param.axis, "softmax_param.axis"))
        (<Blob> top[0]).reshape_like(x)

    def operations(self):
        return [self.softmax]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.softmax.forward(on, bottom[0], top[0])

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if propagate_down[0]:
            self.softmax.backward(on, bottom[0], top[0])


register_layer("Softmax", SoftmaxLayer)
