"""Local response normalisation, across channels or within one (Caffe lrn_layer.cpp; Krizhevsky et al., 2012).

Different from Caffe: on the CPU the scales are not stored but computed again in backward, which costs less than moving them
through memory; within a channel is one pass of its own and not a chain of four layers.
"""

from minicaffe.blob cimport Blob
from minicaffe.layers.base.operation cimport OperationLayer
from minicaffe.ops.lrn.operation cimport LRN, LrnShape

from minicaffe.errors import ConfigError, ShapeError

cdef enum:
    WITHIN_CHANNEL = 1  # minicaffe.proto LRNParameter.NormRegion
    PIXELS = 1024       # of a tile across channels: 5 such rows stay in the first-level cache, each long enough to prefetch


cdef class LRNLayer(OperationLayer):
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
    refuses_in_place = True

    cdef bint within        # WITHIN_CHANNEL

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.lrn_param
        if param.local_size % 2 == 0 or param.local_size >= 2**31:
            raise ConfigError(f"must be odd and less than 2^31, got {param.local_size}", field="lrn_param.local_size")
        cdef LRN op = LRN(self.dtype, param.engine)
        self.op = op
        self.within = param.norm_region == WITHIN_CHANNEL
        op.shape.half_rows = (param.local_size - 1) // 2
        op.shape.k = 1 if self.within else param.k
        op.shape.alpha = param.alpha / (param.local_size ** 2 if self.within else param.local_size)
        op.shape.beta = param.beta

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef LrnShape* s = &(<LRN> self.op).shape       # groups of rows x width; a window is 2 half_rows + 1 by 2 half_columns + 1
        if x.num_axes != 4:
            raise ShapeError(f"LRN needs 4 axes (num, channels, height, width), got {list(x.shape)}", field="bottom[0]")
        (<Blob?> top[0]).reshape_like(x)
        if self.within:
            s.groups, s.rows, s.width = x.dims[0] * x.dims[1], x.dims[2], x.dims[3]
            s.block = max(x.dims[3], 1)
            s.half_columns = min(s.half_rows, x.dims[3])  # the loop over columns goes that far, whatever is there
        else:
            s.half_columns = 0
            s.groups, s.rows, s.width = x.dims[0], x.dims[1], x.dims[2] * x.dims[3]
            s.block = PIXELS
        self.op.changed()       # engines are chosen again
