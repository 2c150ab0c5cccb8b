"""Bases of layers with parameters broadcast along axes: Scale, Bias, PReLU; and of Reduction, whose gradient is such a broadcast.

A blob is seen as outer x channels x inner: parameter k meets all elements whose middle index is k (ops/broadcast, loops/sums).
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.engines.epilogue cimport Epilogue
from minicaffe.engines.layouts cimport by_channels, data_layout, diff_layout, stored
from minicaffe.loops.strided.caffe cimport copy_typed
from minicaffe.loops.sums.caffe cimport channel_dots, channel_sums
from minicaffe.ops.broadcast.caffe cimport scale_by, scale_shift, shift_by

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.engines.engine import saved_bottom
from minicaffe.layers.base.checks import axis_of


cdef class BroadcastLayer(DeviceLayer):
    """One bottom x, perhaps a second one with the values to broadcast, and one top of the shape of x."""

    cdef int split_axes(self, Blob x, int axis, int num_axes) except -1:
        """Treat x as outer x channels x inner, with `num_axes` axes from `axis` on in the middle."""
        self.axes = Channels(x.count_range(0, axis), x.count_range(axis, axis + num_axes),
                             x.count_range(axis + num_axes, x.num_axes))

    cdef Layout layout_forward(self, const Context& on, list bottom):
        """Return the layout for forward, None: plain; that of x, if the parameters belong to its channels; set `stored`."""
        return by_channels(data_layout(on, bottom[:1]), bottom[0], self.axes, &self.stored)

    cdef Layout layout_backward(self, const Context& on, list bottom, list top):
        """Return the layout for backward: that of dy, or of x if dy is plain; None as in forward; set `stored`."""
        return by_channels(diff_layout(on, top) or data_layout(on, [self.forward_x(bottom, top)]), bottom[0],
                           self.axes, &self.stored)

    def scratch_blobs(self):        # freed by `Layer.release_memory`
        return [] if self.kept is None else [self.kept]

    cdef void* keep(self, const Context& on, list bottom, list top, Layout layout) except? NULL:
        """Return the address where forward must copy x for backward, as it works in place; NULL if x stays in the bottom."""
        if top[0] is not bottom[0]:
            return NULL
        if self.kept is None:
            self.kept = self.new_blob(what="bottom before the layer in place")
        self.kept.reshape_like(<Blob?> bottom[0])
        return self.kept.overwrite_data_in_layout(on, layout)

    cdef Blob forward_x(self, list bottom, list top):
        """Return the blob with the x that forward saw, for backward."""
        return saved_bottom(self.kept, bottom[0]) if top[0] is bottom[0] else bottom[0]


cdef class AxesLayer(BroadcastLayer):
    """Scale and Bias: ``y = x values`` or ``y = x + values``, which are a parameter or the second bottom; Scale may add a bias."""

    min_bottom_blobs = 1
    max_bottom_blobs = 2
    exact_num_top_blobs = 1
    backward_reads_tops = False

    cdef int make_values(self, list bottom, param, str field, filler) except -1:
        """Append the parameter unless there is a second bottom; `field` is the name of `param` in LayerParameter."""
        cdef Blob x = bottom[0]
        self.values_param, self.field = param, field
        if len(bottom) > 1:
            return 0
        axis = axis_of(x, param.axis, f"{field}.axis")
        if param.num_axes < -1 or axis + param.num_axes > x.num_axes:
            raise ConfigError(f"must be -1, or from 0 to {x.num_axes - axis} for a bottom of shape {list(x.shape)} and axis "
                              f"{axis}, got {param.num_axes}", field=f"{field}.num_axes")
        self.add_param(x.shape[axis:] if param.num_axes == -1 else x.shape[axis:axis + param.num_axes], filler, f"{field}.filler")

    cdef Blob values(self, list bottom):
        """Return the blob with the values to broadcast."""
        return <Blob> (bottom[1] if len(bottom) > 1 else self.blobs[0])

    cdef Blob bias(self, list bottom):
        """Return the blob that is added, or None."""
        if not self.scales:
            return self.values(bottom)
        return <Blob> self.blobs[len(self.blobs) - 1] if self.values_param.bias_term else None

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], values = self.values(bottom)
        axis = axis_of(x, self.values_param.axis, f"{self.field}.axis") if values.num_axes else 0
        if x.shape[axis:axis + values.num_axes] != values.shape:
            where = "bottom[1]" if len(bottom) > 1 else "blobs[0]"
            raise ShapeError(f"has shape {list(values.shape)}, which bottom[0] of shape {list(x.shape)} does not have from "
                             f"axis {axis} on", field=where)
        self.split_axes(x, axis, values.num_axes)
        (<Blob?> top[0]).reshape_like(x)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob bias = self.bias(bottom)
        cdef const void* s = self.values(bottom).data_on(on)
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef Layout layout = self.layout_forward(on, bottom)
        cdef const void* x = (<Blob> bottom[0]).data_in_layout(on, layout)
        cdef void* kept = self.keep(on, bottom, top, layout) if self.scales else NULL
        cdef void* y = (<Blob> top[0]).overwrite_data_in_layout(on, layout)
        with nogil:
            if not self.scales:
                shift_by(on, self.dtype, self.stored, x, y, NULL, b)
            elif b:
                scale_shift(on, self.dtype, self.stored, x, y, kept, s, b)
            else:
                scale_by(on, self.dtype, self.stored, x, y, kept, s)

    def fuse(self, Epilogue epilogue, list bottom, bint backward):      # into the layer below; `backward`: its own must run
        if backward or len(bottom) > 1 or self.blobs[0].shape != bottom[0].shape[1:2] or self.axes.outer != bottom[0].shape[0]:
            return False    # not one parameter for each channel, or backward needs x
        bias = self.bias(bottom)
        return epilogue.affine(self.blobs[0] if self.scales else None, bias, (
            self.scales and self.needs_gradient(0), bias is not None and self.needs_gradient(len(self.blobs) - 1)))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob x = bottom[0], values = self.values(bottom), bias = self.bias(bottom)
        cdef Layout layout = self.layout_backward(on, bottom, top) if self.scales else by_channels(
            diff_layout(on, top), x, self.axes, &self.stored)
        cdef const void* dy = (<Blob> top[0]).diff_in_layout(on, layout)
        cdef const void* saved
        cdef const void* s
        cdef void* out
        cdef bint add
        if bias is not None and (propagate_down[1] if bias in bottom else self.needs_gradient(len(self.blobs) - 1)):
            out = self.gradient_of(on, bottom, bias, &add)
            with nogil:
                channel_sums(on, self.dtype, self.stored, 1, add, out, dy)
        if self.scales and (propagate_down[1] if values in bottom else self.needs_gradient(0)):
            saved = self.forward_x(bottom, top).data_in_layout(on, layout)
            out = self.gradient_of(on, bottom, values, &add)
            with nogil:
                channel_dots(on, self.dtype, self.stored, 1, add, out, saved, dy)
        if propagate_down[0] and self.scales:
            s, out = values.data_on(on), x.overwrite_diff_in_layout(on, layout)
            with nogil:
                scale_by(on, self.dtype, self.stored, dy, out, NULL, s)
        elif propagate_down[0] and top[0] is not x:
            copy_typed(on, self.dtype, stored(layout, x), dy, x.overwrite_diff_in_layout(on, layout))

    cdef void* gradient_of(self, const Context& on, list bottom, Blob values, bint* add) except? NULL:
        """Return the address for the gradient of `values`; *add: whether to add to it, as to a parameter's, or to overwrite all."""
        add[0] = values not in bottom
        return values.gradient_on(on, None, add) if add[0] else values.mutable_diff_on(on)
