"""Scale: ``y = scale x + bias``, broadcast (Caffe scale_layer.cpp).

Different from Caffe: the gradient of a scale is added to its diff in every case; there a scale that covers all of x, or a batch of
one, overwrites it.
"""

from minicaffe.layers.base.broadcast cimport AxesLayer, Blob

from minicaffe.errors import ShapeError
from minicaffe.proto import caffe_pb2


cdef class ScaleLayer(AxesLayer):
    """``y = x * scale``, with ``bias_term`` ``+ bias``, both broadcast.

    scale is blobs[0], or the second bottom; bias is the last of blobs.
    """

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.scale_param
        self.scales = True      # AxesLayer multiplies, where Bias adds
        filler = param.filler if param.HasField("filler") else caffe_pb2.FillerParameter(value=1)
        self.make_values(bottom, param, "scale_param", filler)
        if param.bias_term:
            self.add_param(self.values(bottom).shape, param.bias_filler, "scale_param.bias_filler")

    @property
    def backward_reads_bottoms(self):       # False: a plan may recycle their data before backward
        return list(self.param.top) != list(self.param.bottom)      # in place it keeps x

    cpdef reshape(self, list bottom, list top):
        AxesLayer.reshape(self, bottom, top)
        cdef Blob bias = self.bias(bottom)
        if bias is not None and bias.count != self.axes.channels:
            raise ShapeError(f"has {self.axes.channels} values, the bias has {bias.count}; the shape of the scale must stay",
                             field="bottom[1]")
