"""ChannelNormalize: what forks call Normalize, as SSD another layer (addons/forks/formulas.py)."""

import numpy as np

from minicaffe.addons.forks.base import ForkLayer
from minicaffe.addons.forks.messages import Field
from minicaffe.errors import ShapeError

EPS = 1e-6      # added to the sum of squares, or of absolute values


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
    fields_of_message = (Field("normalize_type", "L2", "L2 or L1"), Field("bp_norm", False, "whether the norms pass a gradient"))
    ignored = ("fix_gradient",)     # the fork does not read it on the CPU

    def setup(self, bottom, top):
        if self.values["normalize_type"] not in ("L1", "L2"):
            raise self.value_error("normalize_type", "must be L1 or L2")
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
