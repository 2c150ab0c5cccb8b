"""ELU: ``y = x`` for x > 0, else ``alpha (exp(x) - 1)``; in place for alpha >= 0 (Caffe elu_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class ELULayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        alpha = self.param.elu_param.alpha
        self.set_function(Function.ELU, (alpha,), reads="xy", in_place=alpha >= 0)     # then y is above 0 exactly where x is
