"""Sigmoid: ``y = 1 / (1 + exp(-x))``, computed as ``tanh(x / 2) / 2 + 1 / 2`` (Caffe sigmoid_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class SigmoidLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        self.set_function(Function.SIGMOID, reads="y", engine=self.param.sigmoid_param.engine)   # gradient: dy y (1 - y)
