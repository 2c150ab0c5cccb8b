"""TanH: ``y = tanh(x)`` (Caffe tanh_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class TanHLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        self.set_function(Function.TANH, reads="y", engine=self.param.tanh_param.engine)     # gradient: dy (1 - y^2)
