"""PriorBox: SSD's default boxes, which its predictions shift and resize (SSD's prior_box_layer.cpp; Liu et al., 2016).

The boxes are the same as Caffe's, so that trained models stay valid: `min_size` and `max_size` are truncated to whole pixels, and
the inverse of a ratio is added even if the list has it already. Different from Caffe: the second bottom may be missing if the
parameters give the picture's size; it is an error if neither gives it.
"""

import math

import numpy as np

from minicaffe.blob import NUMPY_TYPES
from minicaffe.errors import ConfigError, ShapeError, shown
from minicaffe.layer import Layer
from minicaffe.proto.fields import Fields
from minicaffe.proto.text import layer_fields


class PriorBoxLayer(Layer):
    """Boxes around the center of each cell of a feature map, relative to the picture's size (0 to 1 inside the picture).

    Parameters
    ----------
    bottom[0] : Blob, shape (N, C, H, W)
        The feature map; only H and W are used.
    bottom[1] : Blob, shape (N, C, height, width)
        The picture; only its size is used, and only if neither `img_size` nor `img_h` and `img_w` are given.
    top[0] : Blob, shape (1, 2, H W boxes 4)
        First the corners (xmin, ymin, xmax, ymax) of all boxes, in the order row, column, box shape; then their variances.

    The box shapes for each `min_size` s: the square of side s; with `max_size` m, the square of side sqrt(s m); for each ratio r,
    width s sqrt(r) and height s / sqrt(r). The ratios are `aspect_ratio` without 1 and without repeated values; with `flip`, 1/r
    follows each r.

    Raises
    ------
    ConfigError
        For sizes, ratios, steps or variances that are not above 0, wrong numbers of them, or a picture of unknown size.
    """

    reads_shapes_only = True
    min_bottom_blobs = 1
    max_bottom_blobs = 2
    overwrites_outputs = True
    exact_num_top_blobs = 1

    def layer_setup(self, bottom, top):
        param = self.param.prior_box_param
        self.sides = np.array(self._box_sides(param))
        _check_above_zero("variance", param.variance)
        if len(param.variance) not in (0, 1, 4):
            raise ConfigError(f"give none, one for all, or four, got {len(param.variance)}", field="prior_box_param.variance")
        for field, height_and_width in (("img_size", ("img_h", "img_w")), ("step", ("step_h", "step_w"))):
            _check_size(param, field, height_and_width)
        if not math.isfinite(param.offset):
            raise ConfigError(f"must be a number, got {param.offset:g}", field="prior_box_param.offset")

    def _box_sides(self, param):
        """Return width and height of each box shape, in pixels of the picture."""
        if not param.min_size:
            raise ConfigError("give at least one", field="prior_box_param.min_size")
        for name in ("min_size", "aspect_ratio"):
            _check_above_zero(name, getattr(param, name))
        for i, value in enumerate(param.min_size):
            if value < 1:
                raise ConfigError(f"must be at least 1, as it is truncated to whole pixels, got {value:g}",
                                  field=f"prior_box_param.min_size[{i}]")
        if len(param.max_size) not in (0, len(param.min_size)):
            raise ConfigError(f"give none, or one for each of the {len(param.min_size)} min_size, got {len(param.max_size)}",
                              field="prior_box_param.max_size")
        for i, (min_size, max_size) in enumerate(zip(param.min_size, param.max_size)):
            if not min_size < max_size < math.inf:
                raise ConfigError(f"must be finite and above min_size, {min_size:g}, got {max_size:g}",
                                  field=f"prior_box_param.max_size[{i}]")
        ratios, sides = [1.0], []
        for ratio in param.aspect_ratio:
            if all(abs(ratio - other) >= 1e-6 for other in ratios):
                ratios += [ratio, 1 / ratio] if param.flip else [ratio]
        for i, size in enumerate(map(int, param.min_size)):
            squares = [size, math.sqrt(size * int(param.max_size[i]))] if param.max_size else [size]
            sides += [(side, side) for side in squares]
            sides += [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in ratios[1:]]
        return sides

    def reshape(self, bottom, top):
        param = self.param.prior_box_param
        for i, blob in enumerate(bottom):
            if blob.num_axes != 4:
                raise ShapeError(f"needs 4 axes (num, channels, height, width), got {list(blob.shape)}", field=f"bottom[{i}]")
        if param.img_size or param.img_h:
            size = (param.img_size, param.img_size) if param.img_size else (param.img_h, param.img_w)
        elif len(bottom) > 1:
            size = bottom[1].shape[2:]
        else:
            raise ConfigError("give img_size, or img_h and img_w, or the picture as second bottom",
                              field="prior_box_param.img_size")
        if 0 in size:
            raise ShapeError(f"the picture has no pixels, its shape is {list(bottom[1].shape)}", field="bottom[1]")
        self.picture = size
        top[0].reshape(1, 2, math.prod(bottom[0].shape[2:]) * self.sides.size * 2)  # two sides give four corner values

    def forward_cpu(self, bottom, top):
        param, real = self.param.prior_box_param, NUMPY_TYPES[self.dtype].type
        (rows, columns), (height, width) = bottom[0].shape[2:], self.picture
        x = (np.arange(columns) + param.offset) * (param.step or param.step_w or width / max(columns, 1))
        y = (np.arange(rows) + param.offset) * (param.step or param.step_h or height / max(rows, 1))
        centers = np.stack(np.meshgrid(x, y), 2).astype(real)[:, :, np.newaxis]
        half = self.sides.astype(real) / real(2)
        corners = np.concatenate([centers - half, centers + half], 3) / np.array([width, height] * 2, real)
        boxes, variances = top[0].data[0]
        boxes[...] = (corners.clip(0, 1) if param.clip else corners).reshape(-1)
        variances.reshape(-1, 4)[...] = list(param.variance) or 0.1

    def backward_cpu(self, top, propagate_down, bottom):
        """Overwrite the bottoms' diffs with 0: boxes depend on sizes only."""
        for blob, wanted in zip(bottom, propagate_down):
            if wanted:
                blob.fill_diff(0)


class PriorBoxClusteredLayer(PriorBoxLayer):
    """PriorBox of OpenVINO with a box shape for each pair of `prior_box_param.width` and `height`, in pixels of the picture.

    Other fields of box shapes have no effect. Source: openvino prior_box_clustered_layer.cpp.
    """

    takes_unknown_fields = "prior_box_param.width", "prior_box_param.height"

    def _box_sides(self, param):
        fields = layer_fields(self.param).prior_box_param
        sides = {name: fields.all(name) for name in ("width", "height")}
        for name, values in sides.items():
            _check_above_zero(name, values)
            if not values or len(values) != len(sides["width"]):
                raise ConfigError(f"give at least one, and as many as width, got {len(values)}", field=f"prior_box_param.{name}")
        return list(zip(*sides.values()))


def _check_above_zero(name, values):
    """Raise ConfigError unless all values of a field are finite and above 0."""
    for i, value in enumerate(values):
        if isinstance(value, (bool, str, Fields)) or not 0 < value < math.inf:
            raise ConfigError(f"must be finite and above 0, got {shown(value)}", field=f"prior_box_param.{name}[{i}]")


def _check_size(param, field, height_and_width):
    """Raise ConfigError unless `param` has `field` alone, both fields of `height_and_width`, or none of the three."""
    given = [name for name in height_and_width if param.HasField(name)]
    if given and param.HasField(field):
        raise ConfigError(f"give {field}, or {' and '.join(height_and_width)}, not both", field=f"prior_box_param.{given[0]}")
    if len(given) == 1:
        other, = set(height_and_width) - set(given)
        raise ConfigError(f"must be given too, as {given[0]} is given", field=f"prior_box_param.{other}")
    for name in (field, *height_and_width):
        if param.HasField(name) and not 0 < getattr(param, name) < math.inf:
            raise ConfigError(f"must be finite and above 0, got {getattr(param, name):g}", field=f"prior_box_param.{name}")
