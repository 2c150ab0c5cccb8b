"""Accuracy: how often the true class is among the best (Caffe accuracy_layer.cpp). It has no gradient.

Different from Caffe: labels are range-checked; a true class whose score is NaN is wrong. Caffe counts it as right, as no other
score compares as higher.
"""

import numpy as np

from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.layers.base.loss cimport Blob, count_labels, set_label_shape
from minicaffe.ops.loss.caffe cimport Labels, kNoLabel
from minicaffe.ops.ranking.caffe cimport count_correct

from minicaffe.errors import ConfigError
from minicaffe.layers.base.checks import axis_of, check_size


cdef class AccuracyLayer(DeviceLayer):
    """The fraction of positions, not counting those labelled `ignore_label`, whose true class is among the `top_k` best; 0 if
    there are none. A position is right if fewer than top_k other classes score at least as high as the true one, and that
    score is not NaN.

    Parameters
    ----------
    bottom[0] : Blob, shape (outer..., K, inner...)
        Scores, the classes along `accuracy_param.axis`.
    bottom[1] : Blob with outer x inner labels from 0 to K - 1
    top[0] : Blob, scalar
    top[1] : Blob, optional, shape (K,)
        The same fraction among the positions of each true class.
    """

    exact_num_bottom_blobs = 2
    min_top_blobs = 1
    refuses_in_place = True
    max_top_blobs = 2

    cdef Labels labels      # sizes outer, classes, inner, and the label to ignore or kNoLabel (ops/loss)
    cdef long long top_k
    cdef dict shares        # result of `counted_shares` for the last forward; a replay of a CUDA graph leaves it

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.accuracy_param
        self.top_k, self.shares = param.top_k, {}
        self.labels.ignore = param.ignore_label if param.HasField("ignore_label") else kNoLabel
        check_size(param.top_k, "accuracy_param.top_k")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef int axis = axis_of(x, self.param.accuracy_param.axis, "accuracy_param.axis")
        set_label_shape(&self.labels, x, axis, axis + 1, bottom[1])
        if self.top_k > self.labels.classes:
            raise ConfigError(f"must be at most the number of classes, {self.labels.classes}, got {self.top_k}",
                              field="accuracy_param.top_k")
        (<Blob?> top[0]).reshape_to(())
        if len(top) > 1:
            (<Blob?> top[1]).reshape_to((self.labels.classes,))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef long long valid = count_labels(self.dtype, self.labels, bottom[1])     # raises for a wrong label
        cdef const void* score
        cdef const void* label
        cdef void* out
        self.shares = {0: <double> valid / max(self.labels.outer * self.labels.inner, 1)}
        if len(top) > 1:
            return self.forward_by_class(bottom, top, valid)
        score, label = (<Blob> bottom[0]).data_on(on), (<Blob> bottom[1]).data_on(on)
        out = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            count_correct(on, self.dtype, self.labels, self.top_k, score, label, max(valid, 1), out)

    cpdef inspect(self, list bottom):       # before each replay of a CUDA graph
        count_labels(self.dtype, self.labels, bottom[1])

    def counted_shares(self, bottom):       # the weights of this batch's accuracies in the mean of a test
        return self.shares

    def capture_obstacle(self):     # None: a CUDA graph can hold the layer (layer.pyx)
        if self.labels.ignore != kNoLabel or len(self.param.top) > 1:
            return "it counts labels on the host"
        return None

    cdef int forward_by_class(self, list bottom, list top, long long valid) except -1:
        """Compute both tops, the second with a fraction for each class, in NumPy on the host, also in GPU mode."""
        shape = self.labels.outer, self.labels.classes, self.labels.inner
        scores, labels = bottom[0].cpu_data.reshape(shape), bottom[1].cpu_data.reshape(shape[0], 1, shape[2])
        if not shape[1]:
            return 0
        counted = labels != self.labels.ignore
        classes = np.where(counted, labels, 0).astype(np.int64)
        true_scores = np.take_along_axis(scores, classes, 1)
        right = counted & (true_scores == true_scores) & ((scores >= true_scores).sum(1, keepdims=True) <= self.top_k)
        of_class = np.bincount(classes[counted], minlength=shape[1])
        self.shares[1] = self.shares[0] * of_class / max(valid, 1)
        top[0].data[...] = right.sum() / valid if valid else 0
        top[1].data[...] = np.bincount(classes[right], minlength=shape[1]) / np.maximum(of_class, 1)
