"""The inner product: what a layer asks for, and what engines CAFFE (ops/inner_product/caffe.hpp) and ONEDNN answer.

Engine ONEDNN (ops/inner_product/onednn.hpp) computes in bf16 only.
"""

from libc.stdint cimport int64_t

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.kernels.types cimport BF16
from minicaffe.memory.layout cimport Layout
from minicaffe.onednn.library cimport Array, Library, PrivateLayout, layout_of, library
from minicaffe.ops.engine cimport Operation, Primitive, refuse
from minicaffe.ops.gemm.blas cimport Blas, blas

from minicaffe.ops.engine import Refusal, get_precision, offer

cdef extern from "minicaffe/ops/inner_product/caffe.hpp" namespace "mc" nogil:
    void inner_product_forward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                               const void* x, const void* weight, const void* bias, void* y)
    void inner_product_backward(const Context&, const Blas& blas, int dtype, long long m, long long n, long long k, bint transpose,
                                const void* x, const void* weight, const void* dy, void* dweight, void* dbias, void* dx)

cdef extern from "minicaffe/ops/inner_product/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnInner "mc::onednn::Inner":
        Array x, w, dy
        void make(const Library*, int axes, const int64_t* dims, const Array* image, int64_t outputs, int threads) except +refuse
        void forward(const void* x, const void* w, const void* b, void* y) except +refuse
        void make_backward_data() except +refuse
        size_t data_scratch()
        void backward_data(const void* w, const void* dy, void* dx, void* scratch) except +refuse
        void make_backward_weights() except +refuse
        size_t weights_scratch()
        void backward_weights(const void* x, const void* dy, float* dw, float* db, float* scratch) except +refuse


cdef class InnerProduct(Operation):
    """y = x W^T + bias: x (m, k), weight (n, k), or (k, n) if `transpose`, y (m, n); bias (n,) or None."""

    def __cinit__(self, *_):
        self.by_layout = True


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
                                   y.diff_on(on), NULL, NULL, x.mutable_diff_on(on))

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        with nogil:
            inner_product_backward(on, library[0], op.dtype, op.m, op.n, op.k, op.transpose,
                                   x.data_on(on) if weight is not None else NULL, NULL, y.diff_on(on),
                                   weight.mutable_diff_on(on) if weight is not None else NULL,
                                   bias.mutable_diff_on(on) if bias is not None else NULL, NULL)


cdef class OnednnInnerProduct(Primitive):
    cdef OnednnInner inner
    cdef Layout x, w, dy

    def __cinit__(self, InnerProduct op):
        if get_precision() != "bf16":
            raise Refusal("an inner product in float32, in which engine CAFFE's BLAS is as fast")
        if op.transpose:
            raise Refusal("an inner product with transpose: true")
        cdef tuple dims = (op.m, op.k)
        cdef const Array* image = NULL
        cdef int64_t[12] sizes
        cdef Layout layout = op.layout
        if layout is not None and layout.dtype == BF16 and layout.dims[0] == op.m and layout.plain_nbytes == 4 * op.m * op.k:
            dims = layout.dims
            image = &(<PrivateLayout> layout).array
        for axis, size in enumerate(dims):
            sizes[<int> axis] = size
        self.inner.make(library(), len(dims), sizes, image, op.n, op.threads)
        self.x, self.w = layout_of(self.inner.x, dims), layout_of(self.inner.w, (op.n, *dims[1:]))
        self.dy = layout_of(self.inner.dy, (op.m, op.n))

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        with nogil:
            self.inner.forward(x.data_in(on, self.x), weight.data_in(on, self.w), bias.data_on(on) if bias is not None else NULL,
                               y.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        self.inner.make_backward_data()
        cdef void* scratch = operation.scratch(on, (self.inner.data_scratch() + 3) // 4)
        with nogil:
            self.inner.backward_data(weight.data_in(on, self.w), y.diff_in(on, self.dy), x.overwrite_diff_in(on, self.x), scratch)

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        if weight is None:
            raise Refusal("the gradient of a bias alone")
        self.inner.make_backward_weights()
        cdef float* scratch = <float*> operation.scratch(on, self.inner.weights_scratch() // 4)
        with nogil:
            self.inner.backward_weights(x.data_in(on, self.x), y.diff_in(on, self.dy), <float*> weight.mutable_diff_on(on),
                                        <float*> (bias.mutable_diff_on(on) if bias is not None else NULL), scratch)


offer(InnerProduct, "CAFFE", CaffeInnerProduct)
offer(InnerProduct, "ONEDNN", OnednnInnerProduct)
