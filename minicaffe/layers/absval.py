"""AbsVal: ``y = |x|``, gradient 0 at 0; never in place (Caffe absval_layer.cpp)."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class AbsValLayer(ActivationLayer):
    refuses_in_place = True

    def layer_setup(self, bottom, top):
        self.set_function(Function.ABS)     # its gradient reads x, by default
