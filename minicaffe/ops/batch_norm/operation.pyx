"""The operation of BatchNorm and MVN: subtract a mean, divide by a deviation; and engines CAFFE and PLAIN, which compute it
(ops/batch_norm/caffe.hpp and plain.hpp).
"""

import numpy as np

from minicaffe.engines.engine cimport Context, Layout, Primitive
from minicaffe.engines.layouts cimport by_channels, data_layout, diff_layout, element

from minicaffe.engines.engine import saved_bottom
from minicaffe.engines.table import CAFFE, PLAIN

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
    void standardize_moments(const Context&, int dtype, const Channels&, const void* x, void* mean, void* variance)
    void standardize_forward(const Context&, int dtype, const Channels&, const Standardization&, const void* x, void* y, void* kept)
    void standardize_backward(const Context&, int dtype, const Channels&, const Standardization&, bint terms, bint apply,
                              const void* x, const void* dy, void* dx, void* gamma, bint add_gamma, void* beta, bint add_beta,
                              void* scratch)

cdef extern from "minicaffe/ops/batch_norm/plain.hpp" nogil:
    void plain_forward "MC_PLAIN(mc::plain::standardize_forward)"(
        int dtype, const Context&, const Channels&, int rule, double eps, bint given, const void* x, void* mean, void* variance,
        void* factor, void* y, void* kept)
    void plain_backward "MC_PLAIN(mc::plain::standardize_backward)"(
        int dtype, const Context&, const Channels&, int rule, bint given, const void* x, const void* mean, const void* factor,
        const void* dy, void* dx)


cdef class Standardize(Operation):
    """``y = (x - mean) / deviation`` for each channel of (outer, channels, inner); `rule` is the formula of the deviation.

    With `given` mean and variance are read from their blobs, else forward computes those of x and stores them there. Forward keeps
    a copy of x only if x and y are one blob and the gradient needs it.

    With a `group` of processes (minicaffe.parallel.group.Group), which compute at the same time, mean and variance are those of
    all their values, and the gradient is that of the sum of their losses. The processes exchange two numbers for each channel in
    forward and in backward, through the host.
    """

    def __init__(self, *arguments):
        self.mean, self.variance, self.factor, self.scale, self.shift, self.sums = [
            Blob((0,), self.dtype, "statistics") for _ in range(6)]

    cdef int set_shape(self, long long outer, long long channels, long long inner, bint in_place) except -1:
        """Set the shape, (outer, channels, inner), and whether x and y are one blob: a layer calls it in reshape."""
        if outer != self.shape.outer or channels != self.shape.channels or inner != self.shape.inner:
            self.fused_epilogue = None
        self.shape, self.in_place = Channels(outer, channels, inner), in_place
        for blob in (self.mean, self.variance, self.factor, self.scale, self.shift):
            blob.reshape(channels)
        return self.changed()

    cdef bint needs_x_copy(self):
        """Whether backward needs x, and y overwrites it: then forward keeps a copy (also for BatchNorm's `unfuse`)."""
        return self.in_place and (not self.given or self.fused_epilogue is not None)

    cdef Blob values(self, Blob bottom):
        """Return the blob with the values of x for backward: the bottom, or its copy."""
        if not self.needs_x_copy():
            return bottom
        return saved_bottom(self.kept, bottom)

    cdef int allreduce_moments(self) except -1:
        """Replace mean and variance of this process by those over all processes; set `elsewhere`."""
        cdef long long count = self.shape.outer * self.shape.inner
        # A row for each process: its count, its means, its variances.
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

    cdef int allreduce_gradient_terms(self) except -1:
        """Sum over all processes the terms that the gradient of x subtracts (StandardizeBackward), the first half of `sums`."""
        sums = self.sums.data[:2 * self.shape.channels]
        sums[...] = self.group.gather_array(sums.astype(np.float64)).sum(0)
        return 0


cdef class BatchNorm(Standardize):
    """Standardize with the rule EPS_INSIDE; Scale and ReLU after it are fused, also in backward."""

    epilogue_class = NormEpilogue
    fuses_backward = True


cdef class CaffeStandardize(Primitive):
    """Engine CAFFE; or, if it is `plain`, engine PLAIN. Its methods override Primitive's, which `Operation` calls."""

    def __cinit__(self, Standardize op):
        self.fuses = True

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Standardize op = operation
        cdef Channels shape     # op.shape as it is in `layout`, which is the bottom's if its channels are these, else None: plain
        cdef Layout layout = by_channels(None if self.plain else data_layout(on, [bottom], True), bottom, op.shape, &shape)
        cdef int dtype = element(layout, bottom)    # of the elements as stored: some layouts are of BF16
        cdef const void* from_ = bottom.data_in_layout(on, layout)
        cdef void* kept = NULL
        cdef Standardization s
        cdef bint together = op.group is not None and not op.given
        if together:
            s.mean, s.variance = op.mean.mutable_data_on(on), op.variance.mutable_data_on(on)
            with nogil:
                standardize_moments(on, dtype, shape, from_, s.mean, s.variance)
            op.allreduce_moments()
        cdef NormEpilogue epilogue = None
        if not self.plain:      # engine PLAIN leaves it, and the net runs the fused layers after forward
            epilogue, op.epilogue = op.epilogue, None
        op.fused_epilogue = epilogue if epilogue is not None and epilogue.fuses_backward else None
        s.rule, s.given, s.eps, s.slope = op.rule, op.given or together, op.eps, slope_of(epilogue)     # together: computed above
        s.mean, s.variance = op.mean.mutable_data_on(on), op.variance.mutable_data_on(on)
        s.factor, s.scale, s.shift = op.factor.mutable_data_on(on), op.scale.mutable_data_on(on), op.shift.mutable_data_on(on)
        s.gamma = s.beta = NULL
        if epilogue is not None:
            if epilogue.scale is not None:
                s.gamma = epilogue.scale.data_on(on)
            if epilogue.shift is not None:
                s.beta = epilogue.shift.data_on(on)
        if op.needs_x_copy():       # into the blob that the operation keeps for backward
            kept = op.keep(bottom.shape).overwrite_data_in_layout(on, layout)
            if layout is not None:      # no copy: `kept` takes the block of x, and y gets another
                op.kept.data_memory.exchange_private(bottom.data_memory)
                kept = NULL
        cdef void* to = top.overwrite_data_in_layout(on, layout)
        with nogil:
            if self.plain:
                plain_forward(dtype, on, shape, s.rule, s.eps, s.given, from_, s.mean, s.variance, s.factor, to, kept)
            else:
                standardize_forward(on, dtype, shape, s, from_, to, kept)
        cdef long long count = op.shape.outer * op.shape.inner + op.elsewhere
        op.unbiased = count / <double> max(count - 1, 1)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """Compute dx from dy, and add to the gradients of the fused epilogue's blobs; dy is then the gradient after it."""
        cdef Standardize op = operation
        cdef Blob values = op.values(bottom)
        cdef Channels shape
        cdef Layout found = None if self.plain else diff_layout(on, [top], True) or data_layout(on, [values], True)
        cdef Layout layout = by_channels(found, bottom, op.shape, &shape)
        cdef int dtype = element(layout, bottom)
        cdef const void* v = values.data_in_layout(on, layout)
        cdef const void* dy = top.diff_in_layout(on, layout)
        cdef void* gamma = NULL
        cdef void* beta = NULL
        cdef bint add_gamma = True, add_beta = True     # gradient_on sets False if there is nothing to add to
        cdef Standardization s
        s.rule, s.given, s.slope, s.elsewhere = op.rule, op.given, slope_of(op.fused_epilogue), op.elsewhere
        s.mean, s.factor = <void*> op.mean.data_on(on), <void*> op.factor.data_on(on)
        s.scale = <void*> (op.factor if op.fused_epilogue is None else op.scale).data_on(on)    # not fused: without gamma
        s.shift = <void*> op.shift.data_on(on)
        if op.fused_epilogue is not None:
            if op.fused_epilogue.scale_learned:
                gamma = op.fused_epilogue.scale.gradient_on(on, None, &add_gamma)
            if op.fused_epilogue.shift_learned:
                beta = op.fused_epilogue.shift.gradient_on(on, None, &add_beta)
        cdef void* dx = bottom.overwrite_diff_in_layout(on, layout)
        op.sums.reshape_to((4 * op.shape.channels,))
        cdef void* scratch = op.sums.mutable_data_on(on)
        cdef bint together = op.group is not None and not op.given
        if together:        # the terms, then dx from their sums over all processes
            with nogil:
                standardize_backward(on, dtype, shape, s, True, False, v, dy, dx, gamma, add_gamma, beta, add_beta, scratch)
            op.allreduce_gradient_terms()
            scratch = op.sums.mutable_data_on(on)
        with nogil:
            if self.plain:
                plain_backward(dtype, on, shape, s.rule, s.given, v, s.mean, s.factor, dy, dx)
            else:
                standardize_backward(on, dtype, shape, s, not together, True, v, dy, dx, gamma, add_gamma, beta, add_beta, scratch)


cdef double slope_of(NormEpilogue epilogue):
    """Return the slope for negative values of the fused ReLU; without one 1, which changes nothing."""
    return 1 if epilogue is None else epilogue.slope


def refuses_group(Standardize op):
    """Return why engine PLAIN does not compute `op`, or None (engines/table.py)."""
    return "the mean and variance of all ranks' batches" if op.group is not None else None


for kind in Standardize, BatchNorm:
    CAFFE.computes(kind, CaffeStandardize)
    PLAIN.computes(kind, CaffeStandardize, refuses_group)
