"""The inner product: what a layer asks for, and what engine CAFFE (ops/inner_product/caffe.hpp) answers."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive
from minicaffe.ops.gemm.blas cimport Blas, blas

from minicaffe.ops.engine import offer

cdef extern from "minicaffe/ops/inner_product/caffe.hpp" namespace "mc" nogil:
    void inner_product_forward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                               const void* x, const void* weight, const void* bias, void* y)
    void inner_product_backward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                                const void* x, const void* weight, const void* dy, void* dweight, void* dbias, void* dx)


cdef class InnerProduct(Operation):
    """y = x W^T + bias: x (m, k), weight (n, k), or (k, n) if `transpose`, y (m, n); bias (n,) or None."""


cdef class CaffeInnerProduct(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const void* from_ = x.data_on(on)
        cdef const void* w = weight.data_on(on)
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef void* to = y.mutable_data_on(on)
        cdef const Blas* library = blas()
        with nogil:
            inner_product_forward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose, from_, w, b, to)
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const void* w = weight.data_on(on)
        cdef const void* dy = y.diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef const Blas* library = blas()
        with nogil:
            inner_product_backward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose, NULL, w, dy, NULL, NULL, dx)
        return 0

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const void* from_ = x.data_on(on) if weight is not None else NULL
        cdef const void* dy = y.diff_on(on)
        cdef void* dweight = weight.mutable_diff_on(on) if weight is not None else NULL
        cdef void* dbias = bias.mutable_diff_on(on) if bias is not None else NULL
        cdef const Blas* library = blas()
        with nogil:
            inner_product_backward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose, from_, NULL, dy, dweight, dbias, NULL)
        return 0


offer(InnerProduct, "CAFFE", CaffeInnerProduct)
