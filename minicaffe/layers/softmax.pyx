"""Softmax along one axis (Caffe softmax_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.layers.base.operation cimport OperationLayer
from minicaffe.ops.softmax.operation cimport Softmax

from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import axis_of


cdef class SoftmaxLayer(OperationLayer):
    """``y = exp(x - max x) / sum exp(x - max x)`` along `softmax_param.axis`, for each of the other positions by itself.

    ``dx = y (dy - sum dy y)``. The top has the bottom's shape; in place is fine.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        self.op = Softmax(self.dtype, self.param.softmax_param.engine)

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        (<Softmax> self.op).see(x, axis_of(x, self.param.softmax_param.axis, "softmax_param.axis"))
        (<Blob> top[0]).reshape_like(x)


register_layer("Softmax", SoftmaxLayer)
