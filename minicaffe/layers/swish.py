"""Swish: ``y = x sigmoid(beta x)`` (Caffe swish_layer.cpp). Keeps x when in place."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class SwishLayer(ActivationLayer):
    keeps_bottom = True

    def layer_setup(self, bottom, top):
        self.set_function(Function.SWISH, (self.param.swish_param.beta,), reads="xy")
