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
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        return self.product(on, operation, (<Convolution> operation).transposed, x.data_on(on), weight, bias, y.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef bint to_image = not (<Convolution> operation).transposed
        return self.product(on, operation, to_image, y.diff_on(on), weight, None, x.mutable_diff_on(on))

    cdef int product(self, const Context& on, Convolution op, bint to_image, const void* from_, Blob weight, Blob bias,
                     void* to) except -1:
        """Columns from the image, or with `to_image` the image from columns."""
        cdef const void* w = weight.data_on(on)
        cdef object _kept = weight.data_memory.host      # a net in another thread may give up the weights' plain order
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        with nogil:
            if to_image:
                conv_backward_data(on, library[0], op.dtype, op.shape, from_, w, b, to, scratch)
            else:
                conv_forward(on, library[0], op.dtype, op.shape, from_, w, b, to, scratch)

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* bottom
        cdef const void* top
        cdef void* gradient
        cdef void* scratch
        cdef bint add = True
        cdef const Blas* library = blas()
        if bias is not None:
            backward_bias(on, op, y, bias)
        if weight is not None:
            bottom, top = x.data_on(on), y.diff_on(on)
            scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
            may_overwrite = on.stream != NULL and x.count and y.count
            gradient = weight.gradient_on(on, None, &add) if may_overwrite else weight.mutable_diff_on(on)
            if op.transposed:
                bottom, top = top, bottom
            with nogil:
                conv_backward_weights(on, library[0], op.dtype, op.shape, bottom, top, gradient, add, scratch)


CAFFE.computes(Convolution, CaffeConvolution)
