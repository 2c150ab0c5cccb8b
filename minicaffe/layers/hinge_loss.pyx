"""HingeLoss (Caffe hinge_loss_layer.cpp)."""

from libcpp cimport bool as cpp_bool

from minicaffe.layers.base.loss cimport Blob, ClassLossLayer, Context
from minicaffe.ops.loss.caffe cimport hinge, hinge_backward

from minicaffe.proto import caffe_pb2


cdef class HingeLossLayer(ClassLossLayer):
    """``loss = 1/N sum m`` (or ``m^2`` with norm L2), ``m = max(0, 1 - x)`` for the true class, ``max(0, 1 + x)`` for the
    others."""

    cdef cpp_bool squared

    cpdef layer_setup(self, list bottom, list top):
        ClassLossLayer.layer_setup(self, bottom, top)
        self.squared = self.param.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2

    cdef int loss_to(self, const Context& on, list bottom, double coeff, void* out) except -1:
        cdef Blob x = bottom[0], label = bottom[1]
        with nogil:
            hinge(on, self.dtype, x.count, coeff, out, self.labels, x.data_on(on), label.data_on(on), self.squared)

    cdef int gradient_to(self, const Context& on, list bottom, double scale, void* dx) except -1:
        cdef Blob x = bottom[0], label = bottom[1]
        with nogil:
            hinge_backward(on, self.dtype, x.count, 4, self.labels, x.data_on(on), label.data_on(on), self.squared, scale, dx)
