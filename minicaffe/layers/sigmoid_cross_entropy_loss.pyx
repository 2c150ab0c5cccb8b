"""SigmoidCrossEntropyLoss (Caffe sigmoid_cross_entropy_loss_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layers.base.loss cimport BATCH_SIZE, FULL, VALID, LossLayer, mode_of, same_count
from minicaffe.ops.loss.caffe cimport count_targets, kNoLabel, sigmoid_loss, sigmoid_loss_backward

from minicaffe.layer import register_layer


cdef class SigmoidCrossEntropyLossLayer(LossLayer):
    """``loss = sum(max(x, 0) - x t + log(1 + e^-|x|)) / divisor``, the cross entropy of sigmoid(x) and targets t in [0, 1].

    A target that is `loss_param.ignore_label` when cut to an integer is left out. The divisor is BATCH_SIZE by default.
    """

    cdef int ignore, mode

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.loss_param
        self.ignore = param.ignore_label if param.HasField("ignore_label") else kNoLabel
        self.mode = mode_of(param, param.normalization if param.HasField("normalization") else BATCH_SIZE)

    def capture_obstacle(self):
        if self.ignore != kNoLabel and self.mode == VALID:
            return "its divisor is the number of targets that are not ignored"
        return None

    cpdef reshape(self, list bottom, list top):
        LossLayer.reshape(self, bottom, top)
        same_count(bottom)

    cdef double prepare(self, const Context& on, list bottom) except? -1:
        cdef Blob x = bottom[0]
        if self.mode == VALID:
            return count_targets(self.dtype, x.count, self.ignore, (<Blob> bottom[1]).cpu_data_ptr())
        return {FULL: x.count, BATCH_SIZE: x.dims[0]}.get(self.mode, 1)

    cdef int loss_to(self, const Context& on, list bottom, double coeff, void* out) except -1:
        cdef Blob a = bottom[0], b = bottom[1]
        with nogil:
            sigmoid_loss(on, self.dtype, a.count, self.ignore, a.data_on(on), b.data_on(on), coeff, out)

    cdef int gradient_to(self, const Context& on, list bottom, double scale, void* dx) except -1:
        cdef Blob a = bottom[0], b = bottom[1]
        with nogil:
            sigmoid_loss_backward(on, self.dtype, a.count, self.ignore, a.data_on(on), b.data_on(on), scale, dx)


register_layer("SigmoidCrossEntropyLoss", SigmoidCrossEntropyLossLayer)
