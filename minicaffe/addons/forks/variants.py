"""Layers of forks that have the name of an SSD type and another formula: `Layer.for_param` chooses by fields and bottoms.

And PriorBoxClustered, SSD's PriorBox with other box shapes.
"""

import numpy as np

from minicaffe.addons.forks.losses import ForkLossLayer
from minicaffe.addons.ssd.prior_box import PriorBoxLayer, check_above_zero
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.fork import Field, ForkLayer, check_known
from minicaffe.proto.text import layer_fields

EPS = 1e-6      # added to the sum of squares, or of absolute values


class ChannelNormalizeLayer(ForkLayer):
    """Normalize with `normalize_param`: each position is divided by the norm of its channels.

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
    flops_per_value = 3, 4
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


class RegionSmoothL1LossLayer(ForkLossLayer):
    """SmoothL1Loss with 4 bottoms or `smooth_l1_loss_param`, as nets of Fast R-CNN have it.

    ``loss = sum(wo s(wi (a - b))) / N``, ``s(d) = sigma^2 d^2 / 2`` where ``|d| < 1 / sigma^2``, else ``|d| - 1 / (2 sigma^2)``.

    Source: caffe-fast-rcnn smooth_L1_loss_layer.cpp (Girshick 2015).

    Parameters
    ----------
    bottom[0], bottom[1] : Blob, shape (N, ...)
        Predictions a and targets b; both may have a gradient.
    bottom[2], bottom[3] : Blob of the same shape, optional
        Weights wi inside and wo outside; 1 without them. Both or none is given.
    top[0] : Blob, shape ()
    """

    min_bottom_blobs = 2
    max_bottom_blobs = 4
    flops_per_value = 6, 6
    no_gradient = {2: "the inside weights", 3: "the outside weights"}
    message = "smooth_l1_loss_param"
    fields_of_message = (Field("sigma", 1.0, "the loss is quadratic below 1 / sigma^2"),)

    def setup(self, bottom, top):
        if not self.values["sigma"] > 0:
            raise self.value_error("sigma", "must be above 0")
        if len(bottom) == 3:
            raise ShapeError("is given without bottom[3]: give inside and outside weights, or neither", field="bottom[2]")

    def forward(self, bottom, top):
        sigma2 = self.values["sigma"] ** 2
        d = self.difference(bottom)
        size = np.abs(d)
        terms = np.where(size < 1 / sigma2, 0.5 * sigma2 * d * d, size - 0.5 / sigma2)
        top[0].data[...] = (terms * bottom[3].data if len(bottom) > 2 else terms).sum() / max(1, len(terms))

    def backward(self, top, propagate_down, bottom):
        sigma2 = self.values["sigma"] ** 2
        d = self.difference(bottom)
        slope = np.where(np.abs(d) < 1 / sigma2, sigma2 * d, np.sign(d))
        if len(bottom) > 2:
            slope *= bottom[2].data * bottom[3].data
        self.write_gradients(top, propagate_down, bottom, (slope, -slope), max(1, len(d)))

    def difference(self, bottom):
        """Return wi (a - b)."""
        d = bottom[0].data - bottom[1].data
        return d * bottom[2].data if len(bottom) > 2 else d


class PriorBoxClusteredLayer(PriorBoxLayer):
    """PriorBox of OpenVINO with a box shape for each pair of `prior_box_param.width` and `height`, in pixels of the picture.

    Other fields of box shapes have no effect. Source: openvino prior_box_clustered_layer.cpp.
    """

    takes_unknown_fields = True

    def _box_sides(self, param):
        fields = layer_fields(self.param).prior_box_param
        check_known(self.param, ("prior_box_param.width", "prior_box_param.height"))
        sides = {name: fields.all(name) for name in ("width", "height")}
        for name, values in sides.items():
            check_above_zero(name, values)
            if not values or len(values) != len(sides["width"]):
                raise ConfigError(f"give at least one, and as many as width, got {len(values)}", field=f"prior_box_param.{name}")
        return list(zip(*sides.values()))
