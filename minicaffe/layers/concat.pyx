"""Concat: blobs side by side along an axis (Caffe concat_layer.cpp)."""

import math

from minicaffe.layers.base.strips cimport Blob, Context, StripLayer
from minicaffe.ops.epilogue cimport Part

from minicaffe.errors import ShapeError
from minicaffe.layers.base.checks import axis_or_legacy


cdef class ConcatLayer(StripLayer):
    """Join the bottoms along ``axis``; their other sizes agree. What computes one may write it into the top at once."""

    min_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef readonly list parts

    cpdef reshape(self, list bottom, list top):
        cdef Blob blob, y = top[0]
        self.axis = axis_or_legacy(self.param.concat_param, "concat_dim", bottom[0], "concat_param")
        first = bottom[0].shape
        for i, blob in enumerate(bottom):
            shape = blob.shape
            if (len(shape), *shape[:self.axis], *shape[self.axis + 1:]) != (len(first), *first[:self.axis],
                                                                          *first[self.axis + 1:]):
                raise ShapeError(f"has shape {list(shape)}, bottom[0] has {list(first)}; all sizes but that of axis "
                                 f"{self.axis} must agree", field=f"bottom[{i}]")
        y.reshape_to((*first[:self.axis], sum([blob.shape[self.axis] for blob in bottom]), *first[self.axis + 1:]))
        self.parts = []
        if self.see_parts(bottom, y):
            y.share_data(bottom[0])
            y.share_diff(bottom[0])
        elif self.axis == 1:
            first, unit = 0, math.gcd(*[blob.dims[1] for blob in bottom])
            for blob in bottom:
                self.parts.append(Part(y, first, unit, self.name))
                first += blob.dims[1]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef list missing = [not (<Part> part).take() for part in self.parts]
        if len(bottom) > 1 and (any(missing) or not missing):
            self.move(on, bottom, top[0], True, False, None if all(missing) else missing)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if len(bottom) > 1:
            self.move(on, bottom, top[0], False, True, propagate_down)
