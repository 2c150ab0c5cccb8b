"""SoftmaxWithLoss (Caffe softmax_loss_layer.cpp)."""

from minicaffe.layers.base.loss cimport Context, SoftmaxLossLayer
from minicaffe.ops.loss.caffe cimport log_loss, softmax_loss_backward

cdef double FLOAT_MIN = 1.17549435e-38  # least probability in the logarithm


cdef class SoftmaxWithLossLayer(SoftmaxLossLayer):
    """``loss = -sum log(max(p[label], FLT_MIN)) / divisor``, p = softmax(x) along `softmax_param.axis`, over the positions
    whose label is not `loss_param.ignore_label`.

    Parameters
    ----------
    bottom[0] : Blob, shape (outer..., K, inner...)
    bottom[1] : Blob with outer x inner labels from 0 to K - 1
    top[1] : Blob, optional
        p, of the shape of bottom[0].

    Raises
    ------
    ShapeError, DataError
        If there is not one label for each position, or a label is out of range.
    """

    cpdef reshape(self, list bottom, list top):
        self.reshape_softmax(bottom, top, self.param.softmax_param.axis, "softmax_param.axis")

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:    # at: data of p and labels
        log_loss(on, self.dtype, self.labels.outer * self.labels.inner, coeff, out, self.labels, self.at[0], self.at[1], FLOAT_MIN)

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:    # as `loss_to`
        softmax_loss_backward(on, self.dtype, self.labels, self.at[0], self.at[1], scale, dx)
