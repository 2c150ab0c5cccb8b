"""Sigmoid: ``y = 1 / (1 + exp(-x))``, computed as ``tanh(x / 2) / 2 + 1 / 2`` (Caffe sigmoid_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Activation, Function


class SigmoidLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        self.op = Activation(self.dtype, self.param.sigmoid_param.engine)
        self.op.function = Function.SIGMOID
