"""EuclideanLoss (Caffe euclidean_loss_layer.cpp)."""

from minicaffe.layers.base.loss cimport Blob, Context, LossLayer, same_count
from minicaffe.ops.loss.caffe cimport scaled_difference, squared_distance


cdef class EuclideanLossLayer(LossLayer):
    """``loss = sum (a - b)^2 / (2 N)``, with a gradient to both bottoms."""

    gradients = 2

    cpdef reshape(self, list bottom, list top):
        LossLayer.reshape(self, bottom, top)
        same_count(bottom)

    cdef int loss_to(self, const Context& on, list bottom, double coeff, void* out) except -1:
        cdef Blob a = bottom[0], b = bottom[1]
        with nogil:
            squared_distance(on, self.dtype, a.count, coeff / 2, out, a.data_on(on), b.data_on(on))

    cdef int gradient_to(self, const Context& on, list bottom, double scale, void* dx) except -1:
        cdef Blob a = bottom[0], b = bottom[1]
        with nogil:
            scaled_difference(on, self.dtype, a.count, a.data_on(on), b.data_on(on), dx, scale)
