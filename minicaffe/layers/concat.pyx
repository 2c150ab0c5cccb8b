"""Layers that copy strips along an axis: Concat, Slice, Tile, Crop.

Along one axis a blob is rows of contiguous strips, one for each index before the axis (Caffe concat_layer.cpp,
slice_layer.cpp, tile_layer.cpp, crop_layer.cpp).
"""

from minicaffe.blob cimport Blob
from minicaffe.kernels.types cimport item_size
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.layouts cimport joined_layouts

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import axis_of, axis_or_legacy, refuse_in_place

cdef extern from "minicaffe/ops/strips/caffe.hpp" namespace "mc" nogil:
    void copy_strips(const Context&, long long rows, long long strip, const void* x, long long x_pitch, void* y, long long y_pitch)
    void copy_box(const Context&, int axes, const long long* size, const long long* whole, const long long* offset, bint back,
                  void* box, void* array)

cdef extern from "minicaffe/ops/tile/caffe.hpp" namespace "mc" nogil:
    void tile_backward(const Context&, int dtype, long long n, long long inner, long long tiles, const void* dy, void* dx)


cdef class StripLayer(DeviceLayer):
    """Parts of equal rows lie side by side in a whole: Concat joins the parts, Slice takes them apart.

    A single part is the whole: it shares data and diff.
    """

    cdef int axis
    cdef long long rows
    cdef list strips   # bytes of each part in one row

    cdef int see_parts(self, list parts, Blob whole) except -1:
        cdef Blob part
        self.rows = whole.count_range(0, self.axis)
        self.strips = [part.count_range(self.axis, part.num_axes) * item_size(self.dtype) for part in parts]
        if len(parts) == 1:
            return 1
        return 0

    cdef int move(self, const Context& on, list parts, Blob whole, bint join, bint diff, list wanted) except -1:
        """Copy the parts into the whole, or with `join` false the whole into those parts that are wanted."""
        cdef long long offset = 0, strip, pitch = sum(self.strips)
        cdef list layouts = [None] * (len(parts) + 1)
        if self.axis == 1 and whole.num_axes == 4:
            layouts = joined_layouts(on, parts, whole, join, diff)
        cdef Layout layout = layouts[len(parts)]
        cdef char* there
        if join:
            there = <char*> (whole.overwrite_diff_in(on, layout) if diff else whole.overwrite_data_in(on, layout))
        else:
            there = <char*> <void*> (whole.diff_in(on, layout) if diff else whole.data_in(on, layout))
        cdef void* here
        cdef Blob part
        cdef int i
        for i in range(len(parts)):
            part, strip, layout = parts[i], self.strips[i], layouts[i]
            if join:
                here = <void*> (part.diff_in(on, layout) if diff else part.data_in(on, layout))
                with nogil:
                    copy_strips(on, self.rows, strip, here, strip, there + offset, pitch)
            elif wanted is None or wanted[i]:
                here = part.overwrite_diff_in(on, layout) if diff else part.overwrite_data_in(on, layout)
                with nogil:
                    copy_strips(on, self.rows, strip, there + offset, pitch, here, strip)
                part.wrote_diff() if diff else part.wrote_data()
            offset += strip
        if join:
            whole.wrote_diff() if diff else whole.wrote_data()
        return 0


cdef class ConcatLayer(StripLayer):
    """Join the bottoms along ``axis``; their other sizes agree."""

    min_bottom_blobs = 1
    exact_num_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        refuse_in_place(self, bottom, top)

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
        if self.see_parts(bottom, y):
            y.share_data(bottom[0])
            y.share_diff(bottom[0])

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if len(bottom) > 1:
            self.move(on, bottom, top[0], True, False, None)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if len(bottom) > 1:
            self.move(on, bottom, top[0], False, True, propagate_down)


cdef class SliceLayer(StripLayer):
    """Take the bottom apart along ``axis``, at ``slice_point`` or into equal parts."""

    exact_num_bottom_blobs = 1
    min_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        refuse_in_place(self, bottom, top)

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
        if self.see_parts(top, x):
            (<Blob> top[0]).share_data(x)
            (<Blob> top[0]).share_diff(x)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if len(top) > 1:
            self.move(on, top, bottom[0], False, False, None)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if len(top) > 1 and propagate_down[0]:
            self.move(on, top, bottom[0], True, True, None)


cdef class TileLayer(DeviceLayer):
    """Repeat the bottom ``tiles`` times along ``axis``: [a b] becomes [a b a b]."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef long long rows, inner, tiles

    cpdef layer_setup(self, list bottom, list top):
        refuse_in_place(self, bottom, top)
        self.tiles = self.param.tile_param.tiles
        if self.tiles < 1:
            raise ConfigError(f"must be given and at least 1, got {self.tiles}", field="tile_param.tiles")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        axis = axis_of(x, self.param.tile_param.axis, "tile_param.axis")
        self.rows, self.inner = x.count_range(0, axis), x.count_range(axis, x.num_axes)
        shape = x.shape
        try:
            top[0].reshape_to((*shape[:axis], shape[axis] * self.tiles, *shape[axis + 1:]))
        except ShapeError as error:
            raise error.at(field="tile_param.tiles")

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if (<Blob> top[0]).count == 0:
            return 0    # the loop over tiles may be long
        cdef long long strip = self.inner * item_size(self.dtype), t
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef char* y = <char*> (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            for t in range(self.tiles):
                copy_strips(on, self.rows, strip, x, strip, y + t * strip, strip * self.tiles)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob x = bottom[0], y = top[0]
        if not propagate_down[0]:
            return 0
        cdef const void* dy = y.diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        with nogil:
            tile_backward(on, self.dtype, x.count, self.inner, self.tiles, dy, dx)


cdef class CropLayer(DeviceLayer):
    """Cut bottom[0] to the size of bottom[1] from ``axis`` on, starting at ``offset``; bottom[1]'s values do not count."""

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1

    cdef int axes
    cdef long long[32] size, whole, offset   # of the box and the bottom; the last axis in bytes

    cpdef layer_setup(self, list bottom, list top):
        refuse_in_place(self, bottom, top)

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], reference = bottom[1], y = top[0]
        cdef long long unit = item_size(self.dtype)
        param = self.param.crop_param
        start = axis_of(x, param.axis, "crop_param.axis")
        if reference.num_axes != x.num_axes:
            raise ShapeError(f"needs as many axes as bottom[0], shape {list(x.shape)}, got {list(reference.shape)}",
                             field="bottom[1]")
        cropped = x.num_axes - start
        offsets = list(param.offset) or [0]
        if len(offsets) not in (1, cropped):
            raise ConfigError(f"give none, one, or one for each of the {cropped} axes from axis {start} on, got {len(offsets)}",
                              field="crop_param.offset")
        offsets = [0] * start + (offsets * cropped if len(offsets) == 1 else offsets)
        shape = x.shape[:start] + reference.shape[start:]
        for axis in range(start, x.num_axes):
            if x.shape[axis] < offsets[axis] + shape[axis]:
                raise ShapeError(f"offset {offsets[axis]} and size {shape[axis]} reach beyond axis {axis} of bottom[0], shape "
                                 f"{list(x.shape)}", field="crop_param.offset")
        y.reshape_to(shape)
        self.axes = x.num_axes
        for axis in range(self.axes):
            self.size[axis], self.whole[axis], self.offset[axis] = shape[axis], x.dims[axis], offsets[axis]
        self.size[self.axes - 1] *= unit
        self.whole[self.axes - 1] *= unit
        self.offset[self.axes - 1] *= unit

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef void* x = <void*> (<Blob> bottom[0]).data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            copy_box(on, self.axes, self.size, self.whole, self.offset, False, y, x)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        (<Blob> bottom[0]).fill_diff_on(on, 0)
        cdef void* dy = <void*> (<Blob> top[0]).diff_on(on)
        cdef void* dx = (<Blob> bottom[0]).mutable_diff_on(on)
        with nogil:
            copy_box(on, self.axes, self.size, self.whole, self.offset, True, dy, dx)


register_layer("Concat", ConcatLayer)
register_layer("Slice", SliceLayer)
register_layer("Tile", TileLayer)
register_layer("Crop", CropLayer)
