"""Reshape: another shape for the same memory (Caffe reshape_layer.cpp)."""

import math

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.view import ViewLayer


class ReshapeLayer(ViewLayer):
    """Replace ``num_axes`` axes from ``axis`` on by ``shape``, in which 0 copies a size and one -1 is inferred."""

    def layer_setup(self, bottom, top):
        dims = self.param.reshape_param.shape.dim
        if any(dim < -1 for dim in dims) or list(dims).count(-1) > 1:
            raise ConfigError(f"sizes must be at least 0, with one -1 at most, got {list(dims)}",
                              field="reshape_param.shape")
        if self.param.reshape_param.num_axes < -1:
            raise ConfigError(f"must be at least -1, got {self.param.reshape_param.num_axes}", field="reshape_param.num_axes")

    def top_shape(self, bottom):
        """Return the shape of the top, for `ViewLayer.reshape`; raise ShapeError if it has another number of elements."""
        param = self.param.reshape_param
        shape, axes = bottom.shape, bottom.num_axes
        start = param.axis if param.axis >= 0 else axes + param.axis + 1
        if not 0 <= start <= axes:
            raise ShapeError(f"axis {param.axis} is out of range for a bottom of shape {list(shape)}",
                             field="reshape_param.axis")
        end = axes if param.num_axes == -1 else start + param.num_axes
        if end > axes:
            raise ShapeError(f"axes {start}..{end - 1} are out of range for a bottom of shape {list(shape)}",
                             field="reshape_param.num_axes")
        dims = list(param.shape.dim)
        for i, dim in enumerate(dims):
            if dim == 0 and start + i >= axes:
                raise ShapeError(f"dim[{i}] is 0, which copies axis {start + i}, but the bottom has shape {list(shape)}",
                                 field="reshape_param.shape")
            dims[i] = dim or shape[start + i]
        if -1 in dims:
            rest = math.prod(shape[:start] + shape[end:]) * math.prod(dim for dim in dims if dim != -1)
            if rest == 0 or bottom.count % rest:
                raise ShapeError(f"{list(param.shape.dim)}: the size -1 cannot be inferred, the bottom has {bottom.count} "
                                 f"elements and the other sizes multiply to {rest}", field="reshape_param.shape")
            dims[dims.index(-1)] = bottom.count // rest
        result = (*shape[:start], *dims, *shape[end:])
        if math.prod(result) != bottom.count:
            raise ShapeError(f"gives {list(result)} with {math.prod(result)} elements, the bottom {list(shape)} has "
                             f"{bottom.count}", field="reshape_param.shape")
        return result
