"""Engine PLAIN: convolution, pooling, activations, inner product, LRN, softmax and BatchNorm as their formulas, on the CPU.

It is for reading, and for comparing other engines with it: ``MINICAFFE_ENGINE=plain``. The loops are in ops/*/plain.hpp. They run
in one thread, with the GIL, in plain order, and fuse nothing.
"""

from minicaffe.device.threads cimport num_threads
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.engines.engine cimport Blob, Context, Operation, Primitive
from minicaffe.ops.activation.operation cimport Activation, Function
from minicaffe.ops.batch_norm.operation cimport BatchNorm, Standardize
from minicaffe.ops.conv.operation cimport Convolution, ConvShape
from minicaffe.ops.inner_product.operation cimport InnerProduct
from minicaffe.ops.lrn.operation cimport LRN, LrnShape
from minicaffe.ops.pooling.operation cimport STOCHASTIC, Pooling, PoolShape
from minicaffe.ops.softmax.operation cimport Softmax

from minicaffe.engines.table import PLAIN

cdef extern from "minicaffe/ops/array.hpp" namespace "mc::plain":
    cppclass Array:
        Array()
        Array(const void* data, int dtype)

cdef extern from *:
    """
    using namespace mc::plain;
    static int (*dry)();  // whether the calling thread computes nothing (device/threads.pyx, dry_run)
    template <auto loops, class... Arguments> void unless_dry(Arguments... arguments) {
      if (!dry()) loops(arguments...);
    }
    """
    int (*dry)() noexcept nogil

cdef extern from "minicaffe/ops/conv/plain.hpp" namespace "mc::plain":
    void conv_forward "unless_dry<conv_forward>"(const ConvShape&, Array x, Array weight, Array bias, Array y)
    void conv_backward_data "unless_dry<conv_backward_data>"(const ConvShape&, Array dy, Array weight, Array bias, Array dx)
    void conv_backward_weights "unless_dry<conv_backward_weights>"(const ConvShape&, Array x, Array dy, Array dweight)
    void conv_backward_bias "unless_dry<conv_backward_bias>"(const Channels& top, Array dy, Array dbias)

cdef extern from "minicaffe/ops/pooling/plain.hpp" namespace "mc::plain":
    void pool_forward "unless_dry<pool_forward>"(const PoolShape&, Array x, Array y, Array mask)
    void pool_backward "unless_dry<pool_backward>"(const PoolShape&, Array dy, Array mask, Array dx)

cdef extern from "minicaffe/ops/activation/plain.hpp" namespace "mc::plain":
    void activation_forward "unless_dry<activation_forward>"(Function, const double* params, long long n, Array x, Array y)
    void activation_backward "unless_dry<activation_backward>"(Function, const double* params, long long n, Array x, Array y,
                                                                 Array dy, Array dx)

cdef extern from "minicaffe/ops/inner_product/plain.hpp" namespace "mc::plain":
    struct InnerShape:
        long long m, n, k
        bint transpose
    void inner_product_forward "unless_dry<inner_product_forward>"(const InnerShape&, Array x, Array weight, Array bias, Array y)
    void inner_product_backward "unless_dry<inner_product_backward>"(const InnerShape&, Array dy, Array weight, Array dx)
    void inner_product_backward_params "unless_dry<inner_product_backward_params>"(const InnerShape&, Array x, Array dy,
                                                                                     Array dweight, Array dbias)

cdef extern from "minicaffe/ops/lrn/plain.hpp" namespace "mc::plain":
    void lrn_forward "unless_dry<lrn_forward>"(const LrnShape&, Array x, Array y)
    void lrn_backward "unless_dry<lrn_backward>"(const LrnShape&, Array x, Array dy, Array dx)

cdef extern from "minicaffe/ops/softmax/plain.hpp" namespace "mc::plain":
    void softmax_forward "unless_dry<softmax_forward>"(const Channels&, Array x, Array y)
    void softmax_backward "unless_dry<softmax_backward>"(const Channels&, Array y, Array dy, Array dx)

cdef extern from "minicaffe/ops/batch_norm/plain.hpp" namespace "mc::plain":
    void standardize_forward "unless_dry<standardize_forward>"(const Channels&, int rule, double eps, bint given, Array x,
                                                               Array mean, Array variance, Array factor, Array y)
    void standardize_backward "unless_dry<standardize_backward>"(const Channels&, int rule, bint given, Array x, Array mean,
                                                                 Array factor, Array dy, Array dx)

dry = num_threads().pool.dry


cdef class PlainConvolution(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        if op.transposed:
            conv_backward_data(op.shape, data(bottom), data(weight), data(bias), new_data(top))
        else:
            conv_forward(op.shape, data(bottom), data(weight), data(bias), new_data(top))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        if op.transposed:
            conv_forward(op.shape, diff(top), data(weight), data(None), new_diff(bottom))
        else:
            conv_backward_data(op.shape, diff(top), data(weight), data(None), new_diff(bottom))

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        if bias is not None:
            conv_backward_bias(op.top(), diff(top), new_diff(bias))
        if weight is not None and op.transposed:
            conv_backward_weights(op.shape, diff(top), data(bottom), new_diff(weight))
        elif weight is not None:
            conv_backward_weights(op.shape, data(bottom), diff(top), new_diff(weight))


cdef class PlainPooling(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob mask, Blob bias) except -1:
        pool_forward((<Pooling> operation).shape, data(bottom), new_data(top), new_data(mask))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob mask, Blob bias) except -1:
        pool_backward((<Pooling> operation).shape, diff(top), data(mask), new_diff(bottom))


cdef class PlainActivation(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Activation op = operation
        activation_forward(op.function, op.params, bottom.count, data(bottom), new_data(top))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob kept, Blob bias) except -1:
        """`kept` is the copy of a bottom that the layer overwrote in place, or None."""
        cdef Activation op = operation
        cdef Array dy = diff(top)
        cdef Array y = data(top) if op.reads_y else dy
        cdef Array x = data(bottom if kept is None else kept) if op.reads_x else y
        activation_backward(op.function, op.params, bottom.count, x, y, dy, new_diff(bottom))


cdef class PlainInnerProduct(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        inner_product_forward(InnerShape(op.m, op.n, op.k, op.transpose), data(bottom), data(weight), data(bias), new_data(top))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        inner_product_backward(InnerShape(op.m, op.n, op.k, op.transpose), diff(top), data(weight), new_diff(bottom))

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef InnerProduct op = operation
        inner_product_backward_params(InnerShape(op.m, op.n, op.k, op.transpose), data(bottom), diff(top), new_diff(weight),
                                      new_diff(bias))


cdef class PlainLRN(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        lrn_forward((<LRN> operation).shape, data(bottom), new_data(top))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        lrn_backward((<LRN> operation).shape, data(bottom), diff(top), new_diff(bottom))


cdef class PlainSoftmax(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Softmax op = operation
        softmax_forward(Channels(op.outer, op.channels, op.inner), data(bottom), new_data(top))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Softmax op = operation
        softmax_backward(Channels(op.outer, op.channels, op.inner), data(top), diff(top), new_diff(bottom))


cdef class PlainStandardize(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Standardize op = operation
        cdef long long count = op.shape.outer * op.shape.inner
        op.fused_epilogue = None
        op.unbiased = count / <double> max(count - 1, 1)
        if op.needs_x_copy():
            op.keep(bottom.shape).copy_from(bottom)
        standardize_forward(op.shape, op.rule, op.eps, op.given, data(bottom), new_data(op.mean), new_data(op.variance),
                            new_data(op.factor), new_data(top))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Standardize op = operation
        standardize_backward(op.shape, op.rule, op.given, data(op.values(bottom)), data(op.mean), data(op.factor), diff(top),
                             new_diff(bottom))


cdef Array data(Blob blob) except *:
    """Return the data to read; a null array for None, also below."""
    return Array(blob.cpu_data_ptr(), blob.dtype) if blob is not None else Array()


cdef Array new_data(Blob blob) except *:
    """Return the data to write."""
    return Array(blob.mutable_cpu_data_ptr(), blob.dtype) if blob is not None else Array()


cdef Array diff(Blob blob) except *:
    """Return the gradient to read."""
    return Array(blob.cpu_diff_ptr(), blob.dtype)


cdef Array new_diff(Blob blob) except *:
    """Return the gradient to write, or to add to."""
    return Array(blob.mutable_cpu_diff_ptr(), blob.dtype) if blob is not None else Array()


def refuses_stochastic(Pooling op):
    return "STOCHASTIC pooling" if op.method == STOCHASTIC else None


def refuses_group(Standardize op):
    return "the mean and variance of all ranks' batches" if op.group is not None else None


PLAIN.computes(Convolution, PlainConvolution)
PLAIN.computes(Pooling, PlainPooling, refuses_stochastic)
PLAIN.computes(Activation, PlainActivation)
PLAIN.computes(InnerProduct, PlainInnerProduct)
PLAIN.computes(LRN, PlainLRN)
PLAIN.computes(Softmax, PlainSoftmax)
PLAIN.computes(Standardize, PlainStandardize, refuses_group)
PLAIN.computes(BatchNorm, PlainStandardize, refuses_group)
