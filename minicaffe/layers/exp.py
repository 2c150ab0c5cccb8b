"""Exp: ``y = base^(shift + scale x)``, base -1 means e (Caffe exp_layer.cpp)."""

import numpy as np

from minicaffe.layers.base.checks import log_of_base
from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class ExpLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        param = self.param.exp_param
        log_base = log_of_base(param.base, "exp_param.base")
        with np.errstate(over="ignore"):    # infinity, as in C
            outer = np.exp(log_base * param.shift)
        self.set_function(Function.EXP, (log_base * param.scale, outer), reads="y")     # y = outer exp(inner x)
