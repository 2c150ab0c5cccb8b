"""Threshold: ``y = 1`` for x > threshold, else 0; no gradient (Caffe threshold_layer.cpp)."""

from minicaffe.layer import Layer
from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class ThresholdLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        self.set_function(Function.THRESHOLD, (self.param.threshold_param.threshold,), reads="")

    def backward_cpu(self, top, propagate_down, bottom):
        Layer.backward_cpu(self, top, propagate_down, bottom)   # raises ConfigError: no gradient

    backward_gpu = backward_cpu
