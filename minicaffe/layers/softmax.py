"""Softmax along one axis (Caffe softmax_layer.cpp)."""

from minicaffe.layers.base.checks import axis_of
from minicaffe.layers.base.operation import OperationLayer
from minicaffe.ops.softmax.operation import Softmax


class SoftmaxLayer(OperationLayer):
    """``y = exp(x - max x) / sum exp(x - max x)`` along `softmax_param.axis`, separately for each position of the other axes.

    ``dx = y (dy - sum dy y)``. The top has the bottom's shape; in place is fine.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    backward_reads_bottoms = False

    def layer_setup(self, bottom, top):
        self.op = Softmax(self.dtype, self.param.softmax_param.engine)      # OperationLayer runs it, forward and backward

    def reshape(self, bottom, top):
        self.op.set_shape(bottom[0], axis_of(bottom[0], self.param.softmax_param.axis, "softmax_param.axis"))
        top[0].reshape_like(bottom[0])
