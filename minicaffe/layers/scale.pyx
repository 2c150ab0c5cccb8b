"""Layers with parameters broadcast along axes: Scale, Bias, PReLU; and Reduction, whose gradient is such a broadcast.

A blob is seen as outer x channels x inner: parameter k meets all elements whose middle index is k. Formulas are defined in
ops/broadcast/kernel.hpp and kernels/reduce.hpp; ops/broadcast/caffe.hpp and ops/sums/caffe.hpp run them on CPU or device (Caffe scale_layer.cpp,
bias_layer.cpp, prelu_layer.cpp, reduction_layer.cpp). Different from Caffe: the gradient of a scale is added to its diff in every case; there a scale that
covers all of x, or a batch of one, overwrites it.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import axis_of, refuse_in_place
from minicaffe.proto import caffe_pb2

cdef extern from "minicaffe/ops/broadcast/caffe.hpp" nogil:
    void scale_by "mc::broadcast1<mc::ScaleBy>"(
        const Context&, int, long long, long long, long long, const void* x, void* y, void* kept, const void* s)
    void scale_shift "mc::broadcast1<mc::ScaleShift>"(
        const Context&, int, long long, long long, long long, const void* x, void* y, void* kept, const void* s, const void* b)
    void shift_by "mc::broadcast1<mc::ShiftBy>"(
        const Context&, int, long long, long long, long long, const void* x, void* y, void* kept, const void* b)
    void prelu_forward "mc::broadcast1<mc::PreluForward>"(
        const Context&, int, long long, long long, long long, const void* x, void* y, void* kept, const void* a)
    void prelu_backward "mc::broadcast2<mc::PreluBackward>"(
        const Context&, int, long long, long long, long long, const void* x, const void* dy, void* dx, const void* a)
    void sum_backward "mc::broadcast1<mc::SumBackward>"(
        const Context&, int, long long, long long, long long, const void* x, void* dx, void* kept, const void* dy, double coeff)
    void abs_sum_backward "mc::broadcast1<mc::AbsSumBackward>"(
        const Context&, int, long long, long long, long long, const void* x, void* dx, void* kept, const void* dy, double coeff)
    void square_sum_backward "mc::broadcast1<mc::SquareSumBackward>"(
        const Context&, int, long long, long long, long long, const void* x, void* dx, void* kept, const void* dy, double coeff)

cdef extern from "minicaffe/ops/sums/caffe.hpp" nogil:
    void channel_sums "mc::channel_sums_typed<mc::SumTerm>"(
        const Context&, int, long long, long long, long long, double coeff, bint add, void* out, const void* x)
    void channel_abs_sums "mc::channel_sums_typed<mc::AbsTerm>"(
        const Context&, int, long long, long long, long long, double coeff, bint add, void* out, const void* x)
    void channel_square_sums "mc::channel_sums_typed<mc::SquareTerm>"(
        const Context&, int, long long, long long, long long, double coeff, bint add, void* out, const void* x)
    void channel_dots "mc::channel_sums_typed<mc::DotTerm>"(
        const Context&, int, long long, long long, long long, double coeff, bint add, void* out, const void* x, const void* dy)
    void channel_prelu_sums "mc::channel_sums_typed<mc::PreluTerm>"(
        const Context&, int, long long, long long, long long, double coeff, bint add, void* out, const void* x, const void* dy)

cdef extern from "minicaffe/device/typed.hpp" namespace "mc" nogil:
    void copy_typed(const Context&, int, long long, const void*, void*)


cdef class BroadcastLayer(DeviceLayer):
    """One bottom x, perhaps a second one with the values to broadcast, and one top of the shape of x."""

    cdef long long outer, channels, inner
    cdef Blob kept   # x, where the layer works in place and its gradient needs x

    cdef int see(self, Blob x, int axis, int num_axes) except -1:
        """See x as outer x channels x inner, with `num_axes` axes from `axis` on in the middle."""
        self.outer = x.count_range(0, axis)
        self.channels = x.count_range(axis, axis + num_axes)
        self.inner = x.count_range(axis + num_axes, x.num_axes)
        return 0

    cdef void* keep(self, const Context& on, list bottom, list top) except? NULL:
        """Return where forward copies x to, null if x stays in the bottom."""
        if top[0] is not bottom[0]:
            return NULL
        if self.kept is None:
            self.kept = self.new_blob(what="bottom before the layer in place")
        self.kept.reshape_like(<Blob> bottom[0])
        return self.kept.mutable_data_on(on)

    cdef const void* x_on(self, const Context& on, list bottom, list top) except? NULL:
        """Return the x that forward saw."""
        return (self.kept if top[0] is bottom[0] else <Blob> bottom[0]).data_on(on)


cdef class AxesLayer(BroadcastLayer):
    """What Scale and Bias share: the broadcast values are a parameter, or the second bottom."""

    min_bottom_blobs = 1
    max_bottom_blobs = 2
    exact_num_top_blobs = 1

    cdef object field   # scale_param or bias_param, for errors

    cdef Blob values(self, list bottom):
        """Return the blob that is broadcast."""
        return <Blob> (bottom[1] if len(bottom) > 1 else self.blobs[0])

    cdef tuple parameter_shape(self, list bottom, param):
        """Return the axes of x that the parameter covers."""
        cdef Blob x = bottom[0]
        axis = axis_of(x, param.axis, f"{self.field}.axis")
        if param.num_axes < -1 or axis + param.num_axes > x.num_axes:
            raise ConfigError(f"must be -1, or from 0 to {x.num_axes - axis} for a bottom of shape {list(x.shape)} and axis "
                              f"{axis}, got {param.num_axes}", field=f"{self.field}.num_axes")
        return x.shape[axis:] if param.num_axes == -1 else x.shape[axis:axis + param.num_axes]

    cdef int see_values(self, list bottom, list top, param) except -1:
        """See x by the shape of the broadcast blob, and shape the top."""
        cdef Blob x = bottom[0], values = self.values(bottom)
        axis = axis_of(x, param.axis, f"{self.field}.axis") if values.num_axes else 0
        if x.shape[axis:axis + values.num_axes] != values.shape:
            where = "bottom[1]" if len(bottom) > 1 else "blobs[0]"
            raise ShapeError(f"has shape {list(values.shape)}, which bottom[0] of shape {list(x.shape)} does not have from "
                             f"axis {axis} on", field=where)
        self.see(x, axis, values.num_axes)
        if top[0] is not x:
            (<Blob> top[0]).reshape_like(x)
        return 0

    cdef int sum_dy(self, const Context& on, list top, void* out, bint add) except -1:
        """The gradient of a bias: the sum of dy."""
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        with nogil:
            channel_sums(on, self.dtype, self.outer, self.channels, self.inner, 1, add, out, dy)
        return 0


cdef class ScaleLayer(AxesLayer):
    """``y = x * scale``, with ``bias_term`` ``+ bias``, both broadcast.

    scale is blobs[0], or the second bottom; bias is the last of blobs.
    """

    cdef int bias   # index of the bias in blobs, -1 without one

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.scale_param
        self.field = "scale_param"
        if len(bottom) == 1:
            filler = param.filler if param.HasField("filler") else caffe_pb2.FillerParameter(value=1)
            self.add_param(self.parameter_shape(bottom, param), filler, "scale_param.filler")
        self.bias = -1
        if param.bias_term:
            self.bias = len(self.blobs)
            self.add_param(self.values(bottom).shape, param.bias_filler, "scale_param.bias_filler")

    cpdef reshape(self, list bottom, list top):
        self.see_values(bottom, top, self.param.scale_param)
        if self.bias >= 0 and self.blobs[self.bias].count != self.channels:
            raise ShapeError(f"has {self.channels} values, the bias has {self.blobs[self.bias].count}; the shape of the scale "
                             "must stay", field="bottom[1]")

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* s = self.values(bottom).data_on(on)
        cdef const void* b = (<Blob> self.blobs[self.bias]).data_on(on) if self.bias >= 0 else NULL
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* kept = self.keep(on, bottom, top)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            if b:
                scale_shift(on, self.dtype, self.outer, self.channels, self.inner, x, y, kept, s, b)
            else:
                scale_by(on, self.dtype, self.outer, self.channels, self.inner, x, y, kept, s)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob values = self.values(bottom)
        cdef bint learned = len(bottom) == 1
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef const void* x
        cdef const void* s
        cdef void* out
        if self.bias >= 0 and self.learns(self.bias):
            self.sum_dy(on, top, (<Blob> self.blobs[self.bias]).mutable_diff_on(on), True)
        if self.learns(0) if learned else propagate_down[1]:
            x, out = self.x_on(on, bottom, top), values.mutable_diff_on(on)
            with nogil:
                channel_dots(on, self.dtype, self.outer, self.channels, self.inner, 1, learned, out, x, dy)
        if propagate_down[0]:
            s, out = values.data_on(on), (<Blob> bottom[0]).mutable_diff_on(on)
            with nogil:
                scale_by(on, self.dtype, self.outer, self.channels, self.inner, dy, out, NULL, s)


cdef class BiasLayer(AxesLayer):
    """``y = x + bias``, broadcast; bias is blobs[0] or the second bottom."""

    cpdef layer_setup(self, list bottom, list top):
        self.field = "bias_param"
        if len(bottom) == 1:
            self.add_param(self.parameter_shape(bottom, self.param.bias_param), self.param.bias_param.filler,
                           "bias_param.filler")

    cpdef reshape(self, list bottom, list top):
        self.see_values(bottom, top, self.param.bias_param)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* b = self.values(bottom).data_on(on)
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            shift_by(on, self.dtype, self.outer, self.channels, self.inner, x, y, NULL, b)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef bint learned = len(bottom) == 1
        cdef Blob x = bottom[0]
        if self.learns(0) if learned else propagate_down[1]:
            self.sum_dy(on, top, self.values(bottom).mutable_diff_on(on), learned)
        if propagate_down[0] and top[0] is not x:
            copy_typed(on, self.dtype, x.count, (<Blob> top[0]).diff_on(on), x.mutable_diff_on(on))


cdef class PReLULayer(BroadcastLayer):
    """``y = max(x, 0) + a min(x, 0)`` with a learned a for each channel (axis 1), or one for all (He et al. 2015)."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        cdef Blob x = bottom[0]
        param = self.param.prelu_param
        if x.num_axes < 2:
            raise ShapeError(f"needs at least 2 axes, the bottom has shape {list(x.shape)}", field="bottom[0]")
        filler = param.filler if param.HasField("filler") else caffe_pb2.FillerParameter(value=0.25)
        self.add_param(() if param.channel_shared else (x.shape[1],), filler, "prelu_param.filler")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], slope = self.blobs[0]
        if self.param.prelu_param.channel_shared:
            self.see(x, 0, 0)
        elif x.num_axes < 2 or x.dim(1) != slope.count:
            raise ShapeError(f"needs {slope.count} channels, the bottom has shape {list(x.shape)}", field="bottom[0]")
        else:
            self.see(x, 1, 1)
        if top[0] is not x:
            (<Blob> top[0]).reshape_like(x)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* a = (<Blob> self.blobs[0]).data_on(on)
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* kept = self.keep(on, bottom, top)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            prelu_forward(on, self.dtype, self.outer, self.channels, self.inner, x, y, kept, a)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob slope = self.blobs[0]
        cdef const void* a = slope.data_on(on)
        cdef const void* x = self.x_on(on, bottom, top)
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef void* out
        if self.learns(0):
            out = slope.mutable_diff_on(on)
            with nogil:
                channel_prelu_sums(on, self.dtype, self.outer, self.channels, self.inner, 1, True, out, x, dy)
        if propagate_down[0]:
            out = (<Blob> bottom[0]).mutable_diff_on(on)
            with nogil:
                prelu_backward(on, self.dtype, self.outer, self.channels, self.inner, x, dy, out, a)


cpdef enum ReductionOp:   # caffe.proto ReductionParameter.ReductionOp
    SUM = 1
    ASUM = 2
    SUMSQ = 3
    MEAN = 4


cdef class ReductionLayer(BroadcastLayer):
    """``y = coeff * {sum x, sum |x|, sum x^2, mean x}`` over all axes from ``axis`` on."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef int operation
    cdef double coeff

    cpdef layer_setup(self, list bottom, list top):
        refuse_in_place(self, bottom, top)
        self.operation = self.param.reduction_param.operation

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        param = self.param.reduction_param
        axis = axis_of(x, param.axis, "reduction_param.axis")
        self.see(x, 0, axis)
        self.coeff = param.coeff / max(self.inner, 1) if self.operation == MEAN else param.coeff
        top[0].reshape_to(x.shape[:axis])

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            if self.operation == ASUM:
                channel_abs_sums(on, self.dtype, 1, self.channels, self.inner, self.coeff, False, y, x)
            elif self.operation == SUMSQ:
                channel_square_sums(on, self.dtype, 1, self.channels, self.inner, self.coeff, False, y, x)
            else:
                channel_sums(on, self.dtype, 1, self.channels, self.inner, self.coeff, False, y, x)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        with nogil:
            if self.operation == ASUM:
                abs_sum_backward(on, self.dtype, 1, self.channels, self.inner, x, dx, NULL, dy, self.coeff)
            elif self.operation == SUMSQ:
                square_sum_backward(on, self.dtype, 1, self.channels, self.inner, x, dx, NULL, dy, self.coeff)
            else:
                sum_backward(on, self.dtype, 1, self.channels, self.inner, x, dx, NULL, dy, self.coeff)


register_layer("Scale", ScaleLayer)
register_layer("Bias", BiasLayer)
register_layer("PReLU", PReLULayer)
register_layer("Reduction", ReductionLayer)
