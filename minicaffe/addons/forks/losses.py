"""Losses of forks for online hard example mining (OHEM). The gradient of each is the derivative of its value."""

import math

import numpy as np

from minicaffe.addons.forks.base import ForkLayer
from minicaffe.addons.forks.messages import Field
from minicaffe.errors import ConfigError, ShapeError, close_matches
from minicaffe.layers.softmax_with_loss import SoftmaxWithLossLayer

MODES = "FULL", "VALID", "BATCH_SIZE", "NONE", "PRE_FIXED"
FLOAT_MIN = 1.17549435e-38  # floor under a probability, as of SoftmaxWithLoss


class SmoothL1LossOHEMLayer(ForkLayer):
    """``loss = 1/Z sum s(w (a - b))``, ``s(d) = d^2 / 2`` where ``|d| < 1``, else ``|d| - 1/2``; for online hard example mining.

    Z is the number of positions N H W for `loss_param.normalization` FULL and VALID (the default), N for BATCH_SIZE, 1 for NONE,
    `loss_param.pre_fixed_normalizer` for PRE_FIXED; at least 1.

    Different from its forks: the gradient is the derivative of the loss, so it has the weights as a second factor; theirs is right
    for weights 0 and 1 only. It runs on the CPU.

    Parameters
    ----------
    bottom[0], bottom[1] : Blob, shape (N, C, ...)
        Predictions a and targets b; both may have a gradient.
    bottom[2] : Blob of the same shape, optional
        Weights w; 1 without it. They have no gradient.
    top[0] : Blob, shape ()
    top[1] : Blob, shape (N, 1, ...), optional
        The loss of each position, the sum over channels of s, for BoxAnnotatorOHEM. It gives no gradient.

    Raises
    ------
    ConfigError, ShapeError
        For a wrong `loss_param`, a loss weight of top[1], or bottoms that differ in shape.

    Source: caffe-rfcn smooth_l1_loss_layer.cpp (Shrivastava et al. 2016, OHEM; Dai et al. 2016, R-FCN).
    """

    min_top_blobs = 1
    max_top_blobs = 2
    min_bottom_blobs = 2
    max_bottom_blobs = 3
    auto_top_blobs = True
    default_loss_weight = 1
    no_gradient = {2: "weights"}
    loss_fields = (Field("normalization", "VALID", "one of " + ", ".join(MODES)),
                   Field("normalize", True, "the older field: true is VALID, false BATCH_SIZE"),
                   Field("pre_fixed_normalizer", 1.0, "Z of PRE_FIXED"))

    def setup(self, bottom, top):
        if any(self.param.loss_weight[1:]):
            raise ConfigError("top[1] gives no gradient, its loss weight must be 0", field="loss_weight")
        values = self.read_message("loss_param", self.loss_fields)
        self.mode, self.fixed = values["normalization"], values["pre_fixed_normalizer"]
        given = self.fields.get("loss_param", ())
        if "normalize" in given and "normalization" not in given:
            self.mode = "VALID" if values["normalize"] else "BATCH_SIZE"
        if self.mode not in MODES:
            raise ConfigError(f"must be one of {', '.join(MODES)}, got {self.mode}{close_matches(self.mode, MODES)}",
                              field="loss_param.normalization")
        if not math.isfinite(self.fixed):
            raise ConfigError(f"must be finite, got {self.fixed}", field="loss_param.pre_fixed_normalizer")

    def reshape(self, bottom, top):
        shape = bottom[0].shape
        if len(shape) < 2:
            raise ShapeError(f"must have axes (num, channels, ...), got {list(shape)}", field="bottom[0]")
        for i, blob in enumerate(bottom[1:], 1):
            if blob.shape != shape:
                raise ShapeError(f"has shape {list(blob.shape)}, bottom[0] has {list(shape)}; they must be equal",
                                 field=f"bottom[{i}]")
        top[0].reshape()
        if len(top) > 1:
            top[1].reshape(shape[0], 1, *shape[2:])

    def _difference(self, bottom):
        """Return w (a - b), and Z."""
        difference = bottom[0].cpu_data - bottom[1].cpu_data
        num, _, *inner = difference.shape
        positions = num * math.prod(inner)
        divisor = {"BATCH_SIZE": num, "NONE": 1, "PRE_FIXED": self.fixed}.get(self.mode, positions)
        return difference * bottom[2].cpu_data if len(bottom) > 2 else difference, max(divisor, 1)

    def forward(self, bottom, top):
        difference, divisor = self._difference(bottom)
        size = np.abs(difference)
        inner = np.minimum(size, 1)
        terms = inner * (size - inner / 2)
        top[0].data[...] = terms.sum() / divisor
        if len(top) > 1:
            top[1].data[...] = terms.sum(1, keepdims=True)

    def backward(self, top, propagate_down, bottom):
        if len(bottom) > 2 and propagate_down[2]:
            raise ConfigError("SmoothL1LossOHEM has no gradient for weights; set propagate_down: false", field="bottom[2]")
        difference, divisor = self._difference(bottom)
        slope = np.clip(difference, -1, 1)
        if len(bottom) > 2:
            slope *= bottom[2].cpu_data
        slope *= top[0].cpu_diff.item() / divisor
        for blob, needed, gradient in zip(bottom, propagate_down, (slope, -slope)):
            if needed:
                blob.diff[...] = gradient


class SoftmaxWithLossOHEMLayer(SoftmaxWithLossLayer):
    """SoftmaxWithLoss with a third top, the loss of each position; for online hard example mining.

    Different from its forks: it runs on the CPU.

    Parameters
    ----------
    bottom[0] : Blob, shape (outer..., K, inner...)
    bottom[1] : Blob with outer x inner labels from 0 to K - 1
    top[0] : Blob, shape ()
    top[1] : Blob, optional
        The probabilities, of the shape of bottom[0].
    top[2] : Blob, optional
        -log(max(p[label], FLT_MIN)), of the shape of bottom[1], for BoxAnnotatorOHEM; 0 where the label is
        `loss_param.ignore_label`. Only top[0] gives a gradient.

    Raises
    ------
    ConfigError, ShapeError, DataError
        For a loss weight of top[1] or top[2], if there is not one label for each position, or a label is out of range.

    Source: caffe-rfcn softmax_loss_ohem_layer.cpp (Shrivastava et al. 2016, OHEM; Dai et al. 2016, R-FCN).
    """

    max_top_blobs = 3

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        if any(self.param.loss_weight[2:]):
            raise ConfigError("the loss of positions gives no gradient, its loss weight must be 0", field="loss_weight")

    def reshape(self, bottom, top):
        super().reshape(bottom, top)
        if len(top) > 2:
            top[2].reshape(*bottom[1].shape)

    def capture_obstacle(self):
        return "the third top is computed on the CPU" if len(self.loss_weights) > 2 else super().capture_obstacle()

    def forward_cpu(self, bottom, top):
        super().forward_cpu(bottom, top)
        self._write_positions(bottom, top)

    def forward_gpu(self, bottom, top):
        super().forward_gpu(bottom, top)
        self._write_positions(bottom, top)

    def _write_positions(self, bottom, top):
        """Compute top[2] from the probabilities and the labels, which the loss has checked."""
        if len(top) < 3:
            return
        probabilities, labels, param = top[1].cpu_data, bottom[1].cpu_data, self.param.loss_param
        axis = self.param.softmax_param.axis % probabilities.ndim
        outer, classes = probabilities.shape[:axis], probabilities.shape[axis]
        probabilities = probabilities.reshape(math.prod(outer), classes, math.prod(probabilities.shape[axis + 1:]))
        labels = labels.reshape(len(probabilities), 1, probabilities.shape[2])
        ignored = labels == param.ignore_label if param.HasField("ignore_label") else np.zeros(labels.shape, bool)
        chosen = np.take_along_axis(probabilities, np.where(ignored, 0, labels).astype(int), 1)
        top[2].data[...] = np.where(ignored, 0, -np.log(np.maximum(chosen, FLOAT_MIN))).reshape(top[2].shape)
