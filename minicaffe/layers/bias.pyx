"""Bias: ``y = x + bias``, broadcast (Caffe bias_layer.cpp)."""

from minicaffe.layers.base.broadcast cimport AxesLayer, Blob, Context, Layout
from minicaffe.ops.broadcast.caffe cimport copy_typed, shift_by
from minicaffe.engines.epilogue cimport Epilogue
from minicaffe.engines.layouts cimport by_channels, diff_layout, stored


cdef class BiasLayer(AxesLayer):
    """``y = x + bias``, broadcast; bias is blobs[0] or the second bottom."""

    backward_reads_bottoms = backward_reads_tops = False

    cpdef layer_setup(self, list bottom, list top):
        self.field = "bias_param"
        if len(bottom) == 1:
            self.add_param(self.parameter_shape(bottom, self.param.bias_param), self.param.bias_param.filler,
                           "bias_param.filler")

    cpdef reshape(self, list bottom, list top):
        self.view_by_values(bottom, top, self.param.bias_param)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* b = self.values(bottom).data_on(on)
        cdef Layout layout = self.layout_forward(on, bottom)
        cdef const void* x = (<Blob> bottom[0]).data_in_layout(on, layout)
        cdef void* y = (<Blob> top[0]).overwrite_data_in_layout(on, layout)
        with nogil:
            shift_by(on, self.dtype, self.stored, x, y, NULL, b)

    def join(self, Epilogue epilogue, list bottom, bint backward):
        if backward or len(bottom) > 1 or self.blobs[0].shape != bottom[0].shape[1:2] or self.axes.outer != bottom[0].shape[0]:
            return False    # not a parameter for each channel
        return epilogue.affine(None, self.blobs[0], (False, self.needs_gradient(0)))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef bint learned = len(bottom) == 1
        cdef Blob x = bottom[0]
        cdef Layout layout = by_channels(diff_layout(on, top), x, self.axes, &self.stored)
        cdef const void* dy = (<Blob> top[0]).diff_in_layout(on, layout)
        if self.needs_gradient(0) if learned else propagate_down[1]:
            self.sum_dy(on, dy, self.values(bottom), learned)
        if propagate_down[0] and top[0] is not x:
            copy_typed(on, self.dtype, stored(layout, x), dy, x.overwrite_diff_in_layout(on, layout))
