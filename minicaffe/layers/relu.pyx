"""ReLU: ``y = max(x, 0) + negative_slope min(x, 0)`` (Caffe relu_layer.cpp). In place only for a slope of at least 0."""

from minicaffe.layers.base.neuron cimport ActivationLayer
from minicaffe.ops.activation.operation cimport RELU, Activation

from minicaffe.layer import register_layer
from minicaffe.ops.engine import CAFFE


cdef class ReLULayer(ActivationLayer):
    cpdef layer_setup(self, list bottom, list top):
        param = self.param.relu_param
        self.op = Activation(self.dtype, CAFFE if param.negative_slope else param.engine)     # no library knows a slope
        self.op.function, self.op.slope, self.reads_bottom = RELU, param.negative_slope, param.negative_slope < 0

    def join(self, epilogue, list bottom, bint backward):
        return epilogue.rectify(self.op.slope)   # backward in place reads the top alone


register_layer("ReLU", ReLULayer)
