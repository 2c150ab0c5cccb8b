"""Subtract a mean, divide by a deviation, by engine CAFFE (ops/batch_norm/caffe.hpp)."""

from minicaffe.ops.batch_norm.operation cimport BatchNorm, Standardize
from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive
from minicaffe.engines.epilogue cimport NormEpilogue
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.engines.layouts cimport by_channels, data_layout, diff_layout, element

from minicaffe.engines.table import CAFFE

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


cdef class CaffeStandardize(Primitive):
    def __cinit__(self, Standardize op):
        self.fuses = True

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Standardize op = operation
        cdef Channels shape
        cdef Layout layout = by_channels(data_layout(on, [bottom], True), bottom, op.shape, &shape)
        cdef int dtype = element(layout, bottom)
        cdef const void* from_ = bottom.data_in_layout(on, layout)
        cdef void* kept = NULL
        cdef Standardization s
        cdef bint together = op.group is not None and not op.given
        if together:
            s.mean, s.variance = op.mean.mutable_data_on(on), op.variance.mutable_data_on(on)
            with nogil:
                standardize_moments(on, dtype, shape, from_, s.mean, s.variance)
            op.allreduce_moments()
        cdef NormEpilogue epilogue = op.epilogue
        op.epilogue = None
        op.fused_epilogue = epilogue if epilogue is not None and epilogue.fuses_backward else None
        s.rule, s.given, s.eps, s.slope = op.rule, op.given or together, op.eps, slope_of(epilogue)
        s.mean, s.variance = op.mean.mutable_data_on(on), op.variance.mutable_data_on(on)
        s.factor, s.scale, s.shift = op.factor.mutable_data_on(on), op.scale.mutable_data_on(on), op.shift.mutable_data_on(on)
        s.gamma = s.beta = NULL
        if epilogue is not None:
            if epilogue.scale is not None:
                s.gamma = epilogue.scale.data_on(on)
            if epilogue.shift is not None:
                s.beta = epilogue.shift.data_on(on)
        if op.needs_x_copy():
            kept = op.keep(bottom.shape).overwrite_data_in_layout(on, layout)
            if layout is not None:      # no copy: `kept` takes the block of x, and y gets another
                op.kept.data_memory.exchange_private(bottom.data_memory)
                kept = NULL
        cdef void* to = top.overwrite_data_in_layout(on, layout)
        with nogil:
            standardize_forward(on, dtype, shape, s, from_, to, kept)
        cdef long long count = op.shape.outer * op.shape.inner + op.elsewhere
        op.unbiased = count / <double> max(count - 1, 1)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """Compute dx from dy, and add to the gradients of the epilogue's blobs."""
        cdef Standardize op = operation
        cdef Blob values = op.values(bottom)
        cdef Channels shape
        cdef Layout layout = by_channels(diff_layout(on, [top], True) or data_layout(on, [values], True), bottom, op.shape, &shape)
        cdef int dtype = element(layout, bottom)
        cdef const void* v = values.data_in_layout(on, layout)
        cdef const void* dy = top.diff_in_layout(on, layout)
        cdef void* gamma = NULL
        cdef void* beta = NULL
        cdef bint add_gamma = True, add_beta = True
        cdef Standardization s
        s.rule, s.given, s.slope, s.elsewhere = op.rule, op.given, slope_of(op.fused_epilogue), op.elsewhere
        s.mean, s.factor = <void*> op.mean.data_on(on), <void*> op.factor.data_on(on)
        s.scale = <void*> (op.factor if op.fused_epilogue is None else op.scale).data_on(on)
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
        if together:
            with nogil:
                standardize_backward(on, dtype, shape, s, True, False, v, dy, dx, gamma, add_gamma, beta, add_beta, scratch)
            op.allreduce_gradient_terms()
            scratch = op.sums.mutable_data_on(on)
        with nogil:
            standardize_backward(on, dtype, shape, s, not together, True, v, dy, dx, gamma, add_gamma, beta, add_beta, scratch)


cdef double slope_of(NormEpilogue epilogue):
    """Return the slope for negative values of the ReLU that is computed along; 1, which changes nothing, without one."""
    return 1 if epilogue is None else epilogue.slope


CAFFE.computes(Standardize, CaffeStandardize)
CAFFE.computes(BatchNorm, CaffeStandardize)
