"""Bias: ``y = x + bias``, broadcast (Caffe bias_layer.cpp)."""

from minicaffe.layers.base.broadcast cimport AxesLayer


cdef class BiasLayer(AxesLayer):
    """``y = x + bias``, broadcast; bias is blobs[0] or the second bottom."""

    backward_reads_bottoms = False

    cpdef layer_setup(self, list bottom, list top):
        self.make_values(bottom, self.param.bias_param, "bias_param", self.param.bias_param.filler)   # appends blobs[0]
