"""The operation of the inner product, and engines CAFFE and PLAIN (ops/inner_product/caffe.hpp and plain.hpp).

Engine CAFFE on a device reads a bottom whose channels are last as it is: the weights have the order of its rows, and so have their
gradient and history, which stay in it. In precision bf16 the products are of bf16 if the bottom is; top and gradients are bf16
then, weights are rounded in each forward, and gradients of parameters are float32. cuBLASLt computes these.
"""

from libc.string cimport memcpy

from minicaffe.device.context cimport context
from minicaffe.kernels.types cimport BF16, FLOAT, item_size
from minicaffe.engines.channels_last cimport channels_last
from minicaffe.engines.engine cimport Blob, Context, Layout, Primitive
from minicaffe.engines.epilogue cimport ReluEpilogue
from minicaffe.ops.gemm.blas cimport Blas, blas
from minicaffe.engines.layouts cimport data_layout

from minicaffe.engines.table import CAFFE, PLAIN

cdef extern from "minicaffe/ops/inner_product/caffe.hpp" namespace "mc" nogil:
    bint inner_product_forward "MC_TYPED(mc::inner_product_forward)"(
        int dtype, const Context&, const Blas& blas, long long m, long long n, long long k, bint transpose, const void* x,
        const void* weight, const void* bias, void* y, bint relu)
    void inner_product_backward "MC_TYPED(mc::inner_product_backward)"(
        int dtype, const Context&, const Blas& blas, long long m, long long n, long long k, bint transpose, const void* x,
        const void* weight, const void* dy, void* dweight, bint add_weight, void* dbias, bint add_bias, void* dx)
    long long rounded_bias(long long n, long long k)
    void round_parameters(const Context&, long long n, long long k, const void* weight, const void* bias, void* rounded)
    bint inner_product_forward_bf16(const Context&, long long m, long long n, long long k, const void* x, const void* rounded,
                                    bint bias, void* y, bint relu, bint trial)
    bint inner_product_backward_bf16(const Context&, long long m, long long n, long long k, const void* rounded, const void* dy,
                                     void* dx, bint trial)
    bint inner_product_gradients_bf16(const Context&, long long m, long long n, long long k, const void* x, const void* dy,
                                      void* dweight, bint add_weight, void* dbias, bint add_bias)

cdef extern from "minicaffe/cuda/cublaslt.hpp" namespace "mc::cuda" nogil:
    bint has_cublaslt(const Context&)

cdef extern from "minicaffe/ops/inner_product/plain.hpp" namespace "mc::plain" nogil:
    struct InnerShape:
        long long m, n, k
        bint transpose
    void plain_forward "MC_PLAIN(mc::plain::inner_product_forward)"(int dtype, const Context&, const InnerShape&, const void* x,
                                                                    const void* weight, const void* bias, void* y)
    void plain_backward "MC_PLAIN(mc::plain::inner_product_backward)"(int dtype, const Context&, const InnerShape&, const void* dy,
                                                                      const void* weight, void* dx)
    void plain_backward_params "MC_PLAIN(mc::plain::inner_product_backward_params)"(
        int dtype, const Context&, const InnerShape&, const void* x, const void* dy, void* dweight, void* dbias)

cdef enum:
    ROWS = 48           # parts of a gradient are whole blocks of ops/inner_product/few_rows.hpp
    PART = 1 << 19      # elements, some 2 MiB
    # Up to so many rows, of learned weights and of others, rounding the weights takes longer than products of bf16 save. An
    # estimate, by the bytes of the weights and the rates of an H100.
    FEW_LEARNED = 64
    FEW = 512


cdef class InnerProduct(Operation):
    """y = x W^T + bias: x (m, k), weight (n, k), or (k, n) if `transpose`, y (m, n); bias (n,) or None."""

    epilogue_class = ReluEpilogue
    streams_weight_gradient = True


cdef class CaffeInnerProduct(Primitive):
    """Engine CAFFE; or, if it is `plain`, engine PLAIN. Its methods override Primitive's, which `Operation` calls."""

    cdef bint of_bf16                   # whether products of bf16 may be computed; False after cuBLASLt had no algorithm
    cdef Layout bottom_layout, top_layout, weight_layout    # since the last forward, also of the gradients; None: plain

    def __cinit__(self, InnerProduct op):
        self.fuses = op.dtype == FLOAT and has_cublaslt(context())
        self.of_bf16 = self.fuses and op.precision() == "bf16" and op.m > (FEW_LEARNED if op.learned else FEW)

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        cdef ReluEpilogue epilogue = op.epilogue
        cdef bint wanted = epilogue is not None and epilogue.rectifies and self.fuses, relu = False     # relu: it was computed
        cdef const void* x
        cdef const void* w
        cdef const void* b
        cdef void* y
        self.bottom_layout = self.top_layout = self.weight_layout = None
        if on.stream != NULL and not op.transpose:
            self.bottom_layout = rows_layout(op, bottom, data_layout(on, [bottom], self.of_bf16))
        if self.bottom_layout is not None:
            self.weight_layout = channels_last((op.n, *self.bottom_layout.dims[1:]), op.dtype)
            if self.bottom_layout.dtype == BF16 and not self.forward_bf16(on, op, bottom, top, weight, bias, wanted, &relu):
                self.of_bf16, self.bottom_layout, self.weight_layout = False, None, None
        if self.top_layout is None:     # not computed in bf16
            x, w = bottom.data_in_layout(on, self.bottom_layout), weight.data_in_layout(on, self.weight_layout)
            b, y = bias.data_on(on) if bias is not None else NULL, top.mutable_data_on(on)
            with nogil:
                if self.plain:
                    plain_forward(op.dtype, on, InnerShape(op.m, op.n, op.k, op.transpose), x, w, b, y)
                else:
                    relu = inner_product_forward(op.dtype, on, library[0], op.m, op.n, op.k, op.transpose, x, w, b, y, wanted)
        if relu:
            op.epilogue = None      # else the net runs the ReLU after forward
        elif wanted:
            self.fuses = False      # the next schedule has the ReLU as a step

    cdef bint forward_bf16(self, const Context& on, InnerProduct op, Blob bottom, Blob top, Blob weight, Blob bias, bint wanted,
                           bint* relu) except -1:
        """Compute forward in bf16; return False if cuBLASLt has no algorithm. Set `relu`: whether the `wanted` ReLU is computed."""
        cdef const void* from_ = bottom.data_in_layout(on, self.bottom_layout)
        cdef const void* w = weight.data_in_layout(on, self.weight_layout)
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef bint biased = bias is not None     # the first two calls below are trials, before the weights are rounded
        cdef void* rounded = op.keep(((rounded_bias(op.n, op.k) + op.n + 1) // 2,)).mutable_data_on(on)     # two bf16 a float32
        relu[0] = wanted and inner_product_forward_bf16(on, op.m, op.n, op.k, from_, rounded, biased, NULL, True, True)
        if not relu[0] and not inner_product_forward_bf16(on, op.m, op.n, op.k, from_, rounded, biased, NULL, False, True):
            return False
        self.top_layout = channels_last((op.m, op.n), BF16)
        cdef bint done
        with nogil:
            round_parameters(on, op.n, op.k, w, b, rounded)
            done = inner_product_forward_bf16(on, op.m, op.n, op.k, from_, rounded, biased,
                                              top.overwrite_data_in_layout(on, self.top_layout), relu[0], False)
        if not done:        # not for the alignment of y
            self.top_layout = None
        return done

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        cdef const void* dy = top.diff_in_layout(on, self.top_layout)
        cdef const void* rounded
        cdef bint done
        if self.top_layout is not None:
            rounded = op.kept.data_on(on)
            if inner_product_backward_bf16(on, op.m, op.n, op.k, rounded, dy, NULL, True):
                with nogil:
                    done = inner_product_backward_bf16(on, op.m, op.n, op.k, rounded, dy,
                                                       bottom.overwrite_diff_in_layout(on, self.bottom_layout), False)
                if done:
                    return 0
        cdef const void* w = weight.data_in_layout(on, self.weight_layout)
        dy = top.diff_on(on)
        cdef void* dx = bottom.overwrite_diff_in_layout(on, self.float_layout(op))
        with nogil:
            if self.plain:
                plain_backward(op.dtype, on, InnerShape(op.m, op.n, op.k, op.transpose), dy, w, dx)
            else:
                inner_product_backward(op.dtype, on, library[0], op.m, op.n, op.k, op.transpose, <const void*> NULL, w, dy,
                                       <void*> NULL, False, <void*> NULL, False, dx)

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        cdef const Blas* library = blas()
        if op.consumer is not None and weight is not None and on.stream == NULL and not op.transpose and not self.plain:
            consumer, op.consumer = op.consumer, None       # None: the gradient was passed on (net/gradients.pyx)
            self.stream_weight_gradient(on, op, bottom, top, consumer)
            weight = None
        cdef Layout layout = self.bottom_layout
        cdef const void* values = bottom.data_in_layout(on, layout) if weight is not None else NULL
        cdef const void* dy = top.diff_in_layout(on, self.top_layout)
        cdef bint add_weight = True, add_bias = True, done = False      # gradient_on sets False if there is nothing to add to
        cdef void* dweight = NULL
        cdef void* dbias = NULL
        if weight is not None:      # the formula adds
            dweight = weight.mutable_diff_on(on) if self.plain else weight.gradient_on(on, self.weight_layout, &add_weight)
        if bias is not None:
            dbias = bias.mutable_diff_on(on) if on.stream == NULL else bias.gradient_on(on, None, &add_bias)
        if self.top_layout is not None:
            with nogil:
                done = inner_product_gradients_bf16(on, op.m, op.n, op.k, values, dy, dweight, add_weight, dbias, add_bias)
            if done:
                return 0
            layout, dbias = self.float_layout(op), NULL     # the bias was computed, the gradient of the weights was not
            values, dy = bottom.data_in_layout(on, layout), top.diff_on(on)
        with nogil:
            if self.plain:
                plain_backward_params(op.dtype, on, InnerShape(op.m, op.n, op.k, op.transpose), values, dy, dweight, dbias)
            else:
                inner_product_backward(op.dtype, on, library[0], op.m, op.n, op.k, op.transpose, values, <const void*> NULL, dy,
                                       dweight, add_weight, dbias, add_bias, <void*> NULL)

    cdef Layout float_layout(self, InnerProduct op):
        """Return the bottom's layout with elements of its own type, for products that are not of bf16; None: plain."""
        return channels_last(self.bottom_layout.dims, op.dtype) if self.bottom_layout is not None else None

    cdef int stream_weight_gradient(self, const Context& on, InnerProduct op, Blob bottom, Blob top, consumer) except -1:
        """Pass each part of the weights' gradient, while it is in the cache, to ``consumer((blob, first element, count))``."""
        cdef const Blas* library = blas()
        cdef long long item = item_size(op.dtype), first, i, high, rows = min(max(PART // op.k // ROWS, 1) * ROWS, op.n)
        cdef char* gradient = <char*> op.scratch(on, rows * (op.k + op.m))
        cdef char* part = gradient + rows * op.k * item     # of the top's diff
        cdef const char* dy = <const char*> top.diff_on(on)
        cdef const void* x = bottom.data_on(on)
        for first in range(0, op.n, rows):
            high = min(rows, op.n - first)
            for i in range(op.m):
                memcpy(part + i * high * item, dy + (i * op.n + first) * item, high * item)
            with nogil:
                inner_product_backward(op.dtype, on, library[0], op.m, high, op.k, False, x, <const void*> NULL,
                                       <const void*> part, <void*> gradient, False, <void*> NULL, False, <void*> NULL)
            consumer((op.memory, first * op.k, high * op.k))    # the part is at the begin of this blob


cdef Layout rows_layout(InnerProduct op, Blob bottom, Layout layout):
    """Return `layout` if its images, on a device, are the rows of the product, for any shape of the blob (Flatten); else None."""
    cdef size_t nbytes = bottom.count * item_size(bottom.dtype)
    fits = layout is not None and layout.on_device and layout.dims[0] == op.m and layout.plain_nbytes == nbytes
    return layout if fits else None


CAFFE.computes(InnerProduct, CaffeInnerProduct)
PLAIN.computes(InnerProduct, CaffeInnerProduct)
