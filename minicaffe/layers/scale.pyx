"""Layers with parameters broadcast along axes: Scale, Bias, PReLU; and Reduction, whose gradient is such a broadcast.

A blob is seen as outer x channels x inner: parameter k meets all elements whose middle index is k. Formulas stand in
kernels/broadcast.hpp, the loops in cpu/broadcast.hpp (Caffe scale_layer.cpp, bias_layer.cpp, prelu_layer.cpp,
reduction_layer.cpp). Different from Caffe: the gradient of a scale is added to its diff in every case; there a scale that
covers all of x, or a batch of one, overwrites it.
"""

from minicaffe.blob cimport Blob
from minicaffe.cpu.threads cimport num_threads
from minicaffe.layer cimport Layer

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.checks import axis_of, refuse_in_place
from minicaffe.proto import caffe_pb2

cdef extern from "minicaffe/cpu/broadcast.hpp" nogil:
    void scale_by "mc::cpu::broadcast1<mc::ScaleBy>"(
        int, int, long long, long long, long long, const void* x, void* y, void* kept, const void* s)
    void scale_shift "mc::cpu::broadcast1<mc::ScaleShift>"(
        int, int, long long, long long, long long, const void* x, void* y, void* kept, const void* s, const void* b)
    void shift_by "mc::cpu::broadcast1<mc::ShiftBy>"(
        int, int, long long, long long, long long, const void* x, void* y, void* kept, const void* b)
    void prelu_forward "mc::cpu::broadcast1<mc::PreluForward>"(
        int, int, long long, long long, long long, const void* x, void* y, void* kept, const void* a)
    void prelu_backward "mc::cpu::broadcast2<mc::PreluBackward>"(
        int, int, long long, long long, long long, const void* x, const void* dy, void* dx, const void* a)
    void sum_backward "mc::cpu::broadcast1<mc::SumBackward>"(
        int, int, long long, long long, long long, const void* x, void* dx, void* kept, const void* dy, double coeff)
    void abs_sum_backward "mc::cpu::broadcast1<mc::AbsSumBackward>"(
        int, int, long long, long long, long long, const void* x, void* dx, void* kept, const void* dy, double coeff)
    void square_sum_backward "mc::cpu::broadcast1<mc::SquareSumBackward>"(
        int, int, long long, long long, long long, const void* x, void* dx, void* kept, const void* dy, double coeff)
    void channel_sums "mc::cpu::channel_sums_typed<mc::SumTerm>"(
        int, int, long long, long long, long long, double coeff, bint add, void* out, const void* x)
    void channel_abs_sums "mc::cpu::channel_sums_typed<mc::AbsTerm>"(
        int, int, long long, long long, long long, double coeff, bint add, void* out, const void* x)
    void channel_square_sums "mc::cpu::channel_sums_typed<mc::SquareTerm>"(
        int, int, long long, long long, long long, double coeff, bint add, void* out, const void* x)
    void channel_dots "mc::cpu::channel_sums_typed<mc::DotTerm>"(
        int, int, long long, long long, long long, double coeff, bint add, void* out, const void* x, const void* dy)
    void channel_prelu_sums "mc::cpu::channel_sums_typed<mc::PreluTerm>"(
        int, int, long long, long long, long long, double coeff, bint add, void* out, const void* x, const void* dy)

cdef extern from "minicaffe/cpu/typed.hpp" namespace "mc::cpu" nogil:
    void copy_typed(int, int, long long, const void*, void*)


cdef class BroadcastLayer(Layer):
    """One bottom x, perhaps a second one with the values to broadcast, and one top of the shape of x."""

    cdef long long outer, channels, inner
    cdef Blob kept   # x, where the layer works in place and its gradient needs x

    cdef int see(self, Blob x, int axis, int num_axes) except -1:
        """See x as outer x channels x inner, with `num_axes` axes from `axis` on in the middle."""
        self.outer = x.count_range(0, axis)
        self.channels = x.count_range(axis, axis + num_axes)
        self.inner = x.count_range(axis + num_axes, x.num_axes)
        return 0

    cdef void* keep(self, list bottom, list top) except? NULL:
        """Return where forward copies x to, null if x stays in the bottom."""
        if top[0] is not bottom[0]:
            return NULL
        if self.kept is None:
            self.kept = self.new_blob(what="bottom before the layer in place")
        self.kept.reshape_like(<Blob> bottom[0])
        return self.kept.mutable_cpu_data_ptr()

    cdef const void* x_ptr(self, list bottom, list top) except? NULL:
        """Return the x that forward saw."""
        return (self.kept if top[0] is bottom[0] else <Blob> bottom[0]).cpu_data_ptr()


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

    cdef int sum_dy(self, list top, void* out, bint add) except -1:
        """The gradient of a bias: the sum of dy."""
        cdef const void* dy = (<Blob> top[0]).cpu_diff_ptr()
        with nogil:
            channel_sums(num_threads(), self.dtype, self.outer, self.channels, self.inner, 1, add, out, dy)
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

    cpdef forward_cpu(self, list bottom, list top):
        cdef const void* s = self.values(bottom).cpu_data_ptr()
        cdef const void* b = (<Blob> self.blobs[self.bias]).cpu_data_ptr() if self.bias >= 0 else NULL
        cdef const void* x = (<Blob> bottom[0]).cpu_data_ptr()
        cdef void* kept = self.keep(bottom, top)
        cdef void* y = (<Blob> top[0]).mutable_cpu_data_ptr()
        with nogil:
            if b:
                scale_shift(num_threads(), self.dtype, self.outer, self.channels, self.inner, x, y, kept, s, b)
            else:
                scale_by(num_threads(), self.dtype, self.outer, self.channels, self.inner, x, y, kept, s)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        cdef Blob values = self.values(bottom)
        cdef bint learned = len(bottom) == 1
        cdef const void* dy = (<Blob> top[0]).cpu_diff_ptr()
        cdef const void* x
        cdef const void* s
        cdef void* out
        if self.bias >= 0 and self.learns(self.bias):
            self.sum_dy(top, (<Blob> self.blobs[self.bias]).mutable_cpu_diff_ptr(), True)
        if self.learns(0) if learned else propagate_down[1]:
            x, out = self.x_ptr(bottom, top), values.mutable_cpu_diff_ptr()
            with nogil:
                channel_dots(num_threads(), self.dtype, self.outer, self.channels, self.inner, 1, learned, out, x, dy)
        if propagate_down[0]:
            s, out = values.cpu_data_ptr(), (<Blob> bottom[0]).mutable_cpu_diff_ptr()
            with nogil:
                scale_by(num_threads(), self.dtype, self.outer, self.channels, self.inner, dy, out, NULL, s)


cdef class BiasLayer(AxesLayer):
    """``y = x + bias``, broadcast; bias is blobs[0] or the second bottom."""

    cpdef layer_setup(self, list bottom, list top):
        self.field = "bias_param"
        if len(bottom) == 1:
            self.add_param(self.parameter_shape(bottom, self.param.bias_param), self.param.bias_param.filler,
                           "bias_param.filler")

    cpdef reshape(self, list bottom, list top):
        self.see_values(bottom, top, self.param.bias_param)

    cpdef forward_cpu(self, list bottom, list top):
        cdef const void* b = self.values(bottom).cpu_data_ptr()
        cdef const void* x = (<Blob> bottom[0]).cpu_data_ptr()
        cdef void* y = (<Blob> top[0]).mutable_cpu_data_ptr()
        with nogil:
            shift_by(num_threads(), self.dtype, self.outer, self.channels, self.inner, x, y, NULL, b)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        cdef bint learned = len(bottom) == 1
        cdef Blob x = bottom[0]
        if self.learns(0) if learned else propagate_down[1]:
            self.sum_dy(top, self.values(bottom).mutable_cpu_diff_ptr(), learned)
        if propagate_down[0] and top[0] is not x:
            copy_typed(num_threads(), self.dtype, x.count, (<Blob> top[0]).cpu_diff_ptr(), x.mutable_cpu_diff_ptr())


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

    cpdef forward_cpu(self, list bottom, list top):
        cdef const void* a = (<Blob> self.blobs[0]).cpu_data_ptr()
        cdef const void* x = (<Blob> bottom[0]).cpu_data_ptr()
        cdef void* kept = self.keep(bottom, top)
        cdef void* y = (<Blob> top[0]).mutable_cpu_data_ptr()
        with nogil:
            prelu_forward(num_threads(), self.dtype, self.outer, self.channels, self.inner, x, y, kept, a)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        cdef Blob slope = self.blobs[0]
        cdef const void* a = slope.cpu_data_ptr()
        cdef const void* x = self.x_ptr(bottom, top)
        cdef const void* dy = (<Blob> top[0]).cpu_diff_ptr()
        cdef void* out
        if self.learns(0):
            out = slope.mutable_cpu_diff_ptr()
            with nogil:
                channel_prelu_sums(num_threads(), self.dtype, self.outer, self.channels, self.inner, 1, True, out, x, dy)
        if propagate_down[0]:
            out = (<Blob> bottom[0]).mutable_cpu_diff_ptr()
            with nogil:
                prelu_backward(num_threads(), self.dtype, self.outer, self.channels, self.inner, x, dy, out, a)


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

    cpdef forward_cpu(self, list bottom, list top):
        cdef const void* x = (<Blob> bottom[0]).cpu_data_ptr()
        cdef void* y = (<Blob> top[0]).mutable_cpu_data_ptr()
        with nogil:
            if self.operation == ASUM:
                channel_abs_sums(num_threads(), self.dtype, 1, self.channels, self.inner, self.coeff, False, y, x)
            elif self.operation == SUMSQ:
                channel_square_sums(num_threads(), self.dtype, 1, self.channels, self.inner, self.coeff, False, y, x)
            else:
                channel_sums(num_threads(), self.dtype, 1, self.channels, self.inner, self.coeff, False, y, x)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        if not propagate_down[0]:
            return
        cdef const void* x = (<Blob> bottom[0]).cpu_data_ptr()
        cdef const void* dy = (<Blob> top[0]).cpu_diff_ptr()
        cdef void* dx = (<Blob> bottom[0]).mutable_cpu_diff_ptr()
        with nogil:
            if self.operation == ASUM:
                abs_sum_backward(num_threads(), self.dtype, 1, self.channels, self.inner, x, dx, NULL, dy, self.coeff)
            elif self.operation == SUMSQ:
                square_sum_backward(num_threads(), self.dtype, 1, self.channels, self.inner, x, dx, NULL, dy, self.coeff)
            else:
                sum_backward(num_threads(), self.dtype, 1, self.channels, self.inner, x, dx, NULL, dy, self.coeff)


register_layer("Scale", ScaleLayer)
register_layer("Bias", BiasLayer)
register_layer("PReLU", PReLULayer)
register_layer("Reduction", ReductionLayer)
