"""The operation of convolution and its transpose, deconvolution, and the common code of its engines.

Engines compute three products of an image side and a column side. The image is the bottom of a convolution, the top of a
deconvolution.
"""

from minicaffe.engines.epilogue cimport ChannelEpilogue
from minicaffe.loops.sums.caffe cimport channel_sums


cdef class Convolution(Operation):
    """Images (images, channels, ...), weights (outputs, channels / groups, kernel...), columns (images, outputs, ...).

    The bottom is the image and the top the columns, or the other way round if `transposed`.
    """

    epilogue_class = ChannelEpilogue

    cdef Channels top(self):
        """Return the images, channels and pixels of the top."""
        if self.transposed:
            return Channels(self.shape.images, self.shape.channels, self.shape.pixels)
        return Channels(self.shape.images, self.shape.outputs, self.shape.positions)

    cdef bint fuses(self, const Context& on, Blob bottom, Blob top) except -1:
        # The layers behind take axis 1 of the top for its channels.
        cdef Channels channels = self.top()
        return (top.num_axes == 2 + self.shape.window.num_axes and channels.outer == top.dims[0]
                and channels.channels == top.dims[1] and Operation.fuses(self, on, bottom, top))


cdef int backward_bias(const Context& on, Convolution op, Blob top, Blob bias, Layout layout=None) except -1:
    """Add to the gradient of each bias the sum of the top's, which is wanted in `layout`, over its channel."""
    cdef Channels channels = op.top()
    if layout is not None:
        channels = Channels(channels.outer * channels.inner, channels.channels, 1)
    cdef const void* dy = top.diff_in_layout(on, layout)
    cdef bint add = True
    cdef void* gradient = bias.gradient_on(on, None, &add)
    with nogil:
        channel_sums(on, op.dtype, channels, 1, add, gradient, dy)
