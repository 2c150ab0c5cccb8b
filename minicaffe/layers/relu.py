"""ReLU: ``y = max(x, 0) + negative_slope min(x, 0)`` (Caffe relu_layer.cpp). In place only for a slope of at least 0."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Function


class ReLULayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        param = self.param.relu_param
        self.slope = param.negative_slope       # if it is at least 0, y is above 0 exactly where x is: in place works
        self.set_function(Function.RELU, (self.slope,), in_place=self.slope >= 0, engine=param.engine)

    def fuse(self, epilogue, bottom, backward):     # into the layer below; see layer.pyx
        return epilogue.rectify(self.slope)   # also with a backward of its own, which in place reads the top alone
