"""Losses (Caffe loss_layer.cpp and the layers derived from it): a scalar from predictions and what they should have been.

The terms are defined in ops/loss/kernel.hpp. Different from Caffe: labels are range-checked and the record is named; nothing of the
bottoms is stored between forward and backward but the probabilities of the softmax; SoftmaxWithLoss and InfogainLoss take a
second top with one loss weight or none; a batch of none has loss 0; HingeLoss of NaN is NaN and not 0.
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context

from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import axis_of
from minicaffe.layers.base.labels import bad_label
from minicaffe.proto import binary

cdef extern from "minicaffe/ops/loss/caffe.hpp" nogil:
    const int kNoLabel "mc::kNoLabel"
    struct Labels "mc::Labels":
        long long outer, classes, inner
        int ignore
    struct Pairs "mc::Pairs":
        long long count, width
        double margin
        bint legacy
    long long check_labels "mc::cpu::check_labels"(int, const Labels&, const void*, long long*)
    long long count_targets "mc::cpu::count_targets"(int, long long, int, const void*)
    void log_loss "mc::log_loss"(const Context&, int, const Labels&, const void*, const void*, double, double, void*)
    void softmax_loss_backward "mc::softmax_loss_backward"(
        const Context&, int, const Labels&, const void*, const void*, double, void*)
    void log_loss_backward "mc::log_loss_backward"(
        const Context&, int, const Labels&, const void*, const void*, double, double, void*)
    void infogain "mc::infogain"(const Context&, int, const Labels&, const void*, const void*, const void*, double, double, void*)
    void infogain_backward "mc::infogain_backward"(
        const Context&, int, const Labels&, const void*, const void*, const void*, double, void*)
    void hinge "mc::hinge"(const Context&, int, const Labels&, const void*, const void*, bint, double, void*)
    void hinge_backward "mc::hinge_backward"(const Context&, int, const Labels&, const void*, const void*, bint, double, void*)
    void squared_distance "mc::squared_distance"(const Context&, int, long long, const void*, const void*, double, void*)
    void scaled_difference "mc::map2<mc::ScaledDifference>"(
        const Context&, int, long long, const void*, const void*, void*, double)
    void sigmoid_loss "mc::sigmoid_loss"(const Context&, int, long long, int, const void*, const void*, double, void*)
    void sigmoid_loss_backward "mc::sigmoid_loss_backward"(
        const Context&, int, long long, int, const void*, const void*, double, void*)
    void contrastive "mc::contrastive"(const Context&, int, const Pairs&, const void*, const void*, const void*, double, void*)
    void contrastive_backward "mc::contrastive_backward"(
        const Context&, int, const Pairs&, const void*, const void*, const void*, double, void*)

cdef extern from "minicaffe/ops/softmax/caffe.hpp" nogil:
    void softmax_forward "mc::softmax_forward"(const Context&, int, long long, long long, long long, const void*, void*)

cdef enum:
    FULL = 0            # minicaffe.proto LossParameter.NormalizationMode
    VALID = 1
    BATCH_SIZE = 2
    L2 = 2              # HingeLossParameter.Norm

cdef double FLOAT_MIN = 1.17549435e-38  # floor under a probability in SoftmaxWithLoss
cdef double LOG_FLOOR = 1e-20           # and in MultinomialLogisticLoss and InfogainLoss


cdef class LossLayer(DeviceLayer):
    """Base of the losses: bottom[0] the predictions, bottom[1] the labels or targets, top[0] a scalar."""

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1
    auto_top_blobs = True
    default_loss_weight = 1

    cdef double divisor     # of the last forward
    cdef double coeff       # of the sum in the loss: 1 / divisor
    cdef void* out          # the loss, where the last forward computed it

    def allow_force_backward(self, int bottom_index):
        return bottom_index != 1

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], labels = bottom[1]
        if not x.num_axes or not labels.num_axes or x.dims[0] != labels.dims[0]:
            raise ShapeError(f"the predictions {list(x.shape)} and the labels {list(labels.shape)} need the same axis 0",
                             field="bottom[1]")
        (<Blob> top[0]).reshape_to(())

    cdef int refuse_gradient(self, list propagate_down, int first) except -1:
        """Raise ConfigError if a bottom from `first` on is asked for a gradient."""
        for i in range(first, len(propagate_down)):
            if propagate_down[i]:
                raise ConfigError(f"{self.type} has no gradient to it; cut it off with propagate_down: false",
                                  field=f"bottom[{i}]")
        return 0

    cdef int begin_loss(self, const Context& on, list top, double divisor) except -1:
        """Note the divisor, and where the loss goes."""
        self.divisor, self.coeff = divisor, 1 / divisor
        self.out = (<Blob> top[0]).mutable_data_on(on)
        return 0

    cdef double scale(self, list top) except? -1:
        """The loss weight over the divisor, the factor of every gradient."""
        return (<Blob> top[0]).cpu_diff.item() / self.divisor


cdef class ClassLossLayer(LossLayer):
    """Base of the losses with class labels; `labels` says how they lie."""

    cdef Labels labels
    cdef int mode
    cdef long long valid

    cpdef layer_setup(self, list bottom, list top):
        self.labels.ignore = kNoLabel
        self.labels.inner = 1

    cpdef reshape(self, list bottom, list top):
        """Rows of classes: all axes after 0 are one class axis."""
        LossLayer.reshape(self, bottom, top)
        cdef Blob x = bottom[0]
        self.labels.outer, self.labels.classes = x.dims[0], x.count_range(1, x.num_axes)
        self.check_label_count(bottom[1])

    cdef int check_label_count(self, Blob labels) except -1:
        if labels.count != self.labels.outer * self.labels.inner:
            raise ShapeError(f"needs one label for each of the {self.labels.outer * self.labels.inner} predictions, got "
                             f"{list(labels.shape)}", field="bottom[1]")
        return 0

    cpdef inspect(self, list bottom):
        self.read_labels(bottom[1])

    def capture_obstacle(self):
        if self.labels.ignore != kNoLabel and self.mode == VALID:
            return "its divisor is the number of labels that are not ignored"
        return None

    cdef int read_labels(self, Blob labels) except -1:
        """Check the labels' range and count those not ignored."""
        cdef long long bad = check_labels(self.dtype, self.labels, labels.cpu_data_ptr(), &self.valid)
        if bad >= 0:
            raise bad_label(labels, bad, self.labels.classes)
        return 0

    cdef double normalizer(self):
        """The divisor of `loss_param.normalization`, at least 1."""
        cdef double n = 1
        if self.mode == FULL:
            n = self.labels.outer * self.labels.inner
        elif self.mode == VALID:
            n = self.valid
        elif self.mode == BATCH_SIZE:
            n = self.labels.outer
        return max(n, 1.0)


cdef class SoftmaxLossLayer(ClassLossLayer):
    """Base of the losses that apply a softmax to raw scores; an optional second top shares the probabilities."""

    exact_num_top_blobs = -1
    min_top_blobs = 1
    max_top_blobs = 2

    cdef Blob p

    cdef int set_up_softmax(self, list top) except -1:
        param = self.param.loss_param
        self.labels.ignore = param.ignore_label if param.HasField("ignore_label") else kNoLabel
        self.mode = _mode(param, param.normalization)
        if len(self.param.loss_weight) > 1 and self.param.loss_weight[1]:
            raise ConfigError("the probabilities give no gradient, their loss weight must be 0", field="loss_weight")
        self.p = self.new_blob(what="probabilities")
        return 0

    cdef int reshape_softmax(self, list bottom, list top, int axis, str field) except -1:
        LossLayer.reshape(self, bottom, top)
        cdef Blob x = bottom[0]
        axis = axis_of(x, axis, field)
        self.labels.outer, self.labels.classes = x.count_range(0, axis), x.dims[axis]
        self.labels.inner = x.count_range(axis + 1, x.num_axes)
        self.check_label_count(bottom[1])
        self.p.reshape_like(x)
        if len(top) > 1:
            (<Blob> top[1]).reshape_like(x)
            (<Blob> top[1]).share_data(self.p)
        return 0

    cdef int forward_softmax(self, const Context& on, list bottom) except -1:
        self.read_labels(bottom[1])
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* p = self.p.mutable_data_on(on)
        with nogil:
            softmax_forward(on, self.dtype, self.labels.outer, self.labels.classes, self.labels.inner, x, p)
        return 0


cdef class SoftmaxWithLossLayer(SoftmaxLossLayer):
    """``loss = -sum log(max(p[label], FLT_MIN)) / divisor``, p = softmax(x) along `softmax_param.axis`, over the positions
    whose label is not `loss_param.ignore_label` (Caffe softmax_loss_layer.cpp).

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

    cpdef layer_setup(self, list bottom, list top):
        self.set_up_softmax(top)

    cpdef reshape(self, list bottom, list top):
        self.reshape_softmax(bottom, top, self.param.softmax_param.axis, "softmax_param.axis")

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.forward_softmax(on, bottom)
        cdef const void* p = self.p.data_on(on)
        cdef const void* label = (<Blob> bottom[1]).data_on(on)
        self.begin_loss(on, top, self.normalizer())
        with nogil:
            log_loss(on, self.dtype, self.labels, p, label, FLOAT_MIN, self.coeff, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        self.refuse_gradient(propagate_down, 1)
        if not propagate_down[0]:
            return 0
        cdef double scale = self.scale(top)
        cdef const void* p = self.p.data_on(on)
        cdef const void* label = (<Blob> bottom[1]).data_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        with nogil:
            softmax_loss_backward(on, self.dtype, self.labels, p, label, scale, dx)


cdef class InfogainLossLayer(SoftmaxLossLayer):
    """``loss = -sum over positions and classes l of H[label, l] log(max(p_l, 1e-20)) / divisor``, p = softmax(x) along
    `infogain_loss_param.axis` (Caffe infogain_loss_layer.cpp). H is bottom[2], or the BlobProto file named by `source`.
    """

    exact_num_bottom_blobs = -1
    min_bottom_blobs = 2
    max_bottom_blobs = 3

    cdef Blob h

    cpdef layer_setup(self, list bottom, list top):
        self.set_up_softmax(top)
        param = self.param.infogain_loss_param
        if self.param.loss_param.HasField("normalize"):
            raise ConfigError("InfogainLoss does not take the old field; use normalization", field="loss_param.normalize")
        if len(bottom) > 2:
            return
        if not param.source:
            raise ConfigError("name a file with the matrix H, or give it as third bottom", field="infogain_loss_param.source")
        caffe.check_path(param.source, "infogain_loss_param.source")
        try:
            stored = binary.read_blob(param.source)
            self.h = self.new_blob(stored.shape, "H")
        except Error as error:
            raise error.at(field="infogain_loss_param.source")
        self.h.data[...] = stored.data.reshape(stored.shape)

    cpdef reshape(self, list bottom, list top):
        self.reshape_softmax(bottom, top, self.param.infogain_loss_param.axis, "infogain_loss_param.axis")
        cdef Blob h = bottom[2] if len(bottom) > 2 else self.h
        if h.count != self.labels.classes * self.labels.classes:
            raise ShapeError(f"H needs {self.labels.classes} x {self.labels.classes} elements, got {list(h.shape)}",
                             field="bottom[2]" if len(bottom) > 2 else "infogain_loss_param.source")

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.forward_softmax(on, bottom)
        cdef const void* p = self.p.data_on(on)
        cdef const void* label = (<Blob> bottom[1]).data_on(on)
        cdef const void* h = (<Blob> (bottom[2] if len(bottom) > 2 else self.h)).data_on(on)
        self.begin_loss(on, top, self.normalizer())
        with nogil:
            infogain(on, self.dtype, self.labels, p, label, h, LOG_FLOOR, self.coeff, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        self.refuse_gradient(propagate_down, 1)
        if not propagate_down[0]:
            return 0
        cdef double scale = self.scale(top)
        cdef const void* p = self.p.data_on(on)
        cdef const void* label = (<Blob> bottom[1]).data_on(on)
        cdef const void* h = (<Blob> (bottom[2] if len(bottom) > 2 else self.h)).data_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        with nogil:
            infogain_backward(on, self.dtype, self.labels, p, label, h, scale, dx)

    def allow_force_backward(self, int bottom_index):
        return bottom_index == 0


cdef class MultinomialLogisticLossLayer(ClassLossLayer):
    """``loss = -1/N sum log(max(x[n, label], 1e-20))`` of given probabilities x (Caffe multinomial_logistic_loss_layer.cpp)."""

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.read_labels(bottom[1])
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef const void* label = (<Blob> bottom[1]).data_on(on)
        self.begin_loss(on, top, max(self.labels.outer, 1))
        with nogil:
            log_loss(on, self.dtype, self.labels, x, label, LOG_FLOOR, self.coeff, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        self.refuse_gradient(propagate_down, 1)
        if not propagate_down[0]:
            return 0
        cdef double scale = self.scale(top)
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef const void* label = (<Blob> bottom[1]).data_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        with nogil:
            log_loss_backward(on, self.dtype, self.labels, x, label, scale, LOG_FLOOR, dx)


cdef class HingeLossLayer(ClassLossLayer):
    """``loss = 1/N sum m`` (or ``m^2`` with norm L2), ``m = max(0, 1 - x)`` for the true class, ``max(0, 1 + x)`` for the
    others (Caffe hinge_loss_layer.cpp)."""

    cdef bint squared

    cpdef layer_setup(self, list bottom, list top):
        ClassLossLayer.layer_setup(self, bottom, top)
        self.squared = self.param.hinge_loss_param.norm == L2

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        self.read_labels(bottom[1])
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef const void* label = (<Blob> bottom[1]).data_on(on)
        self.begin_loss(on, top, max(self.labels.outer, 1))
        with nogil:
            hinge(on, self.dtype, self.labels, x, label, self.squared, self.coeff, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        self.refuse_gradient(propagate_down, 1)
        if not propagate_down[0]:
            return 0
        cdef double scale = self.scale(top)
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef const void* label = (<Blob> bottom[1]).data_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        with nogil:
            hinge_backward(on, self.dtype, self.labels, x, label, self.squared, scale, dx)


cdef class EuclideanLossLayer(LossLayer):
    """``loss = sum (a - b)^2 / (2 N)``, with a gradient to both bottoms (Caffe euclidean_loss_layer.cpp)."""

    def allow_force_backward(self, int bottom_index):
        return True

    cpdef reshape(self, list bottom, list top):
        LossLayer.reshape(self, bottom, top)
        if bottom[0].count != bottom[1].count:
            raise ShapeError(f"has {bottom[1].count} elements, bottom[0] {bottom[0].count}; they must be equal",
                             field="bottom[1]")

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob a = bottom[0], b = bottom[1]
        cdef const void* x = a.data_on(on)
        cdef const void* t = b.data_on(on)
        self.begin_loss(on, top, max(a.dims[0], 1))
        with nogil:
            squared_distance(on, self.dtype, a.count, x, t, self.coeff / 2, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef double scale = self.scale(top)
        cdef Blob a = bottom[0], b = bottom[1], target
        cdef const void* x = a.data_on(on)
        cdef const void* t = b.data_on(on)
        cdef void* diff
        for i in range(2):
            if propagate_down[i]:
                target = bottom[i]
                diff = target.mutable_diff_on(on)
                with nogil:
                    scaled_difference(on, self.dtype, a.count, x, t, diff, scale)
            scale = -scale


cdef class SigmoidCrossEntropyLossLayer(LossLayer):
    """``loss = sum(max(x, 0) - x t + log(1 + e^-|x|)) / divisor``, the cross entropy of sigmoid(x) and targets t in [0, 1]
    (Caffe sigmoid_cross_entropy_loss_layer.cpp).

    A target that is `loss_param.ignore_label` when cut to an integer is left out. The divisor is BATCH_SIZE by default.
    """

    cdef int ignore, mode

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.loss_param
        self.ignore = param.ignore_label if param.HasField("ignore_label") else kNoLabel
        self.mode = _mode(param, param.normalization if param.HasField("normalization") else BATCH_SIZE)

    def capture_obstacle(self):
        if self.ignore != kNoLabel and self.mode == VALID:
            return "its divisor is the number of targets that are not ignored"
        return None

    cpdef reshape(self, list bottom, list top):
        LossLayer.reshape(self, bottom, top)
        if bottom[0].count != bottom[1].count:
            raise ShapeError(f"has {bottom[1].count} elements, bottom[0] {bottom[0].count}; they must be equal",
                             field="bottom[1]")

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob a = bottom[0], b = bottom[1]
        cdef long long valid = 0
        if self.mode == VALID:
            valid = count_targets(self.dtype, a.count, self.ignore, b.cpu_data_ptr())
        cdef const void* x = a.data_on(on)
        cdef const void* t = b.data_on(on)
        self.begin_loss(on, top, max({FULL: a.count, VALID: valid, BATCH_SIZE: a.dims[0]}.get(self.mode, 1), 1))
        with nogil:
            sigmoid_loss(on, self.dtype, a.count, self.ignore, x, t, self.coeff, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        self.refuse_gradient(propagate_down, 1)
        if not propagate_down[0]:
            return 0
        cdef double scale = self.scale(top)
        cdef Blob a = bottom[0]
        cdef const void* x = a.data_on(on)
        cdef const void* t = (<Blob> bottom[1]).data_on(on)
        cdef void* dx = a.mutable_diff_on(on)
        with nogil:
            sigmoid_loss_backward(on, self.dtype, a.count, self.ignore, x, t, scale, dx)


cdef class ContrastiveLossLayer(LossLayer):
    """``loss = 1 / (2 N) sum(similar ? d^2 : max(margin - d, 0)^2)`` over pairs of rows at distance d; with `legacy_version`
    ``max(margin - d^2, 0)`` (Caffe contrastive_loss_layer.cpp; Hadsell, Chopra, LeCun, 2006).

    Parameters
    ----------
    bottom[0], bottom[1] : Blob, shape (N, C), or with trailing axes of size 1
    bottom[2] : Blob with N elements
        0 for a dissimilar pair, anything else for a similar one.
    """

    exact_num_bottom_blobs = 3

    cdef Pairs pairs

    def allow_force_backward(self, int bottom_index):
        return bottom_index != 2

    cpdef layer_setup(self, list bottom, list top):
        self.pairs.margin = self.param.contrastive_loss_param.margin
        self.pairs.legacy = self.param.contrastive_loss_param.legacy_version

    cpdef reshape(self, list bottom, list top):
        LossLayer.reshape(self, bottom, top)
        cdef Blob a = bottom[0]
        for i in range(2):
            if bottom[i].num_axes < 2 or set(bottom[i].shape[2:]) - {1}:
                raise ShapeError(f"must be rows of features, (N, C), got {list(bottom[i].shape)}", field=f"bottom[{i}]")
        if a.dims[1] != (<Blob> bottom[1]).dims[1]:
            raise ShapeError(f"has {bottom[1].shape[1]} features, bottom[0] {a.dims[1]}; they must be equal", field="bottom[1]")
        if bottom[2].count != a.dims[0]:
            raise ShapeError(f"needs one element for each of the {a.dims[0]} pairs, got {list(bottom[2].shape)}",
                             field="bottom[2]")
        self.pairs.count, self.pairs.width = a.dims[0], a.dims[1]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* a = (<Blob> bottom[0]).data_on(on)
        cdef const void* b = (<Blob> bottom[1]).data_on(on)
        cdef const void* similar = (<Blob> bottom[2]).data_on(on)
        self.begin_loss(on, top, max(self.pairs.count, 1))
        with nogil:
            contrastive(on, self.dtype, self.pairs, a, b, similar, self.coeff / 2, self.out)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        self.refuse_gradient(propagate_down, 2)
        cdef double scale = self.scale(top)
        cdef const void* a = (<Blob> bottom[0]).data_on(on)
        cdef const void* b = (<Blob> bottom[1]).data_on(on)
        cdef const void* similar = (<Blob> bottom[2]).data_on(on)
        cdef void* diff
        for i in range(2):
            if propagate_down[i]:
                diff = (<Blob> bottom[i]).mutable_diff_on(on)
                with nogil:
                    contrastive_backward(on, self.dtype, self.pairs, a, b, similar, scale, diff)
            scale = -scale


def _mode(param, mode):
    """The mode of a LossParameter: `mode`, unless only its old field `normalize` is given."""
    if param.HasField("normalize") and not param.HasField("normalization"):
        return VALID if param.normalize else BATCH_SIZE
    return mode


for _class in (SoftmaxWithLossLayer, InfogainLossLayer, MultinomialLogisticLossLayer, HingeLossLayer, EuclideanLossLayer,
               SigmoidCrossEntropyLossLayer, ContrastiveLossLayer):
    register_layer(_class.__name__.removesuffix("Layer"), _class)
