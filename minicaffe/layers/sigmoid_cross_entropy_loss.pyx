"""SigmoidCrossEntropyLoss (Caffe sigmoid_cross_entropy_loss_layer.cpp).

Different from Caffe: a target that becomes `ignore_label` only when it is cut to an integer is an error; Caffe ignores it.
"""

from minicaffe.layers.base.loss cimport BATCH_SIZE, FULL, VALID, Blob, Context, LossLayer, mode_of, place_of, same_count
from minicaffe.ops.loss.caffe cimport check_targets, kNoLabel, sigmoid_loss, sigmoid_loss_backward

from minicaffe.errors import DataError


cdef class SigmoidCrossEntropyLossLayer(LossLayer):
    """``loss = sum(max(x, 0) - x t + log(1 + e^-|x|)) / divisor``, the cross entropy of sigmoid(x) and targets t in [0, 1].

    A target that is `loss_param.ignore_label` is left out. The divisor is BATCH_SIZE by default.
    """

    cdef int ignore, mode   # kNoLabel: none is ignored; NormalizationMode of the divisor

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.loss_param
        self.ignore = param.ignore_label if param.HasField("ignore_label") else kNoLabel
        self.mode = mode_of(param, param.normalization if param.HasField("normalization") else BATCH_SIZE)

    def capture_obstacle(self):     # None: a CUDA graph can hold the layer (layer.pyx)
        if self.ignore != kNoLabel and self.mode == VALID:
            return "its divisor is the number of targets that are not ignored"
        return None

    def counted_shares(self, bottom):       # the weight of this batch's loss in the mean of a test (layer.pyx)
        return {0: self.divisor / max(bottom[0].count, 1)} if self.mode == VALID else {}

    cpdef reshape(self, list bottom, list top):
        LossLayer.reshape(self, bottom, top)
        same_count(bottom)

    cdef double prepare(self, const Context& on, list bottom) except? -1:    # returns the divisor, see LossLayer
        cdef Blob x = bottom[0]
        cdef long long valid = self.count_targets(bottom[1])
        return {VALID: valid, FULL: x.count, BATCH_SIZE: x.dims[0]}.get(self.mode, 1)

    cpdef inspect(self, list bottom):       # the checks of forward, before a replay of a CUDA graph
        self.count_targets(bottom[1])

    cdef long long count_targets(self, Blob target) except -1:
        """Return how many targets are not ignored. Raises DataError if one would be ignored only when cut to an integer."""
        cdef long long valid, bad
        if self.ignore == kNoLabel:
            return target.count
        bad = check_targets(self.dtype, target.count, self.ignore, target.cpu_data_ptr(), &valid)
        if bad >= 0:
            raise DataError(f"target {target.cpu_data.flat[bad]!s} of {place_of(target, bad)} "
                            f"is ignore_label {self.ignore} when it is cut to an integer, as Caffe does; "
                            "round it, or use an ignore_label that no target comes near, such as -1",
                            field="bottom[1]")
        return valid

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:    # at: data of x and targets
        sigmoid_loss(on, self.dtype, self.count, coeff, out, self.ignore, self.at[0], self.at[1])

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:    # 10: the cost of an element
        sigmoid_loss_backward(on, self.dtype, self.count, 10, self.ignore, self.at[0], self.at[1], scale, dx)
