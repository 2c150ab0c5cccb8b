"""The operation of convolution and its transpose, deconvolution, and engines CAFFE and PLAIN (ops/conv/caffe.hpp and plain.hpp).

Engines compute three products of an image side and a column side: columns from the image, the image from columns ("backward data"),
and the gradient of the weights from both. The image is the bottom of a convolution, the top of a deconvolution.
"""

from minicaffe.engines.engine cimport Primitive
from minicaffe.engines.epilogue cimport ChannelEpilogue
from minicaffe.loops.sums.caffe cimport channel_sums
from minicaffe.ops.gemm.blas cimport Blas, blas

from minicaffe.engines.table import CAFFE, PLAIN

cdef extern from "minicaffe/ops/conv/caffe.hpp" nogil:
    long long conv_scratch "mc::conv_scratch"(const Context&, int dtype, const ConvShape& shape)
    void conv_forward "MC_TYPED(mc::conv_forward)"(
        int dtype, const Context&, const Blas& blas, const ConvShape& shape, const void* x, const void* weight, const void* bias,
        void* y, void* scratch)
    void conv_backward_data "MC_TYPED(mc::conv_backward_data)"(
        int dtype, const Context&, const Blas& blas, const ConvShape& shape, const void* dy, const void* weight, const void* bias,
        void* dx, void* scratch)
    void conv_backward_weights "MC_TYPED(mc::conv_backward_weights)"(
        int dtype, const Context&, const Blas& blas, const ConvShape& shape, const void* x, const void* dy, void* dweight, bint add,
        void* scratch)

cdef extern from "minicaffe/ops/conv/plain.hpp" nogil:
    void plain_forward "MC_PLAIN(mc::plain::conv_forward)"(int dtype, const Context&, const ConvShape&, const void* x,
                                                           const void* weight, const void* bias, void* y)
    void plain_backward_data "MC_PLAIN(mc::plain::conv_backward_data)"(int dtype, const Context&, const ConvShape&, const void* dy,
                                                                       const void* weight, const void* bias, void* dx)
    void plain_backward_weights "MC_PLAIN(mc::plain::conv_backward_weights)"(int dtype, const Context&, const ConvShape&,
                                                                             const void* x, const void* dy, void* dweight)
    void plain_backward_bias "MC_PLAIN(mc::plain::conv_backward_bias)"(int dtype, const Context&, const Channels& top,
                                                                       const void* dy, void* dbias)


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
        """Return whether forward can compute an epilogue (`Operation.fuses`): only if the channels are axis 1 of the top."""
        cdef Channels channels = self.top()
        return (top.num_axes == 2 + self.shape.window.num_axes and channels.outer == top.dims[0]
                and channels.channels == top.dims[1] and Operation.fuses(self, on, bottom, top))


cdef int backward_bias(const Context& on, Convolution op, Blob top, Blob bias, Layout layout=None) except -1:
    """Add to the gradient of each bias the sum of the top's gradient over its channel, for engines whose libraries do not.

    `layout` is the one in which the engine reads the top's gradient: None (plain), or one with channels last.
    """
    cdef Channels channels = op.top()
    if layout is not None:
        channels = Channels(channels.outer * channels.inner, channels.channels, 1)
    cdef const void* dy = top.diff_in_layout(on, layout)
    cdef bint add = True
    cdef void* gradient = bias.gradient_on(on, None, &add)
    with nogil:
        channel_sums(on, op.dtype, channels, 1, add, gradient, dy)


cdef class CaffeConvolution(Primitive):
    """Engine CAFFE; or, if it is `plain`, engine PLAIN. Its methods override Primitive's, which `Operation` calls."""

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* x = bottom.data_on(on)
        cdef const void* w = weight.data_on(on)
        cdef object _kept = weight.data_memory.host     # keeps `w` alive if a net in another thread moves the weights to a layout
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef void* y = top.mutable_data_on(on)
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        with nogil:
            if self.plain and op.transposed:
                plain_backward_data(op.dtype, on, op.shape, x, w, b, y)
            elif self.plain:
                plain_forward(op.dtype, on, op.shape, x, w, b, y)
            elif op.transposed:
                conv_backward_data(op.dtype, on, library[0], op.shape, x, w, b, y, scratch)
            else:
                conv_forward(op.dtype, on, library[0], op.shape, x, w, b, y, scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* dy = top.diff_on(on)
        cdef const void* w = weight.data_on(on)
        cdef object _kept = weight.data_memory.host
        cdef void* dx = bottom.mutable_diff_on(on)
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        with nogil:
            if self.plain and op.transposed:
                plain_forward(op.dtype, on, op.shape, dy, w, <const void*> NULL, dx)
            elif self.plain:
                plain_backward_data(op.dtype, on, op.shape, dy, w, <const void*> NULL, dx)
            elif op.transposed:
                conv_forward(op.dtype, on, library[0], op.shape, dy, w, <const void*> NULL, dx, scratch)
            else:
                conv_backward_data(op.dtype, on, library[0], op.shape, dy, w, <const void*> NULL, dx, scratch)

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* image
        cdef const void* columns
        cdef void* gradient
        cdef void* scratch
        cdef bint add = True        # gradient_on sets False where the gradient is all zeros not yet written: it must be overwritten
        cdef const Blas* library = blas()
        if bias is not None and self.plain:
            plain_backward_bias(op.dtype, on, op.top(), top.diff_on(on), bias.mutable_diff_on(on))
        elif bias is not None:
            backward_bias(on, op, top, bias)
        if weight is not None:
            image, columns = bottom.data_on(on), top.diff_on(on)
            scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
            may_overwrite = on.stream != NULL and bottom.count and top.count    # otherwise the loops only add, or compute nothing
            gradient = weight.gradient_on(on, None, &add) if may_overwrite else weight.mutable_diff_on(on)
            if op.transposed:
                image, columns = columns, image
            with nogil:
                if self.plain:
                    plain_backward_weights(op.dtype, on, op.shape, image, columns, gradient)
                else:
                    conv_backward_weights(op.dtype, on, library[0], op.shape, image, columns, gradient, add, scratch)


CAFFE.computes(Convolution, CaffeConvolution)
PLAIN.computes(Convolution, CaffeConvolution)
