"""The inner product by engine CAFFE (ops/inner_product/caffe.hpp)."""

from libc.string cimport memcpy

from minicaffe.kernels.types cimport item_size
from minicaffe.ops.engine cimport Blob, Context, Operation, Primitive
from minicaffe.ops.gemm.blas cimport Blas, blas
from minicaffe.ops.inner_product.operation cimport InnerProduct

from minicaffe.ops.engines import CAFFE

cdef extern from "minicaffe/ops/inner_product/caffe.hpp" namespace "mc" nogil:
    void inner_product_forward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                               const void* x, const void* weight, const void* bias, void* y)
    void inner_product_backward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                                const void* x, const void* weight, const void* dy, void* dweight, bint fresh, void* dbias,
                                void* dx)

cdef enum:
    ROWS = 48           # parts of a gradient are whole blocks of ops/inner_product/few_rows.hpp
    PART = 1 << 19      # elements, some 2 MiB


cdef class CaffeInnerProduct(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        with nogil:
            inner_product_forward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose, x.data_on(on), weight.data_on(on),
                                  bias.data_on(on) if bias is not None else NULL, y.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        with nogil:
            inner_product_backward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose, NULL, weight.data_on(on),
                                   y.diff_on(on), NULL, False, NULL, x.mutable_diff_on(on))

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        if op.consumer is not None and weight is not None and on.stream == NULL and not op.transpose:
            consumer, op.consumer = op.consumer, None
            self.stream_weight_gradient(on, op, x, y, consumer)
            weight = None
        cdef bint fresh = weight is not None and on.stream == NULL and weight.diff_memory.claim_lazy_zeros()
        with nogil:
            inner_product_backward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose,
                                   x.data_on(on) if weight is not None else NULL, NULL, y.diff_on(on),
                                   weight.mutable_diff_on(on) if weight is not None else NULL, fresh,
                                   bias.mutable_diff_on(on) if bias is not None else NULL, NULL)

    cdef int stream_weight_gradient(self, const Context& on, InnerProduct op, Blob x, Blob y, consumer) except -1:
        """Pass each part of the weights' gradient to `consumer` as soon as it is computed, while it is in the cache."""
        cdef const Blas* library = blas()
        cdef long long item = item_size(op.dtype), first, i, high, rows = min(max(PART // op.k // ROWS, 1) * ROWS, op.n)
        cdef char* gradient = <char*> op.scratch(on, rows * (op.k + op.m))
        cdef char* part = gradient + rows * op.k * item     # of y's diff
        cdef const char* dy = <const char*> y.diff_on(on)
        for first in range(0, op.n, rows):
            high = min(rows, op.n - first)
            for i in range(op.m):
                memcpy(part + i * high * item, dy + (i * op.n + first) * item, high * item)
            with nogil:
                inner_product_backward(on, library[0], op.dtype, op.m, high, op.k, False, x.data_on(on), NULL, part, gradient, True,
                                       NULL, NULL)
            consumer((op.memory, first * op.k, high * op.k))


CAFFE.computes(InnerProduct, CaffeInnerProduct)
