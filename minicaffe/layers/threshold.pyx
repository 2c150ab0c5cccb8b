"""Threshold: ``y = 1`` for x > threshold, else 0; no gradient (Caffe threshold_layer.cpp)."""

from minicaffe.layers.base.neuron cimport Context, NeuronLayer

cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void threshold_forward "mc::map1<mc::ThresholdForward>"(const Context&, int dtype, long long n, const void* x, void* y,
                                                            double threshold)


cdef class ThresholdLayer(NeuronLayer):
    cdef double threshold

    cpdef layer_setup(self, list bottom, list top):
        self.threshold = self.param.threshold_param.threshold

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        threshold_forward(on, self.dtype, n, x, y, self.threshold)
