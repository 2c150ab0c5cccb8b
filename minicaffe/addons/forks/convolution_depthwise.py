"""ConvolutionDepthwise: what a fork of Caffe calls a Convolution in which every channel has its own kernel.

It has the blobs and rules of Convolution, but ignores `num_output` and `group`: there are as many outputs and groups as channels.
DepthwiseConvolution of other forks is a Convolution with as many groups as channels: that layer.
Different from its fork: a missing `stride` or `pad` counts as 1 or 0, where the fork read past the end of a list.
"""

import logging

from minicaffe.layers.base.checks import axis_of
from minicaffe.layers.convolution import ConvolutionLayer

log = logging.getLogger(__name__)


class ConvolutionDepthwiseLayer(ConvolutionLayer):
    """``y[n, c] = x[n, c] * W[c] + b[c]``, a cross-correlation of each channel; W is (C, 1, kernel_h, kernel_w)."""

    def layer_setup(self, bottom, top):
        param = self.param.convolution_param
        channels = bottom[0].shape[axis_of(bottom[0], param.axis, "convolution_param.axis")]
        if param.HasField("num_output") and param.num_output != channels:
            log.warning("layer '%s' (%s): convolution_param.num_output: %d is ignored; there are as many outputs as "
                        "channels, %d", self.name, self.type, param.num_output, channels)
        param.num_output = param.group = channels
        super().layer_setup(bottom, top)


DepthwiseConvolutionLayer = ConvolutionLayer
