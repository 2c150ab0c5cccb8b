"""EuclideanLoss (Caffe euclidean_loss_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layers.base.loss cimport LossLayer, same_count
from minicaffe.ops.loss.caffe cimport scaled_difference, squared_distance

from minicaffe.layer import register_layer


cdef class EuclideanLossLayer(LossLayer):
    """``loss = sum (a - b)^2 / (2 N)``, with a gradient to both bottoms."""

    gradients = 2

    cpdef reshape(self, list bottom, list top):
        LossLayer.reshape(self, bottom, top)
        same_count(bottom)

    cdef int loss_to(self, const Context& on, list bottom, double coeff, void* out) except -1:
        cdef Blob a = bottom[0], b = bottom[1]
        cdef const void* x = a.data_on(on)
        cdef const void* t = b.data_on(on)
        with nogil:
            squared_distance(on, self.dtype, a.count, x, t, coeff / 2, out)
        return 0

    cdef int gradient_to(self, const Context& on, list bottom, int index, double scale, void* dx) except -1:
        cdef Blob a = bottom[0], b = bottom[1]
        cdef const void* x = a.data_on(on)
        cdef const void* t = b.data_on(on)
        with nogil:
            scaled_difference(on, self.dtype, a.count, x, t, dx, scale)
        return 0


register_layer("EuclideanLoss", EuclideanLossLayer)
