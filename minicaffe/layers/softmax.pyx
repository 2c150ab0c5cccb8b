"""Softmax along one axis (Caffe softmax_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.cpu.threads cimport num_threads
from minicaffe.layer cimport Layer

from minicaffe.layer import register_layer
from minicaffe.layers.checks import axis_of

cdef extern from "minicaffe/cpu/softmax.hpp" nogil:
    void softmax_forward "mc::cpu::softmax_forward"(int, int, long long, long long, long long, const void*, void*)
    void softmax_backward "mc::cpu::softmax_backward"(
        int, int, long long, long long, long long, const void*, const void*, void*)


cdef class SoftmaxLayer(Layer):
    """``y = exp(x - max x) / sum exp(x - max x)`` along `softmax_param.axis`, for each of the other positions by itself.

    ``dx = y (dy - sum dy y)``. The top has the bottom's shape; in place is fine.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long outer, channels, inner

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef int axis = axis_of(x, self.param.softmax_param.axis, "softmax_param.axis")
        self.outer, self.channels = x.count_range(0, axis), x.dims[axis]
        self.inner = x.count_range(axis + 1, x.num_axes)
        (<Blob> top[0]).reshape_like(x)

    cpdef forward_cpu(self, list bottom, list top):
        cdef const void* x = (<Blob> bottom[0]).cpu_data_ptr()
        cdef void* y = (<Blob> top[0]).mutable_cpu_data_ptr()
        cdef int threads = num_threads()
        with nogil:
            softmax_forward(threads, self.dtype, self.outer, self.channels, self.inner, x, y)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        if not propagate_down[0]:
            return
        cdef const void* y = (<Blob> top[0]).cpu_data_ptr()
        cdef const void* dy = (<Blob> top[0]).cpu_diff_ptr()
        cdef void* dx = (<Blob> bottom[0]).mutable_cpu_diff_ptr()
        cdef int threads = num_threads()
        with nogil:
            softmax_backward(threads, self.dtype, self.outer, self.channels, self.inner, y, dy, dx)


register_layer("Softmax", SoftmaxLayer)
