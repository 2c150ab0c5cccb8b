"""BatchNorm and MVN: subtract a mean, divide by a deviation (Caffe batch_norm_layer.cpp, mvn_layer.cpp).

A blob is seen as outer x channels x inner, every channel with statistics of its own: for BatchNorm the channels are axis
1, for MVN the planes or samples. Formulas stand in kernels/normalize.hpp, the loops in cpu/normalize.hpp. Different from
Caffe: the normalised values are kept only where the layer works in place and its gradient needs them; MVN may work in place.
"""

from minicaffe.blob cimport DOUBLE, Blob
from minicaffe.cpu.threads cimport num_threads
from minicaffe.layer cimport Layer

from minicaffe.common import TEST
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.proto import caffe_pb2

cdef extern from "minicaffe/cpu/normalize.hpp" namespace "mc::cpu" nogil:
    void normalize_forward(int, int, long long, long long, long long, int rule, bint given, double eps, const void* x, void* y,
                           void* kept, void* mean, void* variance, void* factor)
    void normalize_backward(int, int, long long, long long, long long, bint given, bint mean_only, bint normalized,
                            const void* v, const void* dy, const void* mean, const void* factor, void* dx)

cdef extern from "minicaffe/cpu/typed.hpp" nogil:
    void scaled "mc::cpu::map1<mc::Scaled>"(int, int, long long, const void* x, void* y, double a)
    void blend "mc::cpu::map2<mc::Axpby>"(int, int, long long, const void* x, const void* y, void* out, double a, double b)

cdef enum Deviation:   # kernels/normalize.hpp
    EPS_INSIDE
    EPS_OUTSIDE
    NONE


cdef class NormalizeLayer(Layer):
    """One bottom x, one top y of the same shape."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long outer, channels, inner
    cdef Deviation rule
    cdef bint given      # mean and variance are not computed from x
    cdef double eps
    cdef Blob mean, variance, factor   # one value a channel
    cdef Blob kept       # y, in place

    cdef int make_scratch(self) except -1:
        self.mean, self.variance, self.factor = self.new_blob(), self.new_blob(), self.new_blob()
        self.kept = self.new_blob(what="normalised values")
        return 0

    cdef int see(self, long long outer, long long channels, long long inner) except -1:
        self.outer, self.channels, self.inner = outer, channels, inner
        for blob in (self.mean, self.variance, self.factor):
            blob.reshape(channels)
        return 0

    cpdef forward_cpu(self, list bottom, list top):
        cdef const void* x = (<Blob> bottom[0]).cpu_data_ptr()
        cdef void* y = (<Blob> top[0]).mutable_cpu_data_ptr()
        cdef void* mean = self.mean.mutable_cpu_data_ptr()
        cdef void* variance = self.variance.mutable_cpu_data_ptr()
        cdef void* factor = self.factor.mutable_cpu_data_ptr()
        cdef void* kept = NULL
        if top[0] is bottom[0] and not self.given:
            self.kept.reshape_like(<Blob> bottom[0])
            kept = self.kept.mutable_cpu_data_ptr()
        with nogil:
            normalize_forward(num_threads(), self.dtype, self.outer, self.channels, self.inner, self.rule, self.given, self.eps,
                              x, y, kept, mean, variance, factor)

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        if not propagate_down[0]:
            return
        cdef bint in_place = top[0] is bottom[0]
        cdef Blob values = self.kept if in_place and not self.given else <Blob> bottom[0]
        cdef const void* v = values.cpu_data_ptr()
        cdef const void* dy = (<Blob> top[0]).cpu_diff_ptr()
        cdef const void* mean = self.mean.cpu_data_ptr()
        cdef const void* factor = self.factor.cpu_data_ptr()
        cdef void* dx = (<Blob> bottom[0]).mutable_cpu_diff_ptr()
        with nogil:
            normalize_backward(num_threads(), self.dtype, self.outer, self.channels, self.inner, self.given, self.rule == NONE,
                               in_place, v, dy, mean, factor, dx)


cdef class BatchNormLayer(NormalizeLayer):
    """``y = (x - mean) / sqrt(variance + eps)`` for each channel, axis 1 (Ioffe and Szegedy 2015).

    Three blobs hold running sums: of means [C], of variances [C], and of their weights [1], each multiplied by
    ``moving_average_fraction`` before the batch is added. The stored variance is unbiased, the one that normalises biased.
    With ``use_global_stats``, the default in phase TEST, mean and variance are the sums over the weight. A learned scale
    and shift are a Scale layer's.
    """

    cdef double fraction

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

    cpdef forward_cpu(self, list bottom, list top):
        cdef Blob means = self.blobs[0], variances = self.blobs[1], weights = self.blobs[2]
        cdef long long count = self.outer * self.inner
        cdef double weight = 0, per
        if self.given:
            weight = value_of(weights)
            per = 1 / weight if weight != 0 else 0
            scaled(1, self.dtype, means.count, means.cpu_data_ptr(), self.mean.mutable_cpu_data_ptr(), per)
            scaled(1, self.dtype, means.count, variances.cpu_data_ptr(), self.variance.mutable_cpu_data_ptr(), per)
        NormalizeLayer.forward_cpu(self, bottom, top)
        if not self.given and count:
            self.accumulate(means, self.mean, 1)
            self.accumulate(variances, self.variance, count / <double> max(count - 1, 1))
            set_value(weights, self.fraction * value_of(weights) + 1)

    cdef int accumulate(self, Blob sums, Blob values, double factor) except -1:
        """sums = fraction sums + factor values"""
        cdef void* out = sums.mutable_cpu_data_ptr()
        blend(1, self.dtype, sums.count, values.cpu_data_ptr(), out, out, factor, self.fraction)
        return 0


cdef double value_of(Blob blob) except? -1:
    """Return the first value."""
    cdef const void* values = blob.cpu_data_ptr()
    return (<const double*> values)[0] if blob.dtype == DOUBLE else (<const float*> values)[0]


cdef int set_value(Blob blob, double value) except -1:
    """Set the first value."""
    if blob.dtype == DOUBLE:
        (<double*> blob.mutable_cpu_data_ptr())[0] = value
    else:
        (<float*> blob.mutable_cpu_data_ptr())[0] = <float> value
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
