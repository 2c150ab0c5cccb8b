"""The inner product by engine CAFFE (ops/inner_product/caffe.hpp).

On a device a bottom whose channels are last is read as it is: the weights have the order of its rows, and so have their gradient
and history, which stay in it.
"""

from libc.string cimport memcpy

from minicaffe.kernels.types cimport item_size
from minicaffe.engines.channels_last cimport channels_last
from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive
from minicaffe.ops.gemm.blas cimport Blas, blas
from minicaffe.ops.inner_product.operation cimport InnerProduct
from minicaffe.engines.layouts cimport data_layout

from minicaffe.engines.table import CAFFE

cdef extern from "minicaffe/ops/inner_product/caffe.hpp" namespace "mc" nogil:
    void inner_product_forward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                               const void* x, const void* weight, const void* bias, void* y)
    void inner_product_backward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                                const void* x, const void* weight, const void* dy, void* dweight, bint add_weight, void* dbias,
                                bint add_bias, void* dx)

cdef enum:
    ROWS = 48           # parts of a gradient are whole blocks of ops/inner_product/few_rows.hpp
    PART = 1 << 19      # elements, some 2 MiB


cdef class CaffeInnerProduct(Primitive):
    cdef Layout x, weight       # of bottom and weights, and of their gradients, since the last forward; None: plain

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        self.x = rows_layout(op, x, data_layout(on, [x])) if on.stream != NULL and not op.transpose else None
        self.weight = channels_last((op.n, *self.x.dims[1:]), op.dtype) if self.x is not None else None
        with nogil:
            inner_product_forward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose, x.data_in_layout(on, self.x),
                                  weight.data_in_layout(on, self.weight), bias.data_on(on) if bias is not None else NULL,
                                  y.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        with nogil:
            inner_product_backward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose, NULL,
                                   weight.data_in_layout(on, self.weight), y.diff_on(on), NULL, False, NULL, False,
                                   x.overwrite_diff_in_layout(on, self.x))

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        if op.consumer is not None and weight is not None and on.stream == NULL and not op.transpose:
            consumer, op.consumer = op.consumer, None
            self.stream_weight_gradient(on, op, x, y, consumer)
            weight = None
        cdef const void* bottom = x.data_in_layout(on, self.x) if weight is not None else NULL
        cdef bint add_weight = True, add_bias = True
        cdef void* dweight = weight.gradient_on(on, self.weight, &add_weight) if weight is not None else NULL
        cdef void* dbias = NULL
        if bias is not None:
            dbias = bias.mutable_diff_on(on) if on.stream == NULL else bias.gradient_on(on, None, &add_bias)
        with nogil:
            inner_product_backward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose, bottom, NULL, y.diff_on(on), dweight,
                                   add_weight, dbias, add_bias, NULL)

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
                inner_product_backward(on, library[0], op.dtype, op.m, high, op.k, False, x.data_on(on), NULL, part, gradient,
                                       False, NULL, False, NULL)
            consumer((op.memory, first * op.k, high * op.k))


cdef Layout rows_layout(InnerProduct op, Blob x, Layout layout):
    """Return `layout` if its images, on a device, are the rows of the product, whatever the shape of the blob (Flatten)."""
    cdef size_t nbytes = x.count * item_size(x.dtype)
    fits = layout is not None and layout.on_device and layout.dims[0] == op.m and layout.plain_nbytes == nbytes
    return layout if fits else None


CAFFE.computes(InnerProduct, CaffeInnerProduct)
