"""BatchNorm and MVN: subtract a mean, divide by a deviation (Caffe batch_norm_layer.cpp, mvn_layer.cpp).

A blob is seen as outer x channels x inner, every channel with statistics of its own: for BatchNorm the channels are axis
1, for MVN the planes or samples. Formulas are defined in ops/batch_norm/kernel.hpp, the loops in ops/batch_norm/caffe.hpp. Different from
Caffe: the normalised values are kept only where the layer works in place and its gradient needs them; MVN may work in place.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer

from minicaffe.common import TEST
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.proto import caffe_pb2

cdef extern from "minicaffe/ops/batch_norm/caffe.hpp" namespace "mc" nogil:
    void standardize_forward(const Context&, int, long long, long long, long long, int rule, bint given, double eps, const void* x,
                           void* y, void* kept, void* mean, void* variance, void* factor)
    void standardize_backward(const Context&, int, long long, long long, long long, bint given, bint mean_only, bint normalized,
                            const void* v, const void* dy, const void* mean, const void* factor, void* dx, void* scratch)

cdef extern from "minicaffe/device/typed.hpp" nogil:
    void blend "mc::map2<mc::Axpby>"(const Context&, int, long long, const void* x, const void* y, void* out, double a, double b)
    void affine "mc::map1<mc::Affine>"(const Context&, int, long long, const void* x, void* y, double scale, double shift)

cdef extern from "minicaffe/ops/broadcast/caffe.hpp" nogil:
    void divided_by "mc::broadcast1<mc::DividedBy>"(
        const Context&, int, long long, long long, long long, const void* x, void* y, void* kept, const void* divisor)

cdef extern from "minicaffe/cuda/cudnn.hpp" namespace "mc::cuda" nogil:
    cppclass Cudnn:
        pass
    const int kEngineDefault
    Cudnn* cudnn_for(const Context&, int engine)
    bint cudnn_standardize_forward(const Context&, int, long long, long long, long long, double eps, const void* x,
                                   const void* ones, const void* zeros, void* y, void* mean, void* unbiased, void* factor,
                                   void* unused)
    bint cudnn_standardize_backward(const Context&, int, long long, long long, long long, double eps, const void* x,
                                    const void* ones, const void* dy, const void* mean, const void* factor, void* dx,
                                    void* unused)

cdef enum Deviation:   # ops/batch_norm/kernel.hpp
    EPS_INSIDE
    EPS_OUTSIDE
    NONE


cdef class NormalizeLayer(DeviceLayer):
    """One bottom x, one top y of the same shape."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long outer, channels, inner
    cdef Deviation rule
    cdef bint given      # mean and variance are not computed from x
    cdef double eps
    cdef Blob mean, variance, factor   # one value a channel
    cdef Blob kept       # y, in place
    cdef Blob sums       # two for each channel, of backward on a device

    cdef int make_scratch(self) except -1:
        self.mean, self.variance, self.factor = self.new_blob(), self.new_blob(), self.new_blob()
        self.kept = self.new_blob(what="normalised values")
        self.sums = self.new_blob()
        return 0

    cdef int see(self, long long outer, long long channels, long long inner) except -1:
        self.outer, self.channels, self.inner = outer, channels, inner
        for blob in (self.mean, self.variance, self.factor):
            blob.reshape(channels)
        return 0

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        cdef void* mean = self.mean.mutable_data_on(on)
        cdef void* variance = self.variance.mutable_data_on(on)
        cdef void* factor = self.factor.mutable_data_on(on)
        cdef void* kept = NULL
        if top[0] is bottom[0] and not self.given:
            self.kept.reshape_like(<Blob> bottom[0])
            kept = self.kept.mutable_data_on(on)
        with nogil:
            standardize_forward(on, self.dtype, self.outer, self.channels, self.inner, self.rule, self.given, self.eps,
                              x, y, kept, mean, variance, factor)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        cdef bint in_place = top[0] is bottom[0]
        cdef Blob values = self.kept if in_place and not self.given else <Blob> bottom[0]
        cdef const void* v = values.data_on(on)
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef const void* mean = self.mean.data_on(on)
        cdef const void* factor = self.factor.data_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        cdef void* scratch = NULL
        if on.stream != NULL:
            self.sums.reshape_to((2 * self.channels,))
            scratch = self.sums.mutable_data_on(on)
        with nogil:
            standardize_backward(on, self.dtype, self.outer, self.channels, self.inner, self.given, self.rule == NONE,
                               in_place, v, dy, mean, factor, dx, scratch)


cdef class BatchNormLayer(NormalizeLayer):
    """``y = (x - mean) / sqrt(variance + eps)`` for each channel, axis 1 (Ioffe and Szegedy 2015).

    Three blobs hold running sums: of means [C], of variances [C], and of their weights [1], each multiplied by
    ``moving_average_fraction`` before the batch is added. The stored variance is unbiased, the one that normalises biased.
    With ``use_global_stats``, the default in phase TEST, mean and variance are the sums over the weight. A learned scale
    and shift are a Scale layer's. Engine CUDNN computes with the batch's own statistics, and not in place.
    """

    cdef double fraction
    cdef Blob ones, zeros   # what cuDNN scales and shifts by

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.batch_norm_param
        self.given = param.use_global_stats if param.HasField("use_global_stats") else self.phase == TEST
        self.fraction, self.eps, self.rule = param.moving_average_fraction, param.eps, EPS_INSIDE
        self.make_scratch()
        channels = self._channels(bottom[0])
        for shape in ((channels,), (channels,), (1,)):
            self.add_param(shape, caffe_pb2.FillerParameter(), "batch_norm_param")
        # No gradient reaches the sums; a solver must not decay them either, which a rate of 0 ensures.
        for i, spec in enumerate(self.param.param):
            if spec.lr_mult != 0:
                raise ConfigError(f"must be 0, got {spec.lr_mult:g}: the running sums are not learned by gradient",
                                  field=f"param[{i}].lr_mult")
        while len(self.param.param) < 3:
            self.param.param.add(lr_mult=0)

    def _channels(self, Blob x):
        if x.num_axes < 2:
            raise ShapeError(f"needs at least 2 axes, channels are axis 1; the bottom has shape {list(x.shape)}",
                             field="bottom[0]")
        return x.shape[1]

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        channels = self._channels(x)
        if channels != self.blobs[0].count:
            raise ShapeError(f"needs {self.blobs[0].count} channels, the bottom has shape {list(x.shape)}", field="bottom[0]")
        self.see(x.shape[0], channels, x.count_range(2, x.num_axes))
        if top[0] is not x:
            (<Blob> top[0]).reshape_like(x)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob means = self.blobs[0], variances = self.blobs[1], weights = self.blobs[2]
        cdef long long count = self.outer * self.inner
        cdef double unbiased = count / <double> max(count - 1, 1)
        cdef void* weight
        if self.given:
            self.divide(on, means, self.mean)
            self.divide(on, variances, self.variance)
        if self.cudnn_wanted(on, bottom, top) and self.cudnn_forward(on, bottom[0], top[0]):
            unbiased = 1    # cuDNN's variance is unbiased already
        else:
            NormalizeLayer.forward_on(self, on, bottom, top)
        if not self.given and count:
            self.accumulate(on, means, self.mean, 1)
            self.accumulate(on, variances, self.variance, unbiased)
            weight = weights.mutable_data_on(on)
            affine(on, self.dtype, 1, weight, weight, self.fraction, 1)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if propagate_down[0] and self.cudnn_wanted(on, bottom, top) and self.cudnn_backward(on, bottom[0], top[0]):
            return 0
        NormalizeLayer.backward_on(self, on, top, propagate_down, bottom)

    cdef bint cudnn_wanted(self, const Context& on, list bottom, list top) except -1:
        """Whether cuDNN could compute this; its blobs are ready then."""
        if self.given or top[0] is bottom[0] or cudnn_for(on, kEngineDefault) == NULL:
            return False
        if self.ones is None:
            self.ones, self.zeros = self.new_blob(), self.new_blob()
        if self.ones.count != self.channels:
            self.ones.reshape(self.channels)
            self.zeros.reshape(self.channels)
            self.ones.data[...] = 1
            self.zeros.data[...] = 0
        self.sums.reshape_to((2 * self.channels,))
        return True

    cdef bint cudnn_forward(self, const Context& on, Blob x, Blob y) except -1:
        cdef const void* from_data = x.data_on(on)
        cdef const void* ones = self.ones.data_on(on)
        cdef const void* zeros = self.zeros.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef void* mean = self.mean.mutable_data_on(on)
        cdef void* variance = self.variance.mutable_data_on(on)
        cdef void* factor = self.factor.mutable_data_on(on)
        cdef void* unused = self.sums.mutable_data_on(on)
        with nogil:
            return cudnn_standardize_forward(on, self.dtype, self.outer, self.channels, self.inner, self.eps, from_data, ones,
                                             zeros, to, mean, variance, factor, unused)

    cdef bint cudnn_backward(self, const Context& on, Blob x, Blob y) except -1:
        cdef const void* values = x.data_on(on)
        cdef const void* ones = self.ones.data_on(on)
        cdef const void* dy = y.diff_on(on)
        cdef const void* mean = self.mean.data_on(on)
        cdef const void* factor = self.factor.data_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef void* unused = self.sums.mutable_data_on(on)
        with nogil:
            return cudnn_standardize_backward(on, self.dtype, self.outer, self.channels, self.inner, self.eps, values, ones,
                                              dy, mean, factor, dx, unused)

    cdef int divide(self, const Context& on, Blob sums, Blob values) except -1:
        """values = sums / their weight, 0 where that is 0"""
        divided_by(on, self.dtype, 1, 1, sums.count, sums.data_on(on), values.mutable_data_on(on), NULL,
                   (<Blob> self.blobs[2]).data_on(on))
        return 0

    cdef int accumulate(self, const Context& on, Blob sums, Blob values, double factor) except -1:
        """sums = fraction sums + factor values"""
        cdef void* out = sums.mutable_data_on(on)
        blend(on, self.dtype, sums.count, values.data_on(on), out, out, factor, self.fraction)
        return 0


cdef class MVNLayer(NormalizeLayer):
    """``y = (x - mean) / (std + eps)`` for each plane, or for each sample with ``across_channels``.

    Without ``normalize_variance`` ``y = x - mean``. The top has 4 axes in every case.
    """

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.mvn_param
        self.rule = EPS_OUTSIDE if param.normalize_variance else NONE
        self.eps, self.given = param.eps, False
        self.make_scratch()

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        shape = (x.num, x.channels, x.height, x.width)
        samples, planes = shape[0], shape[0] * shape[1]
        groups = samples if self.param.mvn_param.across_channels else planes
        self.see(1, groups, x.count // groups if groups else 0)
        top[0].reshape_to(shape)


register_layer("BatchNorm", BatchNormLayer)
register_layer("MVN", MVNLayer)
