"""Reshape and Flatten: another shape for the same memory (Caffe reshape_layer.cpp, flatten_layer.cpp).

The top shares data and diff with the bottom, so forward and backward have nothing to do.
"""

import math

from minicaffe.errors import ConfigError, Error, ShapeError
from minicaffe.layer import Layer, register_layer
from minicaffe.layers.base.checks import axis_of, refuse_in_place


class ViewLayer(Layer):
    """One bottom, one top with its memory; a type says which shape the top has."""

    host_only = True
    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    def layer_setup(self, bottom, top):
        refuse_in_place(self, bottom, top)

    def top_shape(self, bottom):
        """Return the shape of the top for a bottom blob."""
        raise Error(f"layer type {self.type} does not define top_shape(bottom)")

    def reshape(self, bottom, top):
        top[0].reshape_to(self.top_shape(bottom[0]))
        top[0].share_data(bottom[0])
        top[0].share_diff(bottom[0])

    def forward_cpu(self, bottom, top):
        """Nothing to do: the top is the bottom's memory."""

    def backward_cpu(self, top, propagate_down, bottom):
        """Nothing to do: the top is the bottom's memory."""


class FlattenLayer(ViewLayer):
    """Axes ``axis`` to ``end_axis``, both included, become one; ``end_axis`` = ``axis`` - 1 inserts an axis of size 1."""

    def top_shape(self, bottom):
        param = self.param.flatten_param
        start = axis_of(bottom, param.axis, "flatten_param.axis")
        end = axis_of(bottom, param.end_axis, "flatten_param.end_axis") + 1
        if end < start:
            raise ShapeError(f"must be at least axis - 1 = {start - 1}, got {end - 1}, for a bottom of shape "
                             f"{list(bottom.shape)}", field="flatten_param.end_axis")
        shape = bottom.shape
        return (*shape[:start], math.prod(shape[start:end]), *shape[end:])


class ReshapeLayer(ViewLayer):
    """Replace ``num_axes`` axes from ``axis`` on by ``shape``, in which 0 copies a size and one -1 is inferred."""

    def layer_setup(self, bottom, top):
        super().layer_setup(bottom, top)
        dims = self.param.reshape_param.shape.dim
        if any(dim < -1 for dim in dims) or list(dims).count(-1) > 1:
            raise ConfigError(f"sizes must be at least 0, with one -1 at most, got {list(dims)}",
                              field="reshape_param.shape")
        if self.param.reshape_param.num_axes < -1:
            raise ConfigError(f"must be at least -1, got {self.param.reshape_param.num_axes}", field="reshape_param.num_axes")

    def top_shape(self, bottom):
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


register_layer("Flatten", FlattenLayer)
register_layer("Reshape", ReshapeLayer)
