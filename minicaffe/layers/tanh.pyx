"""TanH: ``y = tanh(x)`` (Caffe tanh_layer.cpp)."""

from minicaffe.layers.base.neuron cimport ActivationLayer
from minicaffe.ops.activation.operation cimport TANH, Activation

from minicaffe.layer import register_layer


cdef class TanHLayer(ActivationLayer):
    cpdef layer_setup(self, list bottom, list top):
        self.op = Activation(self.dtype, self.param.tanh_param.engine)
        self.op.function = TANH


register_layer("TanH", TanHLayer)
