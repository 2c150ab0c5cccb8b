"""ContrastiveLoss (Caffe contrastive_loss_layer.cpp; Hadsell, Chopra, LeCun, 2006).

Different from Caffe: a similarity that is not an integer is an error; Caffe takes 0.9 for 0.
"""

from libcpp cimport bool as cpp_bool

from minicaffe.layers.base.loss cimport Blob, Context, LossLayer
from minicaffe.ops.loss.caffe cimport contrastive, contrastive_backward

import numpy as np

from minicaffe.errors import DataError, ShapeError


cdef class ContrastiveLossLayer(LossLayer):
    """``loss = 1 / (2 N) sum(similar ? d^2 : max(margin - d, 0)^2)`` over pairs of rows at distance d; with `legacy_version`
    ``max(margin - d^2, 0)``.

    Parameters
    ----------
    bottom[0], bottom[1] : Blob, shape (N, C), or with trailing axes of size 1
    bottom[2] : Blob with N elements
        0 for a dissimilar pair, any other integer for a similar one.

    Raises
    ------
    DataError
        If a value of bottom[2] is not an integer; names the pair.
    """

    exact_num_bottom_blobs = 3
    gradients = 2

    cdef long long pairs, width     # N, C
    cdef double margin
    cdef cpp_bool legacy            # legacy_version

    cpdef layer_setup(self, list bottom, list top):
        self.margin, self.legacy = self.param.contrastive_loss_param.margin, self.param.contrastive_loss_param.legacy_version

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
        self.pairs, self.width = a.dims[0], a.dims[1]

    cpdef inspect(self, list bottom):   # called by `LossLayer.prepare` in each forward, and before a replay of a CUDA graph
        similar = bottom[2].cpu_data.reshape(-1)
        for bad in np.flatnonzero(np.floor(similar) != similar)[:1]:    # NaN as well
            raise DataError(f"similarity {similar[bad]!s} of pair {bad} is not an integer; "
                            "give 0 for a dissimilar pair, 1 for a similar one", field="bottom[2]")

    cdef int loss_to(self, const Context& on, double coeff, void* out) except -1 nogil:    # at: data of the bottoms
        contrastive(on, self.dtype, self.pairs, coeff / 2, out, self.width, self.at[0], self.at[1], self.at[2], self.margin,
                    self.legacy)

    cdef int gradient_to(self, const Context& on, double scale, void* dx) except -1 nogil:    # 3 width + 1: the cost of a row
        contrastive_backward(on, self.dtype, self.pairs, 3 * self.width + 1, self.width, self.at[0], self.at[1], self.at[2],
                             self.margin, self.legacy, scale, dx)
