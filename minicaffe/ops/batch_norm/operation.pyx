"""Subtract a mean, divide by a deviation: engine CAFFE is ops/batch_norm/caffe.hpp, engine CUDNN ops/batch_norm/cudnn.hpp."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.engine cimport Operation, Primitive, refuse
from minicaffe.ops.lanes.caffe cimport Channels
from minicaffe.ops.layouts cimport by_channels, data_layout, diff_layout

from minicaffe.ops.engine import Refusal, offer

cdef extern from "minicaffe/ops/batch_norm/caffe.hpp" namespace "mc" nogil:
    void standardize_forward(const Context&, int dtype, const Channels&, int rule, bint given, double eps, const void* x, void* y,
                             void* kept, void* mean, void* variance, void* factor)
    void standardize_backward(const Context&, int dtype, const Channels&, bint given, bint mean_only, bint normalized,
                              const void* v, const void* dy, const void* mean, const void* factor, void* dx, void* scratch)

cdef extern from "minicaffe/ops/batch_norm/cudnn.hpp" namespace "mc::cuda" nogil:
    void cudnn_standardize_forward(const Context&, int dtype, const Channels&, double eps, const void* x, const void* ones,
                                   const void* zeros, void* y, void* mean, void* unbiased, void* factor, void* unused) except +refuse
    void cudnn_standardize_backward(const Context&, int dtype, const Channels&, double eps, const void* x, const void* ones,
                                    const void* dy, const void* mean, const void* factor, void* dx, void* unused) except +refuse


cdef class Standardize(Operation):
    """``y = (x - mean) / deviation`` for each channel of (outer, channels, inner); `rule` says what the deviation is.

    With `given` mean and variance are what their blobs hold, else those of x, which forward puts there. The normalised values are
    kept only where x and y are one blob and the gradient needs them.
    """

    def __init__(self, *arguments):
        self.mean, self.variance, self.factor, self.kept, self.sums = [Blob((0,), self.dtype, "statistics") for _ in range(5)]

    cdef int see(self, long long outer, long long channels, long long inner, bint in_place) except -1:
        """Set the shape."""
        self.shape, self.in_place = Channels(outer, channels, inner), in_place
        for blob in (self.mean, self.variance, self.factor):
            blob.reshape(channels)
        return self.changed()


cdef class BatchNorm(Standardize):
    """Standardize with the rule that cuDNN knows, EPS_INSIDE."""


cdef class CaffeStandardize(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        cdef Layout layout = by_channels(data_layout(on, [x]), x, &op.shape)
        cdef const void* from_ = x.data_in(on, layout)
        cdef void* to = y.overwrite_data_in(on, layout)
        cdef void* mean = op.mean.mutable_data_on(on)
        cdef void* variance = op.variance.mutable_data_on(on)
        cdef void* factor = op.factor.mutable_data_on(on)
        cdef void* kept = NULL
        if op.in_place and not op.given:
            op.kept.reshape_like(x)
            kept = op.kept.overwrite_data_in(on, layout)
        with nogil:
            standardize_forward(on, op.dtype, op.shape, op.rule, op.given, op.eps, from_, to, kept, mean, variance, factor)
        op.unbiased = op.shape.outer * op.shape.inner / <double> max(op.shape.outer * op.shape.inner - 1, 1)
        op.kept.wrote_data()
        return y.wrote_data()

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        cdef Blob values = op.kept if op.in_place and not op.given else x
        cdef Layout layout = by_channels(diff_layout(on, [y]) or data_layout(on, [values]), x, &op.shape)
        cdef const void* v = values.data_in(on, layout)
        cdef const void* dy = y.diff_in(on, layout)
        cdef const void* mean = op.mean.data_on(on)
        cdef const void* factor = op.factor.data_on(on)
        cdef void* dx = x.overwrite_diff_in(on, layout)
        op.sums.reshape_to((2 * op.shape.channels,))
        cdef void* scratch = op.sums.mutable_data_on(on)
        with nogil:
            standardize_backward(on, op.dtype, op.shape, op.given, op.rule == NONE, op.in_place, v, dy, mean, factor, dx, scratch)
        return x.wrote_diff()


cdef class CudnnBatchNorm(Primitive):
    """For the batch's own statistics and not in place."""

    cdef Blob ones, zeros   # what cuDNN scales and shifts by

    def __cinit__(self, BatchNorm op):
        if op.given or op.in_place:
            raise Refusal("BatchNorm with given statistics" if op.given else "BatchNorm in place")
        self.ones, self.zeros = Blob((op.shape.channels,), op.dtype, "ones"), Blob((op.shape.channels,), op.dtype, "zeros")
        self.ones.data[...] = 1
        self.zeros.data[...] = 0

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        cdef const void* from_ = x.data_on(on)
        cdef const void* ones = self.ones.data_on(on)
        cdef const void* zeros = self.zeros.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef void* mean = op.mean.mutable_data_on(on)
        cdef void* variance = op.variance.mutable_data_on(on)
        cdef void* factor = op.factor.mutable_data_on(on)
        op.sums.reshape_to((2 * op.shape.channels,))
        cdef void* unused = op.sums.mutable_data_on(on)
        with nogil:
            cudnn_standardize_forward(on, op.dtype, op.shape, op.eps, from_, ones, zeros, to, mean, variance, factor, unused)
        op.unbiased = 1     # cuDNN's variance is that of a sample already
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        cdef const void* values = x.data_on(on)
        cdef const void* ones = self.ones.data_on(on)
        cdef const void* dy = y.diff_on(on)
        cdef const void* mean = op.mean.data_on(on)
        cdef const void* factor = op.factor.data_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        op.sums.reshape_to((2 * op.shape.channels,))
        cdef void* unused = op.sums.mutable_data_on(on)
        with nogil:
            cudnn_standardize_backward(on, op.dtype, op.shape, op.eps, values, ones, dy, mean, factor, dx, unused)
        return 0


offer(Standardize, "CAFFE", CaffeStandardize)
offer(BatchNorm, "CAFFE", CaffeStandardize)
offer(BatchNorm, "CUDNN", CudnnBatchNorm)
