"""MultinomialLogisticLoss (Caffe multinomial_logistic_loss_layer.cpp)."""

from minicaffe.layers.base.loss cimport ClassLossLayer, Context
from minicaffe.ops.loss.caffe cimport log_loss, log_loss_backward

cdef double FLOOR = 1e-20   # least probability in the logarithm


cdef class MultinomialLogisticLossLayer(ClassLossLayer):
    """``loss = -1/N sum log(max(x[n, label], 1e-20))`` of given probabilities x."""

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:    # at: data of x and labels
        log_loss(on, self.dtype, self.labels.outer * self.labels.inner, coeff, out, self.labels, self.at[0], self.at[1], FLOOR)

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:    # as `loss_to`
        log_loss_backward(on, self.dtype, self.labels, self.at[0], self.at[1], scale, FLOOR, dx)
