"""MultiBoxLoss: what SSD is trained with (SSD's multibox_loss_layer.cpp; Liu et al., 2016).

Matching and mining are defined in addons/ssd/boxes/multibox.hpp; the losses of what they choose are computed by NumPy. Different
from Caffe, whose losses are inner nets: with `encode_variance_in_target` the gradient is divided by
the variances as the loss is; prior boxes that `ignore_cross_boundary_bbox` leaves out take no place among the hard examples;
NaN in a prediction makes it the hardest example.
"""

from libcpp cimport bool as cpp_bool
from libcpp.vector cimport vector

from minicaffe.device.threads cimport Threads, num_threads
from minicaffe.kernels.types cimport item_size
from minicaffe.layer cimport Layer
from minicaffe.layers.base.loss cimport Blob, mode_of

import numpy as np

from minicaffe.blob import NUMPY_TYPES
from minicaffe.errors import ConfigError, DataError, ShapeError
from minicaffe.addons.ssd.detection_output import check_fields, check_predictions, check_priors, check_rows
from minicaffe.proto import caffe_pb2

cdef extern from "minicaffe/addons/ssd/boxes/multibox.hpp" namespace "mc::cpu" nogil:
    struct MultiBoxRule:
        long long images, priors, classes
        int background, code, mining
        cpp_bool share_location, per_prediction, match_priors, use_difficult, squared_loc, logistic
        cpp_bool variance_in_target, agnostic, skip_crossing, stay_inside, nms, nms_on_priors
        double overlap_threshold, negatives_per_positive, negative_overlap, nms_threshold, eta
        long long nms_top_k, sample_size
    cppclass Positive:
        pass
    cppclass Example:
        pass
    cppclass Matched:
        vector[Positive] positives
        vector[Example] examples
    struct MultiBoxData:
        const void* loc
        const void* conf
        const void* priors
        const double* truths
        long long count
    Matched match_typed(Threads threads, int dtype, const MultiBoxRule&, const MultiBoxData&)
    void gather_locations(int dtype, const MultiBoxRule&, const MultiBoxData&, const Matched&, void*, void*)

Param = caffe_pb2.MultiBoxLossParameter
Loss = caffe_pb2.LossParameter


cdef class MultiBoxLossLayer(Layer):
    """``loss = (loc_weight sum l(codes - encoded objects) + sum of the confidence loss) / Z``.

    Each object is matched with the prior box that it overlaps most, the best pairs first; with PER_PREDICTION each further prior
    box with the object it overlaps most, if by at least `overlap_threshold`. Matched boxes learn codes and label; background is
    learned by all others (mining NONE), by the `neg_pos_ratio` times as many of them with the highest loss (MAX_NEGATIVE, of
    those that overlap every object by less than `neg_overlap`), or, with HARD_EXAMPLE, only the `sample_size` boxes of highest
    loss count, matched or not. With mining, images without an object do not count.

    Parameters
    ----------
    bottom[0], bottom[1], bottom[2] : Blob
        Codes, raw scores, prior boxes: shapes as DetectionOutput has them.
    bottom[3] : Blob, shape (1, 1, G, 8)
        Rows (image in the batch, label, instance, xmin, ymin, xmax, ymax, difficult); image -1 is not an object.
    top[0] : Blob, shape ()
        Z is the number of matches with `loss_param` VALID (the default), images x priors with FULL, images with BATCH_SIZE; at
        least 1. ``propagate_down: false`` for a bottom leaves its term out.

    Raises
    ------
    ConfigError, ShapeError
        For fields that are out of range or do not go together, and bottoms that do not fit.
    DataError
        For a row of another image than those of the batch, or a label that is not the integer of a class; names the row.
    """

    overwrites_outputs = True
    exact_num_bottom_blobs = 4
    exact_num_top_blobs = 1
    auto_top_blobs = True
    default_loss_weight = 1

    cdef MultiBoxRule rule
    cdef int mode                  # of the divisor
    cdef double divisor            # of the last forward; 0 if nothing is learned, then 1 is taken
    cdef Matched matched           # by the last forward
    cdef object loc_gradient, conf_gradient     # of the sums, if they have terms
    cdef bint with_loc, with_conf  # whether the terms count

    def allow_force_backward(self, int bottom_index):
        return bottom_index < 2

    cpdef layer_setup(self, list bottom, list top):
        param, nms = self.param.multibox_loss_param, self.param.multibox_loss_param.nms_param
        self._check(param)
        rule = &self.rule
        rule.classes, rule.background, rule.code, rule.mining = (param.num_classes, param.background_label_id, param.code_type,
                                                                 param.mining_type)
        rule.share_location, rule.match_priors = param.share_location, param.use_prior_for_matching
        rule.per_prediction, rule.use_difficult = param.match_type == Param.PER_PREDICTION, param.use_difficult_gt
        rule.squared_loc, rule.logistic = param.loc_loss_type == Param.L2, param.conf_loss_type == Param.LOGISTIC
        rule.variance_in_target, rule.agnostic = param.encode_variance_in_target, param.map_object_to_agnostic
        rule.skip_crossing, rule.stay_inside = param.ignore_cross_boundary_bbox, param.bp_inside
        rule.overlap_threshold, rule.negative_overlap = param.overlap_threshold, param.neg_overlap
        rule.negatives_per_positive, rule.sample_size = param.neg_pos_ratio, param.sample_size
        rule.nms, rule.nms_on_priors = param.HasField("nms_param") and nms.nms_threshold > 0, param.use_prior_for_nms
        rule.nms_threshold, rule.eta, rule.nms_top_k = nms.nms_threshold, nms.eta, nms.top_k if nms.HasField("top_k") else -1
        self.mode = mode_of(self.param.loss_param, self.param.loss_param.normalization)
        terms = list(self.param.propagate_down) or [True, True]
        self.with_loc, self.with_conf = terms[0], terms[1]

    def _check(self, param):
        """Raise ConfigError for a field that is wrong by itself or beside others."""
        mining = param.mining_type != Param.NONE
        softmax_background = param.conf_loss_type == Param.SOFTMAX and param.background_label_id >= param.num_classes
        check_fields("multibox_loss_param", param, (
            ("background_label_id", softmax_background, f"must be below num_classes, {param.num_classes}, with SOFTMAX"),
            ("loc_weight", not param.loc_weight >= 0, "must be at least 0"),
            ("overlap_threshold", not 0 <= param.overlap_threshold <= 1, "must be from 0 to 1"),
            ("neg_pos_ratio", mining and not param.neg_pos_ratio > 0, "must be above 0"),
            ("neg_overlap", not param.neg_overlap >= 0, "must be at least 0"),
            ("sample_size", param.sample_size < 1, "must be at least 1")))
        if mining and not param.share_location:
            raise ConfigError("mining needs share_location: true; set mining_type: NONE", field="multibox_loss_param.mining_type")
        if param.HasField("do_neg_mining") and param.do_neg_mining != mining:
            raise ConfigError(f"is {str(param.do_neg_mining).lower()}, but mining_type is "
                              f"{Param.MiningType.Name(param.mining_type)}; leave the old field out",
                              field="multibox_loss_param.do_neg_mining")
        if param.map_object_to_agnostic and (param.num_classes != 2 or param.background_label_id > 1):
            raise ConfigError("needs 2 classes, object and background (label 0 or 1), got "
                              f"{param.num_classes} with background {param.background_label_id}",
                              field="multibox_loss_param.map_object_to_agnostic")
        if param.map_object_to_agnostic and not param.share_location:
            raise ConfigError("needs share_location: true", field="multibox_loss_param.map_object_to_agnostic")

    cpdef reshape(self, list bottom, list top):
        cdef Blob rows = bottom[3]
        if not rows.num_axes or rows.dims[rows.num_axes - 1] != 8:
            raise ShapeError(f"must be rows of 8 numbers, (1, 1, objects, 8), got {list(rows.shape)}", field="bottom[3]")
        self.rule.images, self.rule.priors = check_predictions(bottom, self.rule.classes, self.rule.share_location)
        (<Blob?> top[0]).reshape_to(())

    def _objects(self, list bottom):
        """Check the prior boxes and return the rows of the objects that count, by image."""
        variances = bottom[2].cpu_data.reshape(2, -1, 4)[1]
        objects = bottom[3].cpu_data.reshape(-1, 8)
        check_priors(bottom[2], self.rule.code)
        for index in np.flatnonzero(~(variances > 0).all(1))[:1]:
            raise DataError(f"the variances of prior box {index} must be above 0, got {variances[index].tolist()}",
                            field="bottom[2]")
        check_rows(objects, objects[:, 0] != -1, self.rule.images, self.rule.classes, self.rule.background, "bottom[3]")
        objects = objects[(objects[:, 0] != -1) & ((objects[:, 7] == 0) | self.rule.use_difficult)]
        return objects[np.argsort(objects[:, 0], kind="stable")].astype(float)

    def counted_shares(self, bottom):
        return {0: self.divisor / max(self.rule.images * self.rule.priors, 1)} if self.mode == Loss.VALID else {}

    cpdef forward_cpu(self, list bottom, list top):
        cdef const double[:, ::1] objects = self._objects(bottom)
        cdef MultiBoxData data
        data.truths, data.count = &objects[0, 0] if objects.shape[0] else NULL, objects.shape[0]
        data.loc = (<Blob> bottom[0]).cpu_data_ptr()
        data.conf = (<Blob> bottom[1]).cpu_data_ptr()
        data.priors = (<Blob> bottom[2]).cpu_data_ptr()
        cdef Threads threads = num_threads()
        cdef double loss = 0
        with nogil:
            self.matched = match_typed(threads, self.dtype, self.rule, data)
        self.divisor = {Loss.FULL: self.rule.images * self.rule.priors, Loss.BATCH_SIZE: self.rule.images, Loss.VALID:
                        self.matched.positives.size() or min(self.matched.examples.size(), 1)}.get(self.mode, 1)
        if self.with_loc and self.matched.positives.size():
            loss += self.loc_forward(data)
        if self.with_conf and self.matched.examples.size():
            rows, labels = examples_of(self.matched).T
            scores = bottom[1].cpu_data.reshape(-1, self.rule.classes)[rows]
            with np.errstate(all="ignore"):     # NaN and infinities pass
                term, self.conf_gradient = class_loss(scores, labels, self.rule.logistic)
            loss += term
        (<Blob> top[0]).data[...] = loss / max(self.divisor, 1)

    cdef double loc_forward(self, MultiBoxData data) except? -1:
        cdef Blob codes = Blob((2, self.matched.positives.size(), 4), self.dtype, "codes")
        cdef void* predictions = codes.mutable_cpu_data_ptr()
        cdef void* targets = <char*> predictions + codes.count // 2 * item_size(self.dtype)
        with nogil:
            gather_locations(self.dtype, self.rule, data, self.matched, predictions, targets)
        difference, weight = codes.cpu_data[0] - codes.cpu_data[1], self.param.multibox_loss_param.loc_weight
        slope = difference if self.rule.squared_loc else difference.clip(-1, 1)
        with np.errstate(all="ignore"):     # NaN and infinities pass
            self.loc_gradient = weight * slope
            return weight * (slope * (difference - slope / 2)).sum(dtype=float)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        for i in (2, 3):
            if propagate_down[i]:
                raise ConfigError("MultiBoxLoss has no gradient to it; give the layer propagate_down: true true false false",
                                  field=f"bottom[{i}]")
        scale = NUMPY_TYPES[self.dtype].type(top[0].cpu_diff.item() / max(self.divisor, 1))
        if propagate_down[0]:
            bottom[0].fill_diff(0)
            if self.with_loc and self.matched.positives.size():
                image, prior, location, _ = positives_of(self.matched).T
                gradient = scale * self.loc_gradient
                if self.rule.variance_in_target:
                    gradient /= bottom[2].cpu_data.reshape(2, -1, 4)[1][prior]
                shape = self.rule.images, self.rule.priors, 1 if self.rule.share_location else self.rule.classes, 4
                bottom[0].diff.reshape(shape)[image, prior, location] = gradient
        if propagate_down[1]:
            bottom[1].fill_diff(0)
            if self.with_conf and self.matched.examples.size():
                rows, _ = examples_of(self.matched).T
                bottom[1].diff.reshape(-1, self.rule.classes)[rows] = scale * self.conf_gradient

    def release_memory(self):
        Layer.release_memory(self)
        self.loc_gradient = self.conf_gradient = None


def class_loss(scores, labels, logistic):
    """Return the sum of the cross entropies of the rows of `scores`, by a sigmoid or a softmax, and its gradient."""
    wanted = labels[:, np.newaxis] == np.arange(scores.shape[1])
    if logistic:
        terms = np.maximum(scores, 0) - scores * wanted + np.log1p(np.exp(-np.abs(scores)))
        return terms.sum(dtype=float), 1 / (1 + np.exp(-scores)) - wanted
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -np.log(np.maximum(p[wanted], np.finfo(np.float32).tiny)).sum(dtype=float), p - wanted


cdef object positives_of(const Matched& matched):
    """Image, prior box, location and object of each positive; there is one at least."""
    return np.asarray(<long long[:matched.positives.size(), :4]> <long long*> matched.positives.data())


cdef object examples_of(const Matched& matched):
    """Row of the scores and label of each example; there is one at least."""
    return np.asarray(<long long[:matched.examples.size(), :2]> <long long*> matched.examples.data())
