"""MVN: subtract the mean, divide by the deviation of each plane or sample (Caffe mvn_layer.cpp).

Different from Caffe: it may run in place.
"""

from minicaffe.blob cimport Blob
from minicaffe.layers.base.operation cimport OperationLayer
from minicaffe.ops.batch_norm.operation cimport EPS_OUTSIDE, NONE, Standardize


cdef class MVNLayer(OperationLayer):
    """``y = (x - mean) / (std + eps)`` for each plane, or for each sample with ``across_channels``.

    Without ``normalize_variance`` ``y = x - mean``. The top has 4 axes in every case.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.mvn_param
        cdef Standardize op = Standardize(self.dtype)
        self.op = op
        op.rule, op.eps = EPS_OUTSIDE if param.normalize_variance else NONE, param.eps     # NONE: no division

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        cdef Standardize op = self.op
        shape = (x.num, x.channels, x.height, x.width)
        groups = shape[0] if self.param.mvn_param.across_channels else shape[0] * shape[1]
        op.set_shape(1, groups, x.count // groups if groups else 0, top[0] is x)    # one mean and deviation for each group
        top[0].reshape_to(shape)
