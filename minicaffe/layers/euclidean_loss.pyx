"""EuclideanLoss (Caffe euclidean_loss_layer.cpp)."""

from minicaffe.layers.base.loss cimport Context, LossLayer, same_count
from minicaffe.ops.loss.caffe cimport scaled_difference, squared_distance


cdef class EuclideanLossLayer(LossLayer):
    """``loss = sum (a - b)^2 / (2 N)``, with a gradient to both bottoms."""

    gradients = 2       # for i = 1 LossLayer gives `gradient_to` the scale with the other sign

    cpdef reshape(self, list bottom, list top):
        LossLayer.reshape(self, bottom, top)
        same_count(bottom)

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:    # at: data of a and b
        squared_distance(on, self.dtype, self.count, coeff / 2, out, self.at[0], self.at[1])

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:    # scale (a - b)
        scaled_difference(on, self.dtype, self.count, self.at[0], self.at[1], dx, scale)
