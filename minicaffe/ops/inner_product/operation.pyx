"""The inner product: what a layer asks for, and what engines CAFFE (ops/inner_product/caffe.hpp) and ONEDNN answer.

Engine ONEDNN (ops/inner_product/onednn.hpp) computes in bf16 only.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.kernels.types cimport item_size
from minicaffe.onednn.library cimport Library, library
from minicaffe.ops.engine cimport Operation, Primitive, refuse
from minicaffe.ops.gemm.blas cimport Blas, blas
from minicaffe.ops.weighted cimport OnednnWeighted, Weighted

from minicaffe.ops.engine import Refusal, get_precision, offer, preferred

cdef extern from "minicaffe/ops/inner_product/caffe.hpp" namespace "mc" nogil:
    void inner_product_forward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                               const void* x, const void* weight, const void* bias, void* y)
    void inner_product_backward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                                const void* x, const void* weight, const void* dy, void* dweight, bint fresh, void* dbias,
                                void* dx)

cdef extern from "minicaffe/ops/inner_product/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnInner "mc::onednn::Inner"(Weighted):
        void make(const Library*, int64_t rows, int64_t inputs, int64_t outputs, int threads) except +refuse


cdef enum:
    ROWS = 48           # parts of a gradient are whole blocks of ops/inner_product/few_rows.hpp
    PART = 1 << 19      # elements, some 2 MiB
    FEW = 128           # rows, up to which to round the weights in each step takes longer than bf16 saves (measured)


cdef class InnerProduct(Operation):
    """y = x W^T + bias: x (m, k), weight (n, k), or (k, n) if `transpose`, y (m, n); bias (n,) or None."""

    learns_in_parts = True


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
            self.learn_in_parts(on, op, x, y, consumer)
            weight = None
        cdef bint fresh = weight is not None and on.stream == NULL and weight.diff_memory.overwrite_zeros()
        with nogil:
            inner_product_backward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose,
                                   x.data_on(on) if weight is not None else NULL, NULL, y.diff_on(on),
                                   weight.mutable_diff_on(on) if weight is not None else NULL, fresh,
                                   bias.mutable_diff_on(on) if bias is not None else NULL, NULL)

    cdef int learn_in_parts(self, const Context& on, InnerProduct op, Blob x, Blob y, consumer) except -1:
        """Let `consumer` have each part of the weights' gradient as soon as it is computed, and still in the cache."""
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


cdef class OnednnInnerProduct(OnednnWeighted):
    cdef OnednnInner inner

    def __cinit__(self, InnerProduct op):
        if get_precision() != "bf16":
            raise Refusal("an inner product in float32, in which engine CAFFE's BLAS is as fast")
        if op.transpose:
            raise Refusal("an inner product with transpose: true")
        if op.learned and op.m <= FEW and not preferred():
            raise Refusal(f"an inner product of {op.m} rows, for up to {FEW} of which rounding the weights in each step takes longer "
                          "than bf16 saves; MINICAFFE_ENGINE=onednn computes them all the same")
        self.inner.make(library(), op.m, op.k, op.n, op.threads)
        self.see(&self.inner)


offer(InnerProduct, "CAFFE", CaffeInnerProduct)
offer(InnerProduct, "ONEDNN", OnednnInnerProduct)
