"""TanH: ``y = tanh(x)`` (Caffe tanh_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Activation, Function


class TanHLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        self.op = Activation(self.dtype, self.param.tanh_param.engine)
        self.op.function = Function.TANH
