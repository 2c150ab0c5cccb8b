"""Softmax along one axis, by engine CAFFE (ops/softmax/kernel.hpp)."""

from minicaffe.ops.engine cimport Blob, Context, Operation, Primitive

from minicaffe.ops.engines import CAFFE

cdef extern from "minicaffe/ops/softmax/kernel.hpp" namespace "mc" nogil:
    void softmax_forward(const Context&, int dtype, long long outer, long long channels, long long inner, const void* x, void* y)
    void softmax_backward(const Context&, int dtype, long long outer, long long channels, long long inner, const void* y,
                          const void* dy, void* dx)


cdef class Softmax(Operation):
    """``y = exp(x - max x) / sum exp(x - max x)`` along the channels of (outer, channels, inner), ``dx = y (dy - sum dy y)``."""

    cpdef int see(self, Blob x, int axis) except -1:
        """Set the shape: that of x, whose channels are `axis`."""
        self.outer, self.channels = x.count_range(0, axis), x.dims[axis]
        self.inner = x.count_range(axis + 1, x.num_axes)
        return self.changed()


cdef class CaffeSoftmax(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Softmax op = operation
        with nogil:
            softmax_forward(on, op.dtype, op.outer, op.channels, op.inner, x.data_on(on), y.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Softmax op = operation
        with nogil:
            softmax_backward(on, op.dtype, op.outer, op.channels, op.inner, y.data_on(on), y.diff_on(on), x.mutable_diff_on(on))


CAFFE.computes(Softmax, CaffeSoftmax)
