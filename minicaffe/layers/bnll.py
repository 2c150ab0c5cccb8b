"""BNLL: ``y = log(1 + exp(x))`` (Caffe bnll_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class BNLLLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        self.set_function(Function.BNLL)    # its gradient reads x, by default: backward in place raises
