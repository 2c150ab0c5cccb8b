"""Activation: an element-wise function without learned parameters, and engines CAFFE and PLAIN, which compute it."""

from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive
from minicaffe.engines.layouts cimport zero_padding, data_layout, diff_layout, element, in_lanes, stored

from minicaffe.engines.table import CAFFE, PLAIN

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void activation_forward "mc::activation_forward"(const Context&, int function, int dtype, long long n, const void* x, void* y,
                                                     const double* params)
    void activation_backward "mc::activation_backward"(const Context&, int function, int dtype, long long n, const void* x,
                                                       const void* y, const void* dy, void* dx, const double* params)

cdef extern from "minicaffe/ops/activation/plain.hpp" nogil:
    void plain_forward "MC_PLAIN(mc::plain::activation_forward)"(int dtype, const Context&, Function, const double* params,
                                                                 long long n, const void* x, void* y)
    void plain_backward "MC_PLAIN(mc::plain::activation_backward)"(
        int dtype, const Context&, Function, const double* params, long long n, const void* x, const void* y, const void* dy,
        void* dx)


cdef class Activation(Operation):
    """y = f(x) for each element; x and y may be one blob."""

    def set_function(self, Function function, params, str reads):
        """Compute `function` with `params`, at most 3 in the order of the members of its functor (kernel.hpp); for layer_setup.

        reads : what the gradient reads besides dy: "x", "y", "xy" or "".
        """
        self.function, self.reads_x, self.reads_y = function, "x" in reads, "y" in reads
        for i, value in enumerate(params):
            self.params[i] = value


cdef class CaffeActivation(Primitive):
    """Engine CAFFE; or, if it is `plain`, engine PLAIN. `Operation.forward` and `backward` call it; weight and bias are None."""

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Activation op = operation
        cdef Layout layout = None if self.plain else data_layout(on, [bottom], True)
        if op.function != RELU:     # which keeps padding 0; for others its position must be known, for `zero_padding` below
            layout = in_lanes(layout)
        cdef int dtype = element(layout, bottom)
        cdef long long count = stored(layout, bottom)
        cdef const void* from_ = bottom.data_in_layout(on, layout)
        cdef void* to = top.overwrite_data_in_layout(on, layout)
        with nogil:
            if self.plain:
                plain_forward(dtype, on, op.function, op.params, count, from_, to)
            else:
                activation_forward(on, op.function, dtype, count, from_, to, op.params)
        if op.function != RELU:
            zero_padding(layout, to)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Activation op = operation
        cdef Blob saved = bottom if op.saved_bottom is None else op.saved_bottom
        cdef Layout layout = None if self.plain else diff_layout(on, [top], True) or data_layout(on, [saved], True)
        if op.function != RELU:
            layout = in_lanes(layout)
        cdef int dtype = element(layout, bottom)
        cdef long long count = stored(layout, bottom)
        cdef const void* dy = top.diff_in_layout(on, layout)    # also for arrays that the formula does not read
        cdef const void* to = top.data_in_layout(on, layout) if op.reads_y else dy
        cdef const void* from_ = saved.data_in_layout(on, layout) if op.reads_x else to
        cdef void* dx = bottom.overwrite_diff_in_layout(on, layout)
        with nogil:
            if self.plain:
                plain_backward(dtype, on, op.function, op.params, count, from_, to, dy, dx)
            else:
                activation_backward(on, op.function, dtype, count, from_, to, dy, dx, op.params)
        if op.function != RELU:
            zero_padding(layout, dx)


CAFFE.computes(Activation, CaffeActivation)
PLAIN.computes(Activation, CaffeActivation)
