"""Flatten: several axes become one (Caffe flatten_layer.cpp)."""

import math

from minicaffe.errors import ShapeError
from minicaffe.layers.base.checks import axis_of
from minicaffe.layers.base.view import ViewLayer


class FlattenLayer(ViewLayer):
    """Axes ``axis`` to ``end_axis``, both included, become one; ``end_axis`` = ``axis`` - 1 inserts an axis of size 1."""

    def top_shape(self, bottom):
        """Return the shape of the top, for `ViewLayer.reshape`; raise ShapeError if ``end_axis`` is before ``axis`` - 1."""
        param = self.param.flatten_param
        start = axis_of(bottom, param.axis, "flatten_param.axis")
        end = axis_of(bottom, param.end_axis, "flatten_param.end_axis") + 1
        if end < start:
            raise ShapeError(f"must be at least axis - 1 = {start - 1}, got {end - 1}, for a bottom of shape "
                             f"{list(bottom.shape)}", field="flatten_param.end_axis")
        shape = bottom.shape
        return (*shape[:start], math.prod(shape[start:end]), *shape[end:])
