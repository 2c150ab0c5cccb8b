"""ReLU: ``y = max(x, 0) + negative_slope min(x, 0)`` (Caffe relu_layer.cpp). In place only for a slope of at least 0."""

from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.ops.activation.operation import Activation, Function


class ReLULayer(ActivationLayer):
    def layer_setup(self, bottom, top):
        param = self.param.relu_param
        self.op = Activation(self.dtype, param.engine)
        self.op.function, self.op.slope, self.reads_bottom = Function.RELU, param.negative_slope, param.negative_slope < 0

    def join(self, epilogue, bottom, backward):
        return epilogue.rectify(self.op.slope)   # backward in place reads the top alone
