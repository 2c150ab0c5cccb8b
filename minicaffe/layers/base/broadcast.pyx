"""Bases of layers with parameters broadcast along axes: Scale, Bias, PReLU; and of Reduction, whose gradient is such a broadcast.

A blob is seen as outer x channels x inner: parameter k meets all elements whose middle index is k (ops/broadcast, loops/sums).
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.engines.layouts cimport by_channels, data_layout, diff_layout
from minicaffe.loops.sums.caffe cimport channel_sums

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.checks import axis_of, saved_bottom


cdef class BroadcastLayer(DeviceLayer):
    """One bottom x, perhaps a second one with the values to broadcast, and one top of the shape of x."""

    cdef int split_axes(self, Blob x, int axis, int num_axes) except -1:
        """Treat x as outer x channels x inner, with `num_axes` axes from `axis` on in the middle."""
        self.axes = Channels(x.count_range(0, axis), x.count_range(axis, axis + num_axes),
                             x.count_range(axis + num_axes, x.num_axes))

    cdef Layout layout_forward(self, const Context& on, list bottom):
        """In which x is, if the parameters are of its channels, otherwise None: plain."""
        return by_channels(data_layout(on, bottom[:1]), bottom[0], self.axes, &self.stored)

    cdef Layout layout_backward(self, const Context& on, list bottom, list top):
        """In which dy is, or x if that is plain; None as above."""
        return by_channels(diff_layout(on, top) or data_layout(on, [self.forward_x(bottom, top)]), bottom[0],
                           self.axes, &self.stored)

    def scratch_blobs(self):
        return [] if self.kept is None else [self.kept]

    cdef void* keep(self, const Context& on, list bottom, list top, Layout layout) except? NULL:
        """Return where forward copies x to, null if x stays in the bottom."""
        if top[0] is not bottom[0]:
            return NULL
        if self.kept is None:
            self.kept = self.new_blob(what="bottom before the layer in place")
        self.kept.reshape_like(<Blob?> bottom[0])
        return self.kept.overwrite_data_in_layout(on, layout)

    cdef Blob forward_x(self, list bottom, list top):
        """Return the blob with the x that forward saw."""
        return saved_bottom(self.kept, bottom[0]) if top[0] is bottom[0] else bottom[0]


cdef class AxesLayer(BroadcastLayer):
    """What Scale and Bias share: the broadcast values are a parameter, or the second bottom."""

    min_bottom_blobs = 1
    max_bottom_blobs = 2
    exact_num_top_blobs = 1

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

    cdef int view_by_values(self, list bottom, list top, param) except -1:
        """See x by the shape of the broadcast blob, and shape the top."""
        cdef Blob x = bottom[0], values = self.values(bottom)
        axis = axis_of(x, param.axis, f"{self.field}.axis") if values.num_axes else 0
        if x.shape[axis:axis + values.num_axes] != values.shape:
            where = "bottom[1]" if len(bottom) > 1 else "blobs[0]"
            raise ShapeError(f"has shape {list(values.shape)}, which bottom[0] of shape {list(x.shape)} does not have from "
                             f"axis {axis} on", field=where)
        self.split_axes(x, axis, values.num_axes)
        (<Blob?> top[0]).reshape_like(x)

    cdef int sum_dy(self, const Context& on, const void* dy, Blob values, bint learned) except -1:
        """The gradient of a bias, the sum of dy; added if it is `learned` and has something to add to."""
        cdef bint add = learned
        cdef void* out = values.gradient_on(on, None, &add) if learned else values.mutable_diff_on(on)
        with nogil:
            channel_sums(on, self.dtype, self.stored, 1, add, out, dy)
