"""The operation of convolution and its transpose, deconvolution, and the common code of its engines.

Engines compute three products of an image side and a column side. The image is the bottom of a convolution, the top of a
deconvolution.
"""

from minicaffe.ops.epilogue cimport ChannelEpilogue
from minicaffe.ops.lanes.caffe cimport Channels
from minicaffe.ops.sums.caffe cimport channel_sums


cdef class Convolution(Operation):
    """Images (images, channels, ...), weights (outputs, channels / groups, kernel...), columns (images, outputs, ...).

    x is the bottom, y the top: the image and the columns, or the other way round if `transposed`.
    """

    epilogue_class = ChannelEpilogue

    cdef int describe_shape(self, long long images, long long channels, long long outputs, long long groups, const Window& window,
                            long long plane) except -1:
        """Set the shape: of image side and column side, and the pixels of a plane of the top."""
        self.shape.set(images, channels, outputs, groups, window)
        self.images, self.outputs, self.plane = images, channels if self.transposed else outputs, plane
        return self.changed()

    cdef bint fuses(self, const Context& on, Blob x, Blob y) except -1:
        # The layers behind take axis 1 of the top for its channels.
        return (y.num_axes == 2 + self.shape.window.num_axes and self.images == y.dims[0] and self.outputs == y.dims[1]
                and Operation.fuses(self, on, x, y))


cdef int backward_bias(const Context& on, Convolution op, Blob y, Blob bias, Layout layout=None) except -1:
    """Add to the gradient of each bias the sum of y's, whose gradient is wanted in `layout`, over its channel."""
    cdef Channels channels = Channels(op.images, op.outputs, op.plane)
    if layout is not None:
        channels = Channels(op.images * op.plane, op.outputs, 1)
    cdef const void* dy = y.diff_in_layout(on, layout)
    cdef bint add = True
    cdef void* gradient = bias.gradient_on(on, None, &add)
    with nogil:
        channel_sums(on, op.dtype, channels, 1, add, gradient, dy)
