"""Softmax along one axis, and engines CAFFE and PLAIN, which compute it (ops/softmax/kernel.hpp and plain.hpp)."""

from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.engines.layouts cimport by_channels, data_layout, diff_layout

from minicaffe.engines.table import CAFFE, PLAIN

cdef extern from "minicaffe/ops/softmax/kernel.hpp" namespace "mc" nogil:
    void softmax_forward "MC_TYPED(mc::softmax_forward)"(int dtype, const Context&, long long outer, long long channels,
                                                         long long inner, const void* x, void* y)
    void softmax_backward "MC_TYPED(mc::softmax_backward)"(int dtype, const Context&, long long outer, long long channels,
                                                           long long inner, const void* y, const void* dy, void* dx)

cdef extern from "minicaffe/ops/softmax/plain.hpp" nogil:
    void plain_forward "MC_PLAIN(mc::plain::softmax_forward)"(int dtype, const Context&, const Channels&, const void* x, void* y)
    void plain_backward "MC_PLAIN(mc::plain::softmax_backward)"(int dtype, const Context&, const Channels&, const void* y,
                                                                const void* dy, void* dx)


cdef class Softmax(Operation):
    """``y = exp(x - max x) / sum exp(x - max x)`` along the channels of (outer, channels, inner), ``dx = y (dy - sum dy y)``."""

    cpdef int set_shape(self, Blob bottom, int axis) except -1:
        """Set the shape, that of the bottom, whose channels are `axis`, so that engines are chosen again; for a layer's reshape."""
        self.outer, self.channels = bottom.count_range(0, axis), bottom.dims[axis]
        self.inner = bottom.count_range(axis + 1, bottom.num_axes)
        return self.changed()

    cdef Layout find(self, const Context& on, Layout layout, Blob bottom, Channels* found):
        """Return `layout` if it is a device's with the softmax's channels, else None, plain; set `found` to the shape in it."""
        return by_channels(layout if on.stream != NULL else None, bottom, Channels(self.outer, self.channels, self.inner), found)


cdef class CaffeSoftmax(Primitive):
    """Engine CAFFE; or, if it is `plain`, engine PLAIN. `Operation.forward` and `backward` call it; weight and bias are None."""

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Softmax op = operation
        cdef Channels c
        cdef Layout layout = op.find(on, data_layout(on, [bottom]), bottom, &c)
        cdef const void* x = bottom.data_in_layout(on, layout)
        cdef void* y = top.overwrite_data_in_layout(on, layout)
        with nogil:
            if self.plain:
                plain_forward(op.dtype, on, c, x, y)
            else:
                softmax_forward(op.dtype, on, c.outer, c.channels, c.inner, x, y)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Softmax op = operation
        cdef Channels c
        cdef Layout layout = op.find(on, diff_layout(on, [top]) or data_layout(on, [top]), bottom, &c)
        cdef const void* y = top.data_in_layout(on, layout)
        cdef const void* dy = top.diff_in_layout(on, layout)
        cdef void* dx = bottom.overwrite_diff_in_layout(on, layout)
        with nogil:
            if self.plain:
                plain_backward(op.dtype, on, c, y, dy, dx)
            else:
                softmax_backward(op.dtype, on, c.outer, c.channels, c.inner, y, dy, dx)


CAFFE.computes(Softmax, CaffeSoftmax)
PLAIN.computes(Softmax, CaffeSoftmax)
