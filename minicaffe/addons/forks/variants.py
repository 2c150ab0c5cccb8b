"""Types of forks that are variants of other types: ConvolutionDepthwise, ReLU6, ReLUX, and ChannelNormalize.

The last is what forks call Normalize, as SSD another layer (addons/forks/formulas.py). The others compute on CPU and GPU.
DepthwiseConvolution of other forks is a Convolution with as many groups as channels: that layer.
"""

import logging

import numpy as np

from minicaffe.addons.forks.base import ForkLayer, check_known
from minicaffe.addons.forks.messages import Field, checked_message
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.checks import axis_of
from minicaffe.layers.base.neuron import ActivationLayer
from minicaffe.layers.convolution import ConvolutionLayer
from minicaffe.ops.activation.operation import Function
from minicaffe.proto.text import layer_fields

EPS = 1e-6      # added to the sum of squares, or of absolute values
log = logging.getLogger(__name__)


class ConvolutionDepthwiseLayer(ConvolutionLayer):
    """``y[n, c] = x[n, c] * W[c] + b[c]``, a cross-correlation of each channel; W is (C, 1, kernel_h, kernel_w).

    It has the blobs and rules of Convolution, but ignores `num_output` and `group`: there are as many outputs and groups as
    channels. Different from its fork: a missing `stride` or `pad` counts as 1 or 0, where the fork read past the end of a list.
    """

    def layer_setup(self, bottom, top):
        param = self.param.convolution_param
        channels = bottom[0].shape[axis_of(bottom[0], param.axis, "convolution_param.axis")]
        if param.HasField("num_output") and param.num_output != channels:
            log.warning("layer '%s' (%s): convolution_param.num_output: %d is ignored; there are as many outputs as "
                        "channels, %d", self.name, self.type, param.num_output, channels)
        param.num_output = param.group = channels
        super().layer_setup(bottom, top)


DepthwiseConvolutionLayer = ConvolutionLayer


class ReLUXLayer(ActivationLayer):
    """``y = min(max(x, 0), maximal_value)``; the gradient is 1 between, 0 from the maximal value on, else `negative_slope`.

    So `negative_slope` does not change y. This is what the fork computes on a GPU; on the CPU it adds negative_slope min(x, 0).

    Source: py-RFCN-priv relux_layer.cu.

    Parameters
    ----------
    bottom[0] : Blob, any shape
    top[0] : Blob, of the same shape; in place is fine
    """

    takes_unknown_fields = True
    message = "relux_param"
    fields_of_message = Field("negative_slope", 0.0, "the gradient below 0"), Field("maximal_value", 6.0, "upper bound, above 0")
    ignored = ("engine",)

    def layer_setup(self, bottom, top):
        check_known(self.param)
        values, _ = checked_message(layer_fields(self.param), self.message, self.fields_of_message, self.ignored)
        slope, self.bound = values["negative_slope"], values.get("maximal_value", 6.0)
        if not self.bound > 0:
            raise ConfigError(f"must be above 0, got {self.bound:g}", field=f"{self.message}.maximal_value")
        self.slope = slope if self.type == "ReLU6" else 0
        if slope != self.slope:
            log.warning("layer '%s': relux_param.negative_slope changes the gradient alone: y is 0 below 0, as on the fork's GPU",
                        self.name)
        self.set_function(Function.RELU_X, (self.slope, self.bound, slope), reads="x" if self.slope < 0 else "y")


class ReLU6Layer(ReLUXLayer):
    """``y = min(max(x, 0) + negative_slope min(x, 0), 6)``; the gradient is 0 from 6 on.

    Different from its fork: backward in place raises if `negative_slope` is below 0, as of ReLU: its sign is lost then.

    Source: mobilenet-yolo relu6_layer.cpp (Krizhevsky 2010, Convolutional Deep Belief Networks on CIFAR-10).

    Parameters
    ----------
    bottom[0] : Blob, any shape
    top[0] : Blob, of the same shape; in place is fine
    """

    message = "relu6_param"
    fields_of_message = (Field("negative_slope", 0.0, "the slope below 0"),)


class ChannelNormalizeLayer(ForkLayer):
    """Normalize with `normalize_param`, which is read as this type: each position is divided by the norm of its channels.

    L2: ``n = sqrt(sum_c x^2 + 1e-6)``; L1: ``n = sum_c |x| + 1e-6``; ``y = x / n``. It has no scale.

    Source: caffe-windows normalize_layer.cpp.

    Parameters
    ----------
    bottom[0], top[0] : Blob, shape (N, C, ...)
    top[1] : Blob, shape (N, 1, ...), optional
        The norms; they pass a gradient with `bp_norm` alone.
    """

    exact_num_bottom_blobs = 1
    min_top_blobs = 1
    max_top_blobs = 2
    refuses_in_place = True
    message = "normalize_param"
    fields_of_message = (Field("normalize_type", "L2", "L2 or L1", choices=("L1", "L2")),
                         Field("bp_norm", False, "whether the norms pass a gradient"))
    ignored = ("fix_gradient",)     # the fork does not read it on the CPU

    def setup(self, bottom, top):
        self.squared = self.values["normalize_type"] == "L2"

    def reshape(self, bottom, top):
        shape = bottom[0].shape
        if len(shape) < 2:
            raise ShapeError(f"must have an axis of channels, got {list(shape)}", field="bottom[0]")
        top[0].reshape(*shape)
        for norm in top[1:]:
            norm.reshape(shape[0], 1, *shape[2:])

    def norm(self, x):
        """Return the norms (N, 1, ...)."""
        if self.squared:
            return np.sqrt((x * x).sum(axis=1, keepdims=True) + EPS).astype(x.dtype)
        return np.abs(x).sum(axis=1, keepdims=True) + x.dtype.type(EPS)

    def forward(self, bottom, top):
        x = bottom[0].data
        norm = self.norm(x)
        np.divide(x, norm, out=top[0].data)
        for blob in top[1:]:
            blob.data[...] = norm

    def backward(self, top, propagate_down, bottom):
        if not propagate_down[0]:
            return
        x, y, dy = bottom[0].data, top[0].data, top[0].diff
        along = y if self.squared else np.sign(x)       # the gradient of the norm
        dx = (dy - along * (y * dy).sum(axis=1, keepdims=True)) / self.norm(x)
        if self.values["bp_norm"] and len(top) > 1:
            dx += along * top[1].diff
        bottom[0].diff[...] = dx
