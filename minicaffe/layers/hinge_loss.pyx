"""HingeLoss (Caffe hinge_loss_layer.cpp)."""

from libcpp cimport bool as cpp_bool

from minicaffe.layers.base.loss cimport ClassLossLayer, Context
from minicaffe.ops.loss.caffe cimport hinge, hinge_backward

from minicaffe.proto import caffe_pb2


cdef class HingeLossLayer(ClassLossLayer):
    """``loss = 1/N sum m`` (or ``m^2`` with norm L2), ``m = max(0, 1 - x)`` for the true class, ``max(0, 1 + x)`` for the
    others."""

    cdef cpp_bool squared   # norm L2

    cpdef layer_setup(self, list bottom, list top):
        ClassLossLayer.layer_setup(self, bottom, top)
        self.squared = self.param.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:    # at: data of x and labels
        hinge(on, self.dtype, self.count, coeff, out, self.labels, self.at[0], self.at[1], self.squared)

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:    # 4: the cost of an element
        hinge_backward(on, self.dtype, self.count, 4, self.labels, self.at[0], self.at[1], self.squared, scale, dx)
