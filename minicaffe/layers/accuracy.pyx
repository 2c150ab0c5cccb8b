"""Accuracy and ArgMax: which classes score highest (Caffe accuracy_layer.cpp, argmax_layer.cpp). Neither has a gradient.

Different from Caffe: labels of Accuracy are range-checked; a true class whose score is NaN is wrong, where Caffe, to whom no
other class is above it, counts it as right; NaN comes last in ArgMax.
"""

import numpy as np

from minicaffe.blob cimport DOUBLE, Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import axis_of
from minicaffe.layers.base.labels import bad_label

cdef extern from "minicaffe/ops/ranking/caffe.hpp" nogil:
    const int kNoLabel "mc::kNoLabel"
    struct Labels "mc::Labels":
        long long outer, classes, inner
        int ignore
    long long check_labels "mc::cpu::check_labels"(int, const Labels&, const void*, long long*)
    double count_by_class "mc::cpu::count_by_class"(
        int, const Labels&, long long, const void*, const void*, double*, double*)
    void count_correct "mc::count_correct"(
        const Context&, int, const Labels&, long long, const void*, const void*, double, void*)
    void top_of_each "mc::top_of_each"(
        const Context&, int, long long, long long, long long, long long, long long, const void*, void*, void*)


cdef class AccuracyLayer(DeviceLayer):
    """The fraction of positions, not counting those labelled `ignore_label`, whose true class is among the `top_k` best; 0 if
    there are none. A position is right if fewer than top_k other classes score at least as high as the true one, and that
    score is no NaN.

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
    max_top_blobs = 2

    cdef Labels labels
    cdef long long top_k

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.accuracy_param
        self.top_k = param.top_k
        self.labels.ignore = param.ignore_label if param.HasField("ignore_label") else kNoLabel
        if self.top_k < 1:
            raise ConfigError("must be at least 1, got 0", field="accuracy_param.top_k")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef int axis = axis_of(x, self.param.accuracy_param.axis, "accuracy_param.axis")
        self.labels.outer, self.labels.classes = x.count_range(0, axis), x.dims[axis]
        self.labels.inner = x.count_range(axis + 1, x.num_axes)
        if self.top_k > self.labels.classes:
            raise ConfigError(f"must be at most the number of classes, {self.labels.classes}, got {self.top_k}",
                              field="accuracy_param.top_k")
        if bottom[1].count != self.labels.outer * self.labels.inner:
            raise ShapeError(f"needs one label for each of the {self.labels.outer * self.labels.inner} predictions, got "
                             f"{list(bottom[1].shape)}", field="bottom[1]")
        (<Blob> top[0]).reshape_to(())
        if len(top) > 1:
            (<Blob> top[1]).reshape_to((self.labels.classes,))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef long long valid = self.count_valid(bottom[1])
        cdef const void* score
        cdef const void* label
        cdef void* out
        if len(top) > 1:
            return self.forward_by_class(bottom, top, valid)
        score, label = (<Blob> bottom[0]).data_on(on), (<Blob> bottom[1]).data_on(on)
        out = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            count_correct(on, self.dtype, self.labels, self.top_k, score, label, max(valid, 1), out)

    cdef long long count_valid(self, Blob labels) except -1:
        """Check the labels' range, and return how many are not ignored."""
        cdef long long valid
        cdef long long bad = check_labels(self.dtype, self.labels, labels.cpu_data_ptr(), &valid)
        if bad >= 0:
            raise bad_label(labels, bad, self.labels.classes)
        return valid

    cpdef inspect(self, list bottom):
        self.count_valid(bottom[1])

    def capture_obstacle(self):
        if self.labels.ignore != kNoLabel or len(self.param.top) > 1:
            return "it counts labels on the host"
        return None

    cdef int forward_by_class(self, list bottom, list top, long long valid) except -1:
        """Count for each class too, on the host in GPU mode too: it is a walk over the labels."""
        cdef const void* score = (<Blob> bottom[0]).cpu_data_ptr()
        cdef const void* label = (<Blob> bottom[1]).cpu_data_ptr()
        cdef double[::1] right = np.empty(self.labels.classes)
        cdef double[::1] of_class = np.empty_like(right)
        cdef double correct
        if self.labels.classes:
            correct = count_by_class(self.dtype, self.labels, self.top_k, score, label, &right[0], &of_class[0])
            (<Blob> top[0]).data[...] = correct / valid if valid else 0
            (<Blob> top[1]).data[...] = np.asarray(right) / np.maximum(of_class, 1)
        return 0


cdef class ArgMaxLayer(DeviceLayer):
    """The `argmax_param.top_k` largest in falling order, the larger index first among equals.

    Parameters
    ----------
    bottom : Blob, at least one axis
    top : Blob
        With `axis`: the bottom's shape with k instead of that axis; indices, or with `out_max_val` values. Without: all axes
        after 0 are one, and the shape is (N, 1, k), or (N, 2, k) with indices and values; padded with 1 to the bottom's
        number of axes.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long top_k, outer, n, inner
    cdef bint values, along_axis

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.argmax_param
        self.top_k, self.values, self.along_axis = param.top_k, param.out_max_val, param.HasField("axis")
        if self.top_k < 1:
            raise ConfigError("must be at least 1, got 0", field="argmax_param.top_k")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef int axis
        if self.along_axis:
            axis = axis_of(x, self.param.argmax_param.axis, "argmax_param.axis")
            self.outer, self.n, self.inner = x.count_range(0, axis), x.dims[axis], x.count_range(axis + 1, x.num_axes)
            shape = x.shape[:axis] + (self.top_k,) + x.shape[axis + 1:]
        else:
            if x.num_axes < 1:
                raise ShapeError("needs at least one axis, got a scalar", field="bottom[0]")
            self.outer, self.n, self.inner = x.dims[0], x.count_range(1, x.num_axes), 1
            shape = (x.dims[0], 2 if self.values else 1, self.top_k) + (1,) * max(x.num_axes - 3, 0)
        if self.top_k > self.n:
            raise ConfigError(f"must be at most the number of values, {self.n}, got {self.top_k}", field="argmax_param.top_k")
        (<Blob> top[0]).reshape_to(shape)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef char* out = <char*> (<Blob> top[0]).mutable_data_on(on)
        cdef long long stride = self.top_k
        cdef void* index = out
        cdef void* value = NULL
        if self.values and self.along_axis:
            index, value = NULL, out
        elif self.values:
            stride = 2 * self.top_k
            value = out + self.top_k * (8 if self.dtype == DOUBLE else 4)
        with nogil:
            top_of_each(on, self.dtype, self.outer, self.n, self.inner, self.top_k, stride, x, index, value)


register_layer("Accuracy", AccuracyLayer)
register_layer("ArgMax", ArgMaxLayer)
