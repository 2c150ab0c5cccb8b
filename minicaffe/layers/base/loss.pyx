"""Bases of the losses (Caffe loss_layer.cpp and the layers derived from it): a scalar from predictions and targets.

The terms are defined in ops/loss/kernel.hpp. Different from Caffe: labels are range-checked and the record is named; nothing of the
bottoms is stored between forward and backward but the probabilities of the softmax; SoftmaxWithLoss and InfogainLoss take a
second top with one loss weight or none; a batch of none has loss 0; HingeLoss of NaN is NaN and not 0.
"""

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.loss.caffe cimport Labels, check_labels, kNoLabel

import numpy as np

from minicaffe.errors import ConfigError, DataError, Error, ShapeError
from minicaffe.layers.base.checks import axis_of

REAL = "EuclideanLoss and SmoothL1Loss take real numbers"


cdef class LossLayer(DeviceLayer):
    """Base of the losses: bottom[0] the predictions, bottom[1] the labels or targets, top[0] a scalar.

    A type defines `loss_to` and `gradient_to`, and `prepare` if its divisor is not the number of records.
    """

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1
    auto_top_blobs = True
    default_loss_weight = 1
    gradients = 1           # how many bottoms have a gradient; bottom[1]'s, if any, is that of bottom[0] with the other sign

    @property
    def no_gradient(self):
        """dict: index of each bottom without a gradient -> the word for it in the error of layer.pyx"""
        return dict.fromkeys(range(self.gradients, self.num_bottoms), "it")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], labels = bottom[1]
        if not x.num_axes or not labels.num_axes or x.dims[0] != labels.dims[0]:
            raise ShapeError(f"the predictions {list(x.shape)} and the labels {list(labels.shape)} need the same axis 0",
                             field="bottom[1]")
        (<Blob?> top[0]).reshape_to(())

    cdef double prepare(self, const Context& on, list bottom) except? -1:
        """Check labels or targets, and compute probabilities, for a forward; return the loss's divisor: below 1 it counts as 1."""
        self.inspect(bottom)
        return (<Blob> bottom[0]).dims[0]

    cdef list blobs_read(self, list bottom):
        """Return the blobs, four at most, whose addresses `loss_to` and `gradient_to` find in `at`."""
        return bottom

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:
        """Compute out = coeff times the sum of the terms, at an address where `on` computes; `coeff` is 1 / divisor."""
        with gil:
            raise Error(f"layer type {self.type} does not define loss_to")

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:
        """Overwrite dx with scale times the gradient of the sum to bottom[0]; `scale` is the loss weight / divisor."""
        with gil:
            raise Error(f"layer type {self.type} does not define gradient_to")

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.divisor = self.prepare(on, bottom)
        self.find_data(on, bottom)
        cdef void* out = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            self.loss_to(on, 1 / max(self.divisor, 1.0), out)

    cdef int find_data(self, const Context& on, list bottom) except -1:
        """Set `count` and `at` for `loss_to` and `gradient_to`, before each pass: addresses may have changed."""
        cdef list blobs = self.blobs_read(bottom)
        self.count = (<Blob> bottom[0]).count
        for i in range(4):
            self.at[i] = (<Blob> blobs[i]).data_on(on) if i < len(blobs) else NULL

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef int i
        cdef double scale
        cdef void* dx
        cdef const void* weight = (<Blob> top[0]).cpu_diff_ptr()    # the loss weight is stored there (layer.pyx)
        scale = ((<const float*> weight)[0] if self.dtype == FLOAT else (<const double*> weight)[0])
        scale /= max(self.divisor, 1.0)
        self.find_data(on, bottom)
        for i in range(self.gradients):
            if propagate_down[i]:
                dx = (<Blob> bottom[i]).mutable_diff_on(on)
                with nogil:
                    self.gradient_to(on, -scale if i else scale, dx)


cdef class ClassLossLayer(LossLayer):
    """Base of the losses with class labels; `labels` has their sizes. Labels are checked on the host in each forward."""

    cpdef layer_setup(self, list bottom, list top):
        self.labels.ignore, self.mode = kNoLabel, BATCH_SIZE

    cpdef reshape(self, list bottom, list top):
        """Set the shapes for rows of classes: all axes after 0 are one class axis."""
        LossLayer.reshape(self, bottom, top)
        set_label_shape(&self.labels, bottom[0], 1, (<Blob> bottom[0]).num_axes, bottom[1])

    cpdef inspect(self, list bottom):   # raises DataError for a wrong label
        count_labels(self.dtype, self.labels, bottom[1])

    def capture_obstacle(self):     # None: a CUDA graph can hold the layer (layer.pyx)
        if self.labels.ignore != kNoLabel and self.mode == VALID:
            return "its divisor is the number of labels that are not ignored"
        return None

    def counted_shares(self, bottom):       # the weight of this batch's loss in the mean of a test (layer.pyx)
        return {0: self.divisor / max(self.labels.outer * self.labels.inner, 1)} if self.mode == VALID else {}

    cdef double prepare(self, const Context& on, list bottom) except? -1:    # see LossLayer
        cdef long long valid = count_labels(self.dtype, self.labels, bottom[1])
        if self.mode == VALID:
            return valid
        return self.labels.outer * self.labels.inner if self.mode == FULL else self.labels.outer if self.mode == BATCH_SIZE else 1


cdef class SoftmaxLossLayer(ClassLossLayer):
    """Base of the losses that apply a softmax to raw scores; an optional second top shares the probabilities."""

    exact_num_top_blobs = -1
    min_top_blobs = 1
    max_top_blobs = 2

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.loss_param
        self.labels.ignore = param.ignore_label if param.HasField("ignore_label") else kNoLabel
        self.mode = mode_of(param, param.normalization)
        if len(self.param.loss_weight) > 1 and self.param.loss_weight[1]:
            raise ConfigError("the probabilities give no gradient, their loss weight must be 0", field="loss_weight")
        self.p = self.new_blob(what="probabilities")
        self.softmax = Softmax(self.dtype, self.param.softmax_param.engine)

    cdef list blobs_read(self, list bottom):    # their data: `at` of `loss_to` and `gradient_to`
        return [self.p, *bottom[1:]]

    def operations(self):       # a net chooses engines and fuses layers by them
        return [self.softmax]

    def scratch_blobs(self):        # freed by `Layer.release_memory`
        return [self.p]

    cdef int reshape_softmax(self, list bottom, list top, int axis, str field) except -1:
        """Set the shapes for classes along `axis`, the value of the field `field`; a type's `reshape` calls it."""
        LossLayer.reshape(self, bottom, top)
        cdef Blob x = bottom[0]
        axis = axis_of(x, axis, field)
        set_label_shape(&self.labels, x, axis, axis + 1, bottom[1])
        self.softmax.set_shape(x, axis)
        self.p.reshape_like(x)
        if len(top) > 1:
            (<Blob?> top[1]).reshape_like(x)
            (<Blob?> top[1]).share_data(self.p)

    cdef double prepare(self, const Context& on, list bottom) except? -1:    # see LossLayer; it computes the softmax, too
        cdef double divisor = ClassLossLayer.prepare(self, on, bottom)
        self.softmax.forward(on, bottom[0], self.p)
        return divisor


cdef int same_count(list bottom) except -1:
    """Raise ShapeError unless bottom[1] has as many elements as bottom[0]."""
    if bottom[0].count != bottom[1].count:
        raise ShapeError(f"has {bottom[1].count} elements, bottom[0] {bottom[0].count}; they must be equal", field="bottom[1]")


cdef int mode_of(object param, int mode) except -1:
    """Return the mode of a LossParameter: that of its old field `normalize` if only this is given, else `mode`."""
    if param.HasField("normalize") and not param.HasField("normalization"):
        return VALID if param.normalize else BATCH_SIZE
    return mode


# ---- class labels beside predictions (outer, classes, inner): one for each of outer x inner positions, checked on the host

cdef int set_label_shape(Labels* labels, Blob x, int axis, int end, Blob blob) except -1:
    """Set the shape of `labels`: the classes are the axes from `axis` to before `end` of the predictions x.

    Raises ShapeError if `blob`, which is bottom[1], does not have one label for each position.
    """
    labels.outer, labels.classes, labels.inner = x.count_range(0, axis), x.count_range(axis, end), x.count_range(end, x.num_axes)
    if blob.count != labels.outer * labels.inner:
        raise ShapeError(f"needs one label for each of the {labels.outer * labels.inner} predictions, got {list(blob.shape)}",
                         field="bottom[1]")


cdef long long count_labels(int dtype, const Labels& labels, Blob blob) except -1:
    """Return how many labels of `blob`, which is bottom[1], are not ignored.

    Raises DataError if one is no integer or outside the classes; names record and position.
    """
    cdef long long valid, bad = check_labels(dtype, labels, blob.cpu_data_ptr(), &valid)
    if bad < 0:
        return valid
    value, where = blob.cpu_data.flat[bad], place_of(blob, bad)
    if np.floor(value) < value:
        raise DataError(f"label {value!s} of {where} is not an integer; round it in the data. {REAL}", field="bottom[1]")
    raise DataError(f"label {value:g} of {where} is outside 0..{labels.classes - 1}; correct the data, give the net "
                    "more classes, or name it in ignore_label", field="bottom[1]")


cdef str place_of(Blob blob, long long index):
    """Return words for an error about value `index` of a blob: its record, and its position there if a record has several."""
    per_record = blob.count // blob.shape[0] if blob.num_axes and blob.shape[0] else 1
    record, position = divmod(index, per_record)
    return f"record {record}" + (f", position {position}" if per_record > 1 else "")
