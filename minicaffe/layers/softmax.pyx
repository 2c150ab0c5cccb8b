"""Softmax along one axis (Caffe softmax_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer

from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import axis_of

cdef extern from "minicaffe/ops/softmax/caffe.hpp" nogil:
    void softmax_forward "mc::softmax_forward"(const Context&, int, long long, long long, long long, const void*, void*)
    void softmax_backward "mc::softmax_backward"(
        const Context&, int, long long, long long, long long, const void*, const void*, void*)

cdef extern from "minicaffe/cuda/cudnn.hpp" namespace "mc::cuda" nogil:
    bint cudnn_softmax_forward(const Context&, int engine, int, long long, long long, long long, const void* x, void* y)
    bint cudnn_softmax_backward(
        const Context&, int engine, int, long long, long long, long long, const void* y, const void* dy, void* dx)


cdef class SoftmaxLayer(DeviceLayer):
    """``y = exp(x - max x) / sum exp(x - max x)`` along `softmax_param.axis`, for each of the other positions by itself.

    ``dx = y (dy - sum dy y)``. The top has the bottom's shape; in place is fine.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long outer, channels, inner
    cdef int engine

    cpdef layer_setup(self, list bottom, list top):
        self.engine = self.param.softmax_param.engine

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef int axis = axis_of(x, self.param.softmax_param.axis, "softmax_param.axis")
        self.outer, self.channels = x.count_range(0, axis), x.dims[axis]
        self.inner = x.count_range(axis + 1, x.num_axes)
        (<Blob> top[0]).reshape_like(x)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            if not cudnn_softmax_forward(on, self.engine, self.dtype, self.outer, self.channels, self.inner, x, y):
                softmax_forward(on, self.dtype, self.outer, self.channels, self.inner, x, y)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        cdef const void* y = (<Blob> top[0]).data_on(on)
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        with nogil:
            if not cudnn_softmax_backward(on, self.engine, self.dtype, self.outer, self.channels, self.inner, y, dy, dx):
                softmax_backward(on, self.dtype, self.outer, self.channels, self.inner, y, dy, dx)


register_layer("Softmax", SoftmaxLayer)
