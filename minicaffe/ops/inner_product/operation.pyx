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
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef const void* w = weight.data_in(on, self.w)
        cdef const void* from_ = x.data_in(on, self.x)
        cdef void* to = y.mutable_data_on(on)
        with nogil:
            self.inner.forward(from_, w, b, to)
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        self.inner.make_backward_data()
        cdef const void* w = weight.data_in(on, self.w)
        cdef const void* from_ = y.diff_in(on, self.dy)
        cdef void* to = x.overwrite_diff_in(on, self.x)
        cdef void* scratch = operation.scratch(on, (self.inner.data_scratch() + 3) // 4)
        with nogil:
            self.inner.backward_data(w, from_, to, scratch)
        return x.wrote_diff()

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        if weight is None:
            raise Refusal("the gradient of a bias alone")
        self.inner.make_backward_weights()
        cdef const void* bottom = x.data_in(on, self.x)
        cdef const void* top = y.diff_in(on, self.dy)
        cdef float* dw = <float*> weight.mutable_diff_on(on)
        cdef float* db = <float*> bias.mutable_diff_on(on) if bias is not None else NULL
        cdef float* scratch = <float*> operation.scratch(on, self.inner.weights_scratch() // 4)
        with nogil:
            self.inner.backward_weights(bottom, top, dw, db, scratch)
        return 0


offer(InnerProduct, "CAFFE", CaffeInnerProduct)
offer(InnerProduct, "ONEDNN", OnednnInnerProduct)
