"""BatchNorm: subtract the mean of each channel, divide by its deviation (Caffe batch_norm_layer.cpp; Ioffe and Szegedy 2015).

Different from Caffe: the bottom is kept, and only where the layer works in place and its gradient needs it.
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.ops.batch_norm.operation cimport EPS_INSIDE, BatchNorm
from minicaffe.engines.epilogue cimport Epilogue
from minicaffe.loops.lanes.caffe cimport Channels

from minicaffe.common import TEST
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.engines.engine import saved_bottom
from minicaffe.proto import caffe_pb2

cdef extern from "minicaffe/ops/broadcast/caffe.hpp" namespace "mc" nogil:
    void divided_by "mc::broadcast1<mc::DividedBy>"(
        const Context&, int, const Channels&, const void* x, void* y, void* kept, const void* divisor)

cdef extern from "minicaffe/ops/batch_norm/caffe.hpp" namespace "mc" nogil:
    void running_sums "mc::each_typed<mc::RunningSums>"(
        const Context&, int, long long n, long long cost, double fraction, double unbiased, const void* mean, const void* variance,
        void* means, void* variances, void* weight)


cdef class BatchNormLayer(DeviceLayer):
    """``y = (x - mean) / sqrt(variance + eps)`` for each channel, axis 1.

    Three blobs hold running sums: of means [C], of variances [C], and of their weights [1], each multiplied by
    ``moving_average_fraction`` before the batch is added. The stored variance is unbiased, the one that normalises biased.
    With ``use_global_stats``, the default in phase TEST, mean and variance are the sums over the weight. A learned scale
    and shift are a Scale layer's. Of processes that train together each uses its own batch's mean and variance, unless
    `synchronise` is called.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    backward_reads_tops = False

    cdef BatchNorm norm         # its mean and variance are of the last batch, or if `given` from the running sums
    cdef double fraction        # moving_average_fraction
    cdef bint again     # the next forward leaves the running sums as they are

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.batch_norm_param
        self.norm = BatchNorm(self.dtype)
        self.norm.given = param.use_global_stats if param.HasField("use_global_stats") else self.phase == TEST
        self.norm.eps, self.norm.rule, self.fraction = param.eps, EPS_INSIDE, param.moving_average_fraction
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
        """Return the number of channels; raise ShapeError for a bottom without them."""
        if x.num_axes < 2:
            raise ShapeError(f"needs at least 2 axes, channels are axis 1; the bottom has shape {list(x.shape)}",
                             field="bottom[0]")
        return x.shape[1]

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        channels = self._channels(x)
        if channels != self.blobs[0].count:
            raise ShapeError(f"needs {self.blobs[0].count} channels, the bottom has shape {list(x.shape)}", field="bottom[0]")
        self.norm.set_shape(x.shape[0], channels, x.count_range(2, x.num_axes), top[0] is x)
        (<Blob?> top[0]).reshape_like(x)

    @property
    def backward_reads_bottoms(self):       # False: a plan may recycle their data before backward
        return self.norm.given or not self.norm.in_place    # where it works in place it has kept what it needs

    def operations(self):       # a net chooses engines and fuses layers by them
        return [self.norm]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob means = self.blobs[0], variances = self.blobs[1], weights = self.blobs[2]
        cdef bint again = self.again
        self.again = False
        if self.norm.given:     # as with use_global_stats
            self.divide(on, means, self.norm.mean)
            self.divide(on, variances, self.norm.variance)
        self.norm.forward(on, bottom[0], top[0])
        if not again and not self.norm.given and self.norm.unbiased:   # n / (n - 1); 0 if n is 0
            running_sums(on, self.dtype, means.count, 1, self.fraction, self.norm.unbiased, self.norm.mean.data_on(on),
                         self.norm.variance.data_on(on), means.mutable_data_on(on), variances.mutable_data_on(on),
                         weights.mutable_data_on(on))

    def synchronise(self, group):
        """Use the mean and variance of all ranks' batches in place of this rank's; return False if neither are used.

        Forward and backward must then be run by all ranks together.

        Parameters
        ----------
        group : minicaffe.parallel.group.Group
            Nothing else may use its communicator while the net runs. solver/ranks.py makes such a group.
        """
        if self.norm.given:
            return False
        self.norm.group = group
        self.norm.changed()
        return True

    def capture_obstacle(self):     # None: a CUDA graph can hold the layer (layer.pyx)
        return None if self.norm.group is None else "it uses the mean and variance of all ranks' batches"

    def fuse(self, Epilogue epilogue, list bottom, bint backward):      # into the layer below; `backward`: its own must run
        if backward or not self.norm.given:
            return False
        mean, variance, factor = self.blobs
        return epilogue.standardize(mean, variance, factor, self.norm.eps)     # factor: the weight of the sums

    def unfuse(self, bottom):
        """Prepare a second forward of the batch without an epilogue (net/step.pyx): restore the bottom; the running sums stay."""
        if self.norm.needs_x_copy():
            bottom[0].copy_from(saved_bottom(self.norm.kept, bottom[0]))
        self.again = True

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if propagate_down[0]:
            self.norm.backward(on, bottom[0], top[0])

    cdef int divide(self, const Context& on, Blob sums, Blob values) except -1:
        """Compute values = sums / weight (blobs[2]), or 0 if that is 0: the mean or variance of `use_global_stats`."""
        divided_by(on, self.dtype, Channels(1, 1, sums.count), sums.data_on(on), values.mutable_data_on(on), NULL,
                   (<Blob> self.blobs[2]).data_on(on))
