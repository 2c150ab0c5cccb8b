"""Log: ``y = log_base(scale x + shift)``, base -1 means e (Caffe log_layer.cpp)."""

from minicaffe.errors import ConfigError
from minicaffe.layers.base.checks import log_of_base
from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class LogLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        param = self.param.log_param
        log_base = log_of_base(param.base, "log_param.base")
        if log_base == 0:
            raise ConfigError("must not be 1, whose logarithm is 0", field="log_param.base")
        self.set_function(Function.LOG, (param.scale, param.shift, 1 / log_base))     # its gradient reads x
