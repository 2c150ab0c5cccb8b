"""Local response normalisation, across channels or within one (Caffe lrn_layer.cpp; Krizhevsky et al., 2012).

Different from Caffe: on the CPU the scales are not stored but computed again in backward, which costs less than moving them
through memory; within a channel is one pass of its own and not a chain of four layers.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import refuse_in_place

cdef extern from "minicaffe/ops/lrn/caffe.hpp" nogil:
    struct LrnShape "mc::LrnShape":
        long long groups, rows, width, block, half_rows, half_columns
        double k, alpha, beta
    void lrn_forward "mc::lrn_forward"(const Context&, int, const LrnShape&, const void* x, void* y, void* scale)
    void lrn_backward "mc::lrn_backward"(
        const Context&, int, const LrnShape&, const void* x, const void* y, const void* scale, const void* dy, void* dx, void* scratch)

cdef extern from "minicaffe/ops/lrn/cudnn.hpp" namespace "mc::cuda" nogil:
    bint cudnn_lrn_forward(const Context&, int engine, int, const LrnShape&, const void* x, void* y)
    bint cudnn_lrn_backward(
        const Context&, int engine, int, const LrnShape&, const void* x, const void* y, const void* dy, void* dx)

cdef enum:
    WITHIN_CHANNEL = 1  # minicaffe.proto LRNParameter.NormRegion
    PIXELS = 1024       # of a tile across channels: 5 such rows stay in the first-level cache, each long enough to prefetch


cdef class LRNLayer(DeviceLayer):
    """``y = x s^-beta``.

    ACROSS_CHANNELS: ``s = k + alpha / n sum x^2`` over n = local_size channels around; WITHIN_CHANNEL:
    ``s = 1 + alpha / n^2 sum x^2`` over n x n pixels around (`k` has no effect there, as in Caffe). Outside counts as 0.

    Parameters
    ----------
    bottom : Blob, shape (N, C, H, W)
    top : Blob, of the same shape; not in place

    Raises
    ------
    ConfigError, ShapeError
        For an even local_size, or a bottom without exactly 4 axes.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef LrnShape s
    cdef int engine
    cdef bint within
    cdef bint scaled    # whether `scale` is that of the last forward
    cdef Blob scratch   # of the CPU
    cdef Blob scale     # s, kept by a device

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.lrn_param
        if param.local_size % 2 == 0 or param.local_size >= 2**31:
            raise ConfigError(f"must be odd and less than 2^31, got {param.local_size}", field="lrn_param.local_size")
        refuse_in_place(self, bottom, top)
        self.engine = param.engine
        self.within = param.norm_region == WITHIN_CHANNEL
        self.s.half_rows = (param.local_size - 1) // 2
        self.s.k = 1 if self.within else param.k
        self.s.alpha = param.alpha / (param.local_size ** 2 if self.within else param.local_size)
        self.s.beta = param.beta
        self.scratch, self.scale = self.new_blob(), self.new_blob(what="scale")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        if x.num_axes != 4:
            raise ShapeError(f"LRN needs 4 axes (num, channels, height, width), got {list(x.shape)}", field="bottom[0]")
        (<Blob> top[0]).reshape_like(x)
        if self.within:
            self.s.groups, self.s.rows, self.s.width = x.dims[0] * x.dims[1], x.dims[2], x.dims[3]
            self.s.block = max(x.dims[3], 1)
            self.s.half_columns = min(self.s.half_rows, x.dims[3])  # the loop over columns goes that far, whatever is there
        else:
            self.s.half_columns = 0
            self.s.groups, self.s.rows, self.s.width = x.dims[0], x.dims[1], x.dims[2] * x.dims[3]
            self.s.block = PIXELS

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        self.scaled = not cudnn_lrn_forward(on, self.engine, self.dtype, self.s, x, y)
        if self.scaled:
            self.own_forward(on, bottom[0], x, y)

    cdef int own_forward(self, const Context& on, Blob bottom, const void* x, void* y) except -1:
        cdef void* scale = NULL
        if on.stream != NULL:
            self.scale.reshape_like(bottom)
            scale = self.scale.mutable_data_on(on)
        with nogil:
            lrn_forward(on, self.dtype, self.s, x, y, scale)
        return 0

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef const void* y = (<Blob> top[0]).data_on(on)
        cdef const void* dy = (<Blob> top[0]).diff_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        cdef const void* scale = NULL
        cdef void* scratch = NULL
        if not self.scaled:     # cuDNN went forward
            if cudnn_lrn_backward(on, self.engine, self.dtype, self.s, x, y, dy, dx):
                return 0
            self.own_forward(on, bottom[0], x, (<Blob> top[0]).mutable_data_on(on))
            self.scaled = True
        if on.stream != NULL:
            scale = self.scale.data_on(on)
        else:
            self.scratch.reshape_to((on.threads.count, self.s.rows, self.s.block))
            scratch = self.scratch.mutable_data_on(on)
        with nogil:
            lrn_backward(on, self.dtype, self.s, x, y, scale, dy, dx, scratch)


register_layer("LRN", LRNLayer)
