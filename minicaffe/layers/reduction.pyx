"""Reduction: sums over the last axes (Caffe reduction_layer.cpp)."""

from minicaffe.layers.base.broadcast cimport Blob, BroadcastLayer, Context
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.broadcast.caffe cimport abs_sum_backward, square_sum_backward, sum_backward
from minicaffe.loops.sums.caffe cimport channel_abs_sums, channel_square_sums, channel_sums

from minicaffe.layers.base.checks import axis_of

cpdef enum ReductionOp:   # caffe.proto ReductionParameter.ReductionOp
    SUM = 1
    ASUM = 2
    SUMSQ = 3
    MEAN = 4


cdef class ReductionLayer(BroadcastLayer):
    """``y = coeff * {sum x, sum |x|, sum x^2, mean x}`` over all axes from ``axis`` on."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True

    cdef int operation      # a ReductionOp
    cdef double coeff       # of MEAN: coeff / number of elements of a sum

    cpdef layer_setup(self, list bottom, list top):
        self.operation = self.param.reduction_param.operation

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        param = self.param.reduction_param
        axis = axis_of(x, param.axis, "reduction_param.axis")
        self.split_axes(x, 0, axis)     # 1 x sums x elements of each: a "channel" is a sum
        self.coeff = param.coeff / max(self.axes.inner, 1) if self.operation == MEAN else param.coeff
        top[0].reshape_to(x.shape[:axis])

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_in_layout(on, self.layout_forward(on, bottom))     # sets `stored`
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            if self.operation == ASUM:
                channel_abs_sums(on, self.dtype, self.stored, self.coeff, False, y, x)
            elif self.operation == SUMSQ:
                channel_square_sums(on, self.dtype, self.stored, self.coeff, False, y, x)
            else:
                channel_sums(on, self.dtype, self.stored, self.coeff, False, y, x)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Layout layout = self.layout_forward(on, bottom)    # that of x, None: plain; sets `stored`, the sizes in it
        cdef const void* x = (<Blob> bottom[0]).data_in_layout(on, layout)
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef void* dx = (<Blob> bottom[0]).overwrite_diff_in_layout(on, layout)
        with nogil:
            if self.operation == ASUM:
                abs_sum_backward(on, self.dtype, self.stored, x, dx, NULL, dy, self.coeff)
            elif self.operation == SUMSQ:
                square_sum_backward(on, self.dtype, self.stored, x, dx, NULL, dy, self.coeff)
            else:
                sum_backward(on, self.dtype, self.stored, x, dx, NULL, dy, self.coeff)
