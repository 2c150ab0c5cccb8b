"""Concat: blobs side by side along an axis (Caffe concat_layer.cpp)."""

import math

from minicaffe.kernels.types cimport item_size
from minicaffe.layers.base.strips cimport Blob, Context, StripLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.eltwise.caffe cimport relu_gradient
from minicaffe.engines.epilogue cimport ConcatSlice
from minicaffe.engines.layouts cimport element, concat_layouts, stored

from minicaffe.errors import ShapeError
from minicaffe.layers.base.checks import axis_or_legacy


cdef class ConcatLayer(StripLayer):
    """Join the bottoms along ``axis``; their other sizes agree. The layer that computes one may write it directly into the top."""

    min_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef readonly list parts    # a ConcatSlice for each of several bottoms if the axis is 1, else empty

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
        if len(bottom) == 1:
            y.share_data(bottom[0])
            y.share_diff(bottom[0])
        elif self.axis == 1:
            first, unit = 0, math.gcd(*[blob.dims[1] for blob in bottom])
            for blob in bottom:
                self.parts.append(ConcatSlice(y, first, unit, self.name))
                first += blob.dims[1]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef list missing = [not (<ConcatSlice> part).take_written() for part in self.parts]
        if len(bottom) > 1 and (any(missing) or not missing):       # missing: parts that were not written here directly
            self.copy_parts(on, bottom, top[0], True, False, None if all(missing) else missing)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef list wanted = list(propagate_down)
        cdef ConcatSlice part
        for i, part in enumerate(self.parts):
            if part.relu is not None and part.relu.deferred:    # this layer computes the ReLU's gradient, too
                wanted[i] = False
                self.rectify(on, i, bottom, top[0])
        if len(bottom) > 1 and any(wanted):
            self.copy_parts(on, bottom, top[0], False, True, wanted)

    cdef int rectify(self, const Context& on, int which, list bottom, Blob y) except -1:
        """Compute the gradient of bottom `which`, and of the ReLU in place on it: that of y, and 0 where y is 0.

        So a plan need not keep the ReLU's top for backward, if nothing else reads it (net/compile.pyx).
        """
        cdef Blob x = bottom[which]
        cdef list layouts = concat_layouts(on, bottom, y, [y], True) if y.num_axes == 4 else [None] * (len(bottom) + 1)
        cdef Layout layout = layouts[len(bottom)], top_layout = layouts[which]
        cdef int dtype = element(layout, y)
        cdef bint pixels = layout is not None and layout.channels_last      # rows are pixels, else images
        cdef long long rows = y.count // y.dims[1] if pixels else y.dims[0]
        cdef long long size = item_size(dtype), row = stored(layout, y) // rows, strip = stored(top_layout, x) // rows
        cdef long long offset = row // y.dims[1] * (<ConcatSlice> self.parts[which]).first
        cdef const char* values = <const char*> y.data_in_layout(on, layout)
        cdef const char* dy = <const char*> y.diff_in_layout(on, layout)
        cdef char* dx = <char*> x.overwrite_diff_in_layout(on, top_layout)
        cdef long long i, at
        with nogil:
            for i in range(rows):
                at = (i * row + offset) * size
                relu_gradient(on, dtype, strip, values + at, dy + at, dx + i * strip * size, 0)
