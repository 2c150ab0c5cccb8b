"""Sigmoid: ``y = 1 / (1 + exp(-x))``, computed as ``tanh(x / 2) / 2 + 1 / 2`` (Caffe sigmoid_layer.cpp)."""

from minicaffe.layers.base.neuron cimport ActivationLayer
from minicaffe.ops.activation.operation cimport SIGMOID, Activation

from minicaffe.layer import register_layer


cdef class SigmoidLayer(ActivationLayer):
    cpdef layer_setup(self, list bottom, list top):
        self.op = Activation(self.dtype, self.param.sigmoid_param.engine)
        self.op.function = SIGMOID


register_layer("Sigmoid", SigmoidLayer)
