"""Power: ``y = (shift + scale x)^power`` (Caffe power_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class PowerLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        param = self.param.power_param
        self.set_function(Function.POWER, (param.power, param.scale, param.shift), {0: "", 1: "", 2: "x"}.get(param.power, "xy"))
