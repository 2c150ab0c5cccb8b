"""Swish: ``y = x sigmoid(beta x)`` (Caffe swish_layer.cpp). Keeps x when in place."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class SwishLayer(ActivationLayer):
    keeps_bottom = True     # a copy of x in place, as the gradient reads x and y

    def layer_setup(self, bottom, top):
        self.set_function(Function.SWISH, (self.param.swish_param.beta,), reads="xy")
