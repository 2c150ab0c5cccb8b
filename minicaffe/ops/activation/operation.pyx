"""Activation: ReLU, Sigmoid and TanH, which libraries compute, too. All others are the functors of their layers (kernel.hpp)."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.engine cimport Operation, Primitive
from minicaffe.ops.layouts cimport data_layout, diff_layout, stored

from minicaffe.ops.engine import offer

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void relu_forward "mc::map1<mc::ReluForward>"(const Context&, int dtype, long long n, const void* x, void* y, double slope)
    void relu_backward "mc::map2<mc::ReluBackward>"(const Context&, int dtype, long long n, const void* x, const void* dy, void* dx,
                                                    double slope)
    void sigmoid_forward "mc::map1<mc::SigmoidForward>"(const Context&, int dtype, long long n, const void* x, void* y)
    void sigmoid_backward "mc::map2<mc::SigmoidBackward>"(const Context&, int dtype, long long n, const void* y, const void* dy,
                                                          void* dx)
    void tanh_forward "mc::map1<mc::TanhForward>"(const Context&, int dtype, long long n, const void* x, void* y)
    void tanh_backward "mc::map2<mc::TanhBackward>"(const Context&, int dtype, long long n, const void* y, const void* dy, void* dx)

cdef extern from "minicaffe/ops/activation/cudnn.hpp" namespace "mc::cuda" nogil:
    const int kEngineCudnn
    bint cudnn_activation_forward(const Context&, int engine, int dtype, int mode, long long n, const void* x, void* y)
    bint cudnn_activation_backward(const Context&, int engine, int dtype, int mode, long long n, const void* x, const void* y,
                                   const void* dy, void* dx)


cdef class Activation(Operation):
    """y = f(x) for each element; x and y may be one blob."""

    cdef int forward(self, const Context& on, Blob x, Blob y) except -1:
        """y from x"""
        return (<ActivationPrimitive> self.primitive(on)).forward(on, self, x, y)

    cdef int backward(self, const Context& on, Blob x, Blob y) except -1:
        """dx from dy"""
        return (<ActivationPrimitive> self.primitive(on)).backward(on, self, x, y)


cdef class ActivationPrimitive(Primitive):
    """Engine CAFFE."""

    def __cinit__(self):
        self.engine = "CAFFE"

    cdef int forward(self, const Context& on, Activation op, Blob x, Blob y) except -1:
        cdef Layout layout = data_layout(on, [x]) if op.function == RELU else None   # which gives 0 for 0
        cdef long long count = stored(layout, x)
        cdef const void* from_ = x.data_in(on, layout)
        cdef void* to = y.overwrite_data_in(on, layout)
        with nogil:
            if op.function == RELU:
                relu_forward(on, op.dtype, count, from_, to, op.slope)
            elif op.function == SIGMOID:
                sigmoid_forward(on, op.dtype, count, from_, to)
            else:
                tanh_forward(on, op.dtype, count, from_, to)
        return y.wrote_data()

    cdef int backward(self, const Context& on, Activation op, Blob x, Blob y) except -1:
        cdef Layout layout = diff_layout(on, [y]) or data_layout(on, [x]) if op.function == RELU else None
        cdef long long count = stored(layout, x)
        cdef const void* known = (x if op.function == RELU else y).data_in(on, layout)
        cdef const void* dy = y.diff_in(on, layout)
        cdef void* dx = x.overwrite_diff_in(on, layout)
        with nogil:
            if op.function == RELU:
                relu_backward(on, op.dtype, count, known, dy, dx, op.slope)
            elif op.function == SIGMOID:
                sigmoid_backward(on, op.dtype, count, known, dy, dx)
            else:
                tanh_backward(on, op.dtype, count, known, dy, dx)
        return x.wrote_diff()


cdef class CudnnActivation(ActivationPrimitive):
    """Engine CUDNN; engine CAFFE computes what cuDNN refuses."""

    def __cinit__(self):
        self.engine = "CUDNN"

    cdef int forward(self, const Context& on, Activation op, Blob x, Blob y) except -1:
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef bint done
        with nogil:
            done = cudnn_activation_forward(on, kEngineCudnn, op.dtype, op.function, x.count, from_, to)
        return 0 if done else ActivationPrimitive.forward(self, on, op, x, y)

    cdef int backward(self, const Context& on, Activation op, Blob x, Blob y) except -1:
        cdef const void* from_ = x.data_on(on)
        cdef const void* to = y.data_on(on)
        cdef const void* dy = y.diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef bint done
        with nogil:
            done = cudnn_activation_backward(on, kEngineCudnn, op.dtype, op.function, x.count, from_, to, dy, dx)
        return 0 if done else ActivationPrimitive.backward(self, on, op, x, y)


_caffe = ActivationPrimitive()     # has no state of its own
_cudnn = CudnnActivation()
offer(Activation, "CAFFE", lambda operation: _caffe)
offer(Activation, "CUDNN", lambda operation: _cudnn)
