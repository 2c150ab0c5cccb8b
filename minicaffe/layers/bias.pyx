"""Bias: ``y = x + bias``, broadcast (Caffe bias_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layers.base.broadcast cimport AxesLayer
from minicaffe.ops.broadcast.caffe cimport copy_typed, shift_by

from minicaffe.layer import register_layer


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


register_layer("Bias", BiasLayer)
