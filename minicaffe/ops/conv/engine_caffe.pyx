"""Convolution by engine CAFFE (ops/conv/caffe.hpp)."""

from minicaffe.ops.conv.operation cimport Convolution, ConvShape, backward_bias
from minicaffe.engines.engine cimport Blob, Context, Operation, Primitive
from minicaffe.ops.gemm.blas cimport Blas, blas

from minicaffe.engines.table import CAFFE

cdef extern from "minicaffe/ops/conv/caffe.hpp" namespace "mc" nogil:
    long long conv_scratch(const Context&, int dtype, const ConvShape& shape)
    void conv_forward(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* x, const void* weight,
                      const void* bias, void* y, void* scratch)
    void conv_backward_data(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* dy,
                            const void* weight, const void* bias, void* dx, void* scratch)
    void conv_backward_weights(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* x,
                               const void* dy, void* dweight, bint add, void* scratch)


cdef class CaffeConvolution(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* x = bottom.data_on(on)
        cdef const void* w = weight.data_on(on)
        cdef object _kept = weight.data_memory.host      # a net in another thread may give up the weights' plain order
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef void* y = top.mutable_data_on(on)
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        with nogil:
            if op.transposed:
                conv_backward_data(on, library[0], op.dtype, op.shape, x, w, b, y, scratch)
            else:
                conv_forward(on, library[0], op.dtype, op.shape, x, w, b, y, scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* dy = top.diff_on(on)
        cdef const void* w = weight.data_on(on)
        cdef object _kept = weight.data_memory.host
        cdef void* dx = bottom.mutable_diff_on(on)
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        with nogil:
            if op.transposed:
                conv_forward(on, library[0], op.dtype, op.shape, dy, w, NULL, dx, scratch)
            else:
                conv_backward_data(on, library[0], op.dtype, op.shape, dy, w, NULL, dx, scratch)

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* image
        cdef const void* columns
        cdef void* gradient
        cdef void* scratch
        cdef bint add = True
        cdef const Blas* library = blas()
        if bias is not None:
            backward_bias(on, op, top, bias)
        if weight is not None:
            image, columns = bottom.data_on(on), top.diff_on(on)
            scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
            may_overwrite = on.stream != NULL and bottom.count and top.count
            gradient = weight.gradient_on(on, None, &add) if may_overwrite else weight.mutable_diff_on(on)
            if op.transposed:
                image, columns = columns, image
            with nogil:
                conv_backward_weights(on, library[0], op.dtype, op.shape, image, columns, gradient, add, scratch)


CAFFE.computes(Convolution, CaffeConvolution)
