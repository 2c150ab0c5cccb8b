"""MultinomialLogisticLoss (Caffe multinomial_logistic_loss_layer.cpp)."""

from minicaffe.layers.base.loss cimport Blob, ClassLossLayer, Context
from minicaffe.ops.loss.caffe cimport log_loss, log_loss_backward

cdef double FLOOR = 1e-20   # under a probability


cdef class MultinomialLogisticLossLayer(ClassLossLayer):
    """``loss = -1/N sum log(max(x[n, label], 1e-20))`` of given probabilities x."""

    cdef int loss_to(self, const Context& on, list bottom, double coeff, void* out) except -1:
        cdef Blob x = bottom[0], label = bottom[1]
        with nogil:
            log_loss(on, self.dtype, label.count, coeff, out, self.labels, x.data_on(on), label.data_on(on), FLOOR)

    cdef int gradient_to(self, const Context& on, list bottom, double scale, void* dx) except -1:
        cdef Blob x = bottom[0], label = bottom[1]
        with nogil:
            log_loss_backward(on, self.dtype, self.labels, x.data_on(on), label.data_on(on), scale, FLOOR, dx)
