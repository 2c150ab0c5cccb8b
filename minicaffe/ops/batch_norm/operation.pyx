"""Subtract a mean, divide by a deviation: engine CAFFE is ops/batch_norm/caffe.hpp, engine CUDNN ops/batch_norm/cudnn.hpp."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.engine cimport Operation, Primitive, refuse
from minicaffe.ops.lanes.caffe cimport Channels
from minicaffe.ops.layouts cimport by_channels, data_layout, diff_layout, element

import numpy as np

from minicaffe.errors import ShapeError
from minicaffe.ops.engine import Refusal, offer

cdef extern from "minicaffe/ops/batch_norm/caffe.hpp" namespace "mc" nogil:
    cppclass Standardization:
        int rule
        bint given
        double eps, slope
        long long elsewhere
        void *mean
        void *variance
        void *factor
        void *scale
        void *shift
        const void *gamma
        const void *beta
    enum Part "mc::Part":
        WHOLE "mc::Part::kWhole"
        BEFORE "mc::Part::kBefore"
        AFTER "mc::Part::kAfter"
    void standardize_moments(const Context&, int dtype, const Channels&, const void* x, void* mean, void* variance)
    void standardize_forward(const Context&, int dtype, const Channels&, const Standardization&, const void* x, void* y, void* kept)
    void standardize_backward(const Context&, int dtype, const Channels&, const Standardization&, Part, const void* x,
                              const void* dy, void* dx, void* gamma, void* beta, void* scratch)

cdef extern from "minicaffe/ops/batch_norm/cudnn.hpp" namespace "mc::cuda" nogil:
    void cudnn_standardize_forward(const Context&, int dtype, const Channels&, double eps, const void* x, const void* ones,
                                   const void* zeros, void* y, void* mean, void* unbiased, void* factor, void* unused) except +refuse
    void cudnn_standardize_backward(const Context&, int dtype, const Channels&, double eps, const void* x, const void* ones,
                                    const void* dy, const void* mean, const void* factor, void* dx, void* unused) except +refuse


cdef class Standardize(Operation):
    """``y = (x - mean) / deviation`` for each channel of (outer, channels, inner); `rule` says what the deviation is.

    With `given` mean and variance are what their blobs hold, else those of x, which forward puts there. Forward keeps x only where
    x and y are one blob and the gradient needs it.

    With a `group` of processes (minicaffe.parallel.group.Group), which compute at the same time, mean and variance are those of the
    values of all of them, and the gradient is that of the sum of their losses. What the processes tell each other, two numbers for each
    channel in forward and in backward, goes by way of the host.
    """

    def __init__(self, *arguments):
        self.mean, self.variance, self.factor, self.scale, self.shift, self.sums = [
            Blob((0,), self.dtype, "statistics") for _ in range(6)]

    cdef int see(self, long long outer, long long channels, long long inner, bint in_place) except -1:
        """Set the shape."""
        if outer != self.shape.outer or channels != self.shape.channels or inner != self.shape.inner:
            self.carried = None
        self.shape, self.in_place = Channels(outer, channels, inner), in_place
        for blob in (self.mean, self.variance, self.factor, self.scale, self.shift):
            blob.reshape(channels)
        return self.changed()

    cdef bint keeps_x(self):
        """Whether backward needs x, and y is in its place."""
        return self.in_place and (not self.given or self.carried is not None)

    cdef int join_moments(self) except -1:
        """Make the mean and variance of all processes' values of those of this one's."""
        cdef long long count = self.shape.outer * self.shape.inner
        theirs = self.group.gather_array(np.concatenate([[count], self.mean.data, self.variance.data], dtype=np.float64))
        counts = theirs[:, :1]
        means, variances = np.split(theirs[:, 1:], 2, 1)
        total = counts.sum()
        with np.errstate(all="ignore"):     # values that are not finite stay so
            mean = (counts * means).sum(0) / max(total, 1)
            self.mean.data[...] = mean
            self.variance.data[...] = (counts * (variances + (means - mean) ** 2)).sum(0) / max(total, 1)
        self.elsewhere = total - count
        return 0

    cdef int join_gradients(self) except -1:
        """Add up what the gradient of x subtracts."""
        sums = self.sums.data[:2 * self.shape.channels]
        sums[...] = self.group.gather_array(sums.astype(np.float64)).sum(0)
        return 0


cdef class BatchNorm(Standardize):
    """Standardize with the rule that cuDNN knows, EPS_INSIDE; what Scale and ReLU do behind it takes no pass of its own."""

    takes_epilogue = NormEpilogue
    carries = True


cdef class CaffeStandardize(Primitive):
    def __cinit__(self, Standardize op):
        self.fuses = True

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        cdef Layout layout = by_channels(data_layout(on, [x], True), x, &op.shape)
        cdef int dtype = element(layout, x)
        cdef const void* from_ = x.data_in(on, layout)
        cdef void* kept = NULL
        cdef Standardization s
        cdef bint together = op.group is not None and not op.given
        if together:
            s.mean, s.variance = op.mean.mutable_data_on(on), op.variance.mutable_data_on(on)
            with nogil:
                standardize_moments(on, dtype, op.shape, from_, s.mean, s.variance)
            op.join_moments()
        cdef NormEpilogue epilogue = op.epilogue
        op.epilogue = None
        op.carried = epilogue if epilogue is not None and epilogue.carries else None
        s.rule, s.given, s.eps, s.slope = op.rule, op.given or together, op.eps, slope_of(epilogue)
        s.mean, s.variance = op.mean.mutable_data_on(on), op.variance.mutable_data_on(on)
        s.factor, s.scale, s.shift = op.factor.mutable_data_on(on), op.scale.mutable_data_on(on), op.shift.mutable_data_on(on)
        s.gamma = s.beta = NULL
        if epilogue is not None:
            if epilogue.scale is not None:
                s.gamma = epilogue.scale.data_on(on)
            if epilogue.shift is not None:
                s.beta = epilogue.shift.data_on(on)
        if op.keeps_x():
            kept = op.keep(x.shape).overwrite_data_in(on, layout)
            if layout is not None:      # no copy: y goes to another block in place of x
                op.kept.data_memory.exchange_private(x.data_memory)
                kept = NULL
        cdef void* to = y.overwrite_data_in(on, layout)
        with nogil:
            standardize_forward(on, dtype, op.shape, s, from_, to, kept)
        cdef long long count = op.shape.outer * op.shape.inner + op.elsewhere
        op.unbiased = count / <double> max(count - 1, 1)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        """dx from dy, and what is added to the gradients of the epilogue's blobs."""
        cdef Standardize op = operation
        cdef Blob values = op.kept if op.keeps_x() else x
        if values.count != x.count:
            raise ShapeError(f"was {list(values.shape)} in forward and is {list(x.shape)} now; run forward again", field="bottom[0]")
        cdef Layout layout = by_channels(diff_layout(on, [y], True) or data_layout(on, [values], True), x, &op.shape)
        cdef int dtype = element(layout, x)
        cdef const void* v = values.data_in(on, layout)
        cdef const void* dy = y.diff_in(on, layout)
        cdef void* gamma = NULL
        cdef void* beta = NULL
        cdef Standardization s
        s.rule, s.given, s.slope, s.elsewhere = op.rule, op.given, slope_of(op.carried), op.elsewhere
        s.mean, s.factor = <void*> op.mean.data_on(on), <void*> op.factor.data_on(on)
        s.scale = <void*> (op.factor if op.carried is None else op.scale).data_on(on)
        s.shift = <void*> op.shift.data_on(on)
        if op.carried is not None:
            if op.carried.scale_learned:
                gamma = op.carried.scale.mutable_diff_on(on)
            if op.carried.shift_learned:
                beta = op.carried.shift.mutable_diff_on(on)
        cdef void* dx = x.overwrite_diff_in(on, layout)
        op.sums.reshape_to((4 * op.shape.channels,))
        cdef void* scratch = op.sums.mutable_data_on(on)
        cdef Part part = WHOLE
        if op.group is not None and not op.given:
            with nogil:
                standardize_backward(on, dtype, op.shape, s, BEFORE, v, dy, dx, gamma, beta, scratch)
            op.join_gradients()
            part, scratch = AFTER, op.sums.mutable_data_on(on)
        with nogil:
            standardize_backward(on, dtype, op.shape, s, part, v, dy, dx, gamma, beta, scratch)


cdef double slope_of(NormEpilogue epilogue):
    return 1 if epilogue is None else epilogue.slope


cdef class CudnnBatchNorm(Primitive):
    """For the statistics of the batch alone and not in place."""

    cdef Blob ones, zeros   # what cuDNN scales and shifts by

    def __cinit__(self, BatchNorm op):
        if op.given or op.in_place:
            raise Refusal("BatchNorm with given statistics" if op.given else "BatchNorm in place")
        if op.group is not None:
            raise Refusal("BatchNorm with the statistics of all processes' batches")
        self.ones, self.zeros = Blob((op.shape.channels,), op.dtype, "ones"), Blob((op.shape.channels,), op.dtype, "zeros")
        self.ones.data[...] = 1
        self.zeros.data[...] = 0

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        op.sums.reshape_to((2 * op.shape.channels,))
        with nogil:     # `sums` takes what nobody reads
            cudnn_standardize_forward(on, op.dtype, op.shape, op.eps, x.data_on(on), self.ones.data_on(on), self.zeros.data_on(on),
                                      y.mutable_data_on(on), op.mean.mutable_data_on(on), op.variance.mutable_data_on(on),
                                      op.factor.mutable_data_on(on), op.sums.mutable_data_on(on))
        op.unbiased, op.carried = 1, None       # cuDNN's variance is that of a sample already
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        if op.carried is not None:
            raise Refusal("what engine CAFFE computed forward with the layers behind it")
        op.sums.reshape_to((2 * op.shape.channels,))
        with nogil:     # `sums` takes what nobody reads
            cudnn_standardize_backward(on, op.dtype, op.shape, op.eps, x.data_on(on), self.ones.data_on(on), y.diff_on(on),
                                       op.mean.data_on(on), op.factor.data_on(on), x.mutable_diff_on(on),
                                       op.sums.mutable_data_on(on))
        return 0


offer(Standardize, "CAFFE", CaffeStandardize)
offer(BatchNorm, "CAFFE", CaffeStandardize)
offer(BatchNorm, "CUDNN", CudnnBatchNorm)
