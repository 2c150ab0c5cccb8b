"""Softmax along one axis, by engine CAFFE (ops/softmax/kernel.hpp)."""

from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.engines.layouts cimport by_channels, data_layout, diff_layout

from minicaffe.engines.table import CAFFE

cdef extern from "minicaffe/ops/softmax/kernel.hpp" namespace "mc" nogil:
    void softmax_forward(const Context&, int dtype, long long outer, long long channels, long long inner, const void* x, void* y)
    void softmax_backward(const Context&, int dtype, long long outer, long long channels, long long inner, const void* y,
                          const void* dy, void* dx)


cdef class Softmax(Operation):
    """``y = exp(x - max x) / sum exp(x - max x)`` along the channels of (outer, channels, inner), ``dx = y (dy - sum dy y)``."""

    cpdef int set_shape(self, Blob bottom, int axis) except -1:
        """Set the shape: that of the bottom, whose channels are `axis`."""
        self.outer, self.channels = bottom.count_range(0, axis), bottom.dims[axis]
        self.inner = bottom.count_range(axis + 1, bottom.num_axes)
        return self.changed()

    cdef Layout find(self, const Context& on, Layout layout, Blob bottom, Channels* found):
        """Return `layout`, if it is of a device and its channels are the softmax's, else None; set `found` to the shape there."""
        return by_channels(layout if on.stream != NULL else None, bottom, Channels(self.outer, self.channels, self.inner), found)


cdef class CaffeSoftmax(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Softmax op = operation
        cdef Channels c
        cdef Layout layout = op.find(on, data_layout(on, [bottom]), bottom, &c)
        with nogil:
            softmax_forward(on, op.dtype, c.outer, c.channels, c.inner, bottom.data_in_layout(on, layout),
                            top.overwrite_data_in_layout(on, layout))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Softmax op = operation
        cdef Channels c
        cdef Layout layout = op.find(on, diff_layout(on, [top]) or data_layout(on, [top]), bottom, &c)
        with nogil:
            softmax_backward(on, op.dtype, c.outer, c.channels, c.inner, top.data_in_layout(on, layout),
                             top.diff_in_layout(on, layout), bottom.overwrite_diff_in_layout(on, layout))


CAFFE.computes(Softmax, CaffeSoftmax)
