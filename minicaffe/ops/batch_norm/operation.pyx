"""Subtract a mean, divide by a deviation: engine CAFFE is ops/batch_norm/caffe.hpp, engine CUDNN ops/batch_norm/cudnn.hpp."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive, refuse

from minicaffe.ops.engine import Refusal, offer

cdef extern from "minicaffe/ops/batch_norm/caffe.hpp" namespace "mc" nogil:
    void standardize_forward(const Context&, int dtype, long long outer, long long channels, long long inner, int rule, bint given,
                             double eps, const void* x, void* y, void* kept, void* mean, void* variance, void* factor)
    void standardize_backward(const Context&, int dtype, long long outer, long long channels, long long inner, bint given,
                              bint mean_only, bint normalized, const void* v, const void* dy, const void* mean, const void* factor,
                              void* dx, void* scratch)

cdef extern from "minicaffe/ops/batch_norm/cudnn.hpp" namespace "mc::cuda" nogil:
    void cudnn_standardize_forward(const Context&, int dtype, long long outer, long long channels, long long inner, double eps,
                                   const void* x, const void* ones, const void* zeros, void* y, void* mean, void* unbiased,
                                   void* factor, void* unused) except +refuse
    void cudnn_standardize_backward(const Context&, int dtype, long long outer, long long channels, long long inner, double eps,
                                    const void* x, const void* ones, const void* dy, const void* mean, const void* factor,
                                    void* dx, void* unused) except +refuse


cdef class Standardize(Operation):
    """``y = (x - mean) / deviation`` for each channel of (outer, channels, inner); `rule` says what the deviation is.

    With `given` mean and variance are what their blobs hold, else those of x, which forward puts there. The normalised values are
    kept only where x and y are one blob and the gradient needs them.
    """

    def __init__(self, *arguments):
        self.mean, self.variance, self.factor, self.kept, self.sums = [Blob((0,), self.dtype, "statistics") for _ in range(5)]

    cdef int see(self, long long outer, long long channels, long long inner, bint in_place) except -1:
        """Set the shape."""
        self.outer, self.channels, self.inner, self.in_place = outer, channels, inner, in_place
        for blob in (self.mean, self.variance, self.factor):
            blob.reshape(channels)
        return self.changed()


cdef class BatchNorm(Standardize):
    """Standardize with the rule that cuDNN knows, EPS_INSIDE."""


cdef class CaffeStandardize(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef void* mean = op.mean.mutable_data_on(on)
        cdef void* variance = op.variance.mutable_data_on(on)
        cdef void* factor = op.factor.mutable_data_on(on)
        cdef void* kept = NULL
        if op.in_place and not op.given:
            op.kept.reshape_like(x)
            kept = op.kept.mutable_data_on(on)
        with nogil:
            standardize_forward(on, op.dtype, op.outer, op.channels, op.inner, op.rule, op.given, op.eps, from_, to, kept, mean,
                                variance, factor)
        op.unbiased = op.outer * op.inner / <double> max(op.outer * op.inner - 1, 1)
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        cdef const void* v = (op.kept if op.in_place and not op.given else x).data_on(on)
        cdef const void* dy = y.diff_on(on)
        cdef const void* mean = op.mean.data_on(on)
        cdef const void* factor = op.factor.data_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef void* scratch = NULL
        if on.stream != NULL:
            op.sums.reshape_to((2 * op.channels,))
            scratch = op.sums.mutable_data_on(on)
        with nogil:
            standardize_backward(on, op.dtype, op.outer, op.channels, op.inner, op.given, op.rule == NONE, op.in_place, v, dy, mean,
                                 factor, dx, scratch)
        return 0


cdef class CudnnBatchNorm(Primitive):
    """For the batch's own statistics and not in place."""

    cdef Blob ones, zeros   # what cuDNN scales and shifts by

    def __cinit__(self, BatchNorm op):
        if op.given or op.in_place:
            raise Refusal("BatchNorm with given statistics" if op.given else "BatchNorm in place")
        self.ones, self.zeros = Blob((op.channels,), op.dtype, "ones"), Blob((op.channels,), op.dtype, "zeros")
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
        op.sums.reshape_to((2 * op.channels,))
        cdef void* unused = op.sums.mutable_data_on(on)
        with nogil:
            cudnn_standardize_forward(on, op.dtype, op.outer, op.channels, op.inner, op.eps, from_, ones, zeros, to, mean, variance,
                                      factor, unused)
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
        op.sums.reshape_to((2 * op.channels,))
        cdef void* unused = op.sums.mutable_data_on(on)
        with nogil:
            cudnn_standardize_backward(on, op.dtype, op.outer, op.channels, op.inner, op.eps, values, ones, dy, mean, factor, dx,
                                       unused)
        return 0


offer(Standardize, "CAFFE", CaffeStandardize)
offer(BatchNorm, "CAFFE", CaffeStandardize)
offer(BatchNorm, "CUDNN", CudnnBatchNorm)
