"""Softmax along one axis: engine CAFFE is ops/softmax/caffe.hpp, engine CUDNN ops/softmax/cudnn.hpp."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive

from minicaffe.ops.engine import offer

cdef extern from "minicaffe/ops/softmax/caffe.hpp" namespace "mc" nogil:
    void softmax_forward(const Context&, int dtype, long long outer, long long channels, long long inner, const void* x, void* y)
    void softmax_backward(const Context&, int dtype, long long outer, long long channels, long long inner, const void* y,
                          const void* dy, void* dx)

cdef extern from "minicaffe/ops/softmax/cudnn.hpp" namespace "mc::cuda" nogil:
    const char* cudnn_reason(const Context&)
    bint cudnn_softmax_forward(const Context&, int dtype, long long outer, long long channels, long long inner, const void* x,
                               void* y)
    bint cudnn_softmax_backward(const Context&, int dtype, long long outer, long long channels, long long inner, const void* y,
                                const void* dy, void* dx)


cdef class Softmax(Operation):
    """``y = exp(x - max x) / sum exp(x - max x)`` along the channels of (outer, channels, inner), ``dx = y (dy - sum dy y)``."""

    cdef int see(self, Blob x, int axis) except -1:
        """Set the shape: that of x, whose channels are `axis`."""
        self.outer, self.channels = x.count_range(0, axis), x.dims[axis]
        self.inner = x.count_range(axis + 1, x.num_axes)
        return self.changed()

    cdef int forward(self, const Context& on, Blob x, Blob y) except -1:
        """y from x, which may be the same blob"""
        return (<SoftmaxPrimitive> self.primitive(on)).forward(on, self, x, y)

    cdef int backward(self, const Context& on, Blob y, Blob x) except -1:
        """dx from y and dy"""
        return (<SoftmaxPrimitive> self.primitive(on)).backward(on, self, y, x)


cdef class SoftmaxPrimitive(Primitive):
    """Engine CAFFE."""

    def __cinit__(self):
        self.engine = "CAFFE"

    cdef int forward(self, const Context& on, Softmax op, Blob x, Blob y) except -1:
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        with nogil:
            softmax_forward(on, op.dtype, op.outer, op.channels, op.inner, from_, to)
        return 0

    cdef int backward(self, const Context& on, Softmax op, Blob y, Blob x) except -1:
        cdef const void* top = y.data_on(on)
        cdef const void* from_ = y.diff_on(on)
        cdef void* to = x.mutable_diff_on(on)
        with nogil:
            softmax_backward(on, op.dtype, op.outer, op.channels, op.inner, top, from_, to)
        return 0


cdef class CudnnSoftmax(SoftmaxPrimitive):
    """Engine CUDNN; engine CAFFE computes what cuDNN refuses."""

    def __cinit__(self):
        self.engine = "CUDNN"

    cdef int forward(self, const Context& on, Softmax op, Blob x, Blob y) except -1:
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef bint done
        with nogil:
            done = cudnn_softmax_forward(on, op.dtype, op.outer, op.channels, op.inner, from_, to)
        return 0 if done or self.refuse(on, op) else SoftmaxPrimitive.forward(self, on, op, x, y)

    cdef int backward(self, const Context& on, Softmax op, Blob y, Blob x) except -1:
        cdef const void* top = y.data_on(on)
        cdef const void* from_ = y.diff_on(on)
        cdef void* to = x.mutable_diff_on(on)
        cdef bint done
        with nogil:
            done = cudnn_softmax_backward(on, op.dtype, op.outer, op.channels, op.inner, top, from_, to)
        return 0 if done or self.refuse(on, op) else SoftmaxPrimitive.backward(self, on, op, y, x)

    cdef int refuse(self, const Context& on, Softmax op) except -1:
        op.refusals["CUDNN"] = (<bytes> cudnn_reason(on)).decode()
        return 0


_caffe = SoftmaxPrimitive()     # has no state of its own
_cudnn = CudnnSoftmax()
offer(Softmax, "CAFFE", lambda operation: _caffe)
offer(Softmax, "CUDNN", lambda operation: _cudnn)
