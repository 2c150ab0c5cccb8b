"""Activation: ReLU, Sigmoid and TanH, by engine CAFFE. All others are the functors of their layers (kernel.hpp)."""

from minicaffe.ops.engine cimport Blob, Context, Layout, Operation, Primitive
from minicaffe.ops.layouts cimport zero_padding, data_layout, diff_layout, element, in_lanes, stored

from minicaffe.ops.engines import CAFFE

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void relu_forward "mc::map1<mc::ReluForward>"(const Context&, int dtype, long long n, const void* x, void* y, double slope)
    void relu_backward "mc::map2<mc::ReluBackward>"(const Context&, int dtype, long long n, const void* x, const void* dy, void* dx,
                                                    double slope)
    void sigmoid_forward "mc::map1<mc::SigmoidForward>"(const Context&, int dtype, long long n, const void* x, void* y)
    void sigmoid_backward "mc::map2<mc::SigmoidBackward>"(const Context&, int dtype, long long n, const void* y, const void* dy,
                                                          void* dx)
    void tanh_forward "mc::map1<mc::TanhForward>"(const Context&, int dtype, long long n, const void* x, void* y)
    void tanh_backward "mc::map2<mc::TanhBackward>"(const Context&, int dtype, long long n, const void* y, const void* dy, void* dx)


cdef class Activation(Operation):
    """y = f(x) for each element; x and y may be one blob."""


cdef class CaffeActivation(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Activation op = operation
        cdef Layout layout = data_layout(on, [x], True)
        if op.function != RELU:     # which gives 0 for 0
            layout = in_lanes(layout)
        cdef int dtype = element(layout, x)
        cdef long long count = stored(layout, x)
        cdef const void* from_ = x.data_in_layout(on, layout)
        cdef void* to = y.overwrite_data_in_layout(on, layout)
        with nogil:
            if op.function == RELU:
                relu_forward(on, dtype, count, from_, to, op.slope)
            elif op.function == SIGMOID:
                sigmoid_forward(on, dtype, count, from_, to)
            else:
                tanh_forward(on, dtype, count, from_, to)
        if op.function != RELU:
            zero_padding(layout, y, to)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Activation op = operation
        cdef Layout layout = diff_layout(on, [y], True) or data_layout(on, [x], True)   # dx is 0 where dy is
        if op.function != RELU:
            layout = in_lanes(layout)
        cdef int dtype = element(layout, x)
        cdef long long count = stored(layout, x)
        cdef const void* known = (x if op.function == RELU else y).data_in_layout(on, layout)
        cdef const void* dy = y.diff_in_layout(on, layout)
        cdef void* dx = x.overwrite_diff_in_layout(on, layout)
        with nogil:
            if op.function == RELU:
                relu_backward(on, dtype, count, known, dy, dx, op.slope)
            elif op.function == SIGMOID:
                sigmoid_backward(on, dtype, count, known, dy, dx)
            else:
                tanh_backward(on, dtype, count, known, dy, dx)


CAFFE.computes(Activation, CaffeActivation)
