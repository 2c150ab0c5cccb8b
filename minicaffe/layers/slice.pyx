"""Slice: a blob taken apart along an axis (Caffe slice_layer.cpp)."""

from minicaffe.layers.base.strips cimport Blob, Context, StripLayer

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.checks import axis_or_legacy


cdef class SliceLayer(StripLayer):
    """Take the bottom apart along ``axis``, at ``slice_point`` or into equal parts."""

    exact_num_bottom_blobs = 1
    min_top_blobs = 1

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], part
        param = self.param.slice_param
        self.axis = axis_or_legacy(param, "slice_dim", x, "slice_param")
        shape, size, points = x.shape, x.shape[self.axis], list(param.slice_point)
        if points:
            if len(points) != len(top) - 1:
                raise ConfigError(f"{len(top)} tops need {len(top) - 1} points, got {len(points)}", field="slice_param.slice_point")
        elif size % len(top):
            raise ShapeError(f"axis {self.axis} of the bottom, shape {list(shape)}, cannot be cut into {len(top)} equal parts; "
                             "give slice_point", field="slice_param.slice_point")
        else:
            points = [size // len(top) * i for i in range(1, len(top))]
        edges = [0, *points, size]
        # Equal parts of an axis of size 0 are empty; points must cut off something each.
        if param.slice_point and edges != sorted(set(edges)):
            raise ShapeError(f"must increase strictly between 0 and {size}, the size of axis {self.axis}, got {points}",
                             field="slice_param.slice_point")
        for i, part in enumerate(top):
            part.reshape_to((*shape[:self.axis], edges[i + 1] - edges[i], *shape[self.axis + 1:]))
        if len(top) == 1:
            (<Blob?> top[0]).share_data(x)
            (<Blob> top[0]).share_diff(x)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if len(top) > 1:
            self.copy_parts(on, top, bottom[0], False, False, None)     # data, out of the bottom

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if len(top) > 1:
            self.copy_parts(on, top, bottom[0], True, True, None)       # gradients, into that of the bottom
