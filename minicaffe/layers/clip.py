"""Clip: ``y = max(min, min(x, max))``; the gradient passes where ``min <= x <= max`` (Caffe clip_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class ClipLayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        param = self.param.clip_param
        self.set_function(Function.CLIP, (param.min, param.max))     # its gradient reads x, by default
