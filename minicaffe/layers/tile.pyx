"""Tile: a blob repeated along an axis (Caffe tile_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.loops.strided.caffe cimport copy_strided, tile_backward

from minicaffe.errors import located
from minicaffe.layers.base.checks import axis_of, check_size


cdef class TileLayer(DeviceLayer):
    """Repeat the bottom ``tiles`` times along ``axis``: [a b] becomes [a b a b]."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False

    cdef long long rows, inner, tiles   # the axes before `axis` and those from it on, as products

    cpdef layer_setup(self, list bottom, list top):
        self.tiles = self.param.tile_param.tiles
        check_size(self.tiles, "tile_param.tiles", needed=True)

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0]
        axis = axis_of(x, self.param.tile_param.axis, "tile_param.axis")
        self.rows, self.inner = x.count_range(0, axis), x.count_range(axis, x.num_axes)
        shape = x.shape
        with located(field="tile_param.tiles"):
            top[0].reshape_to((*shape[:axis], shape[axis] * self.tiles, *shape[axis + 1:]))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], y = top[0]
        cdef long long[3] sizes = [self.rows, self.tiles, self.inner]       # y as an array of these axes; x has stride 0 in tiles
        cdef long long[3] x_strides = [self.inner, 0, 1], y_strides = [self.inner * self.tiles, self.inner, 1]
        with nogil:
            copy_strided(on, self.dtype, self.dtype, 3, sizes, x.data_on(on), x_strides, y.mutable_data_on(on), y_strides)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:    # tiles + 4: its cost
        cdef Blob x = bottom[0], y = top[0]
        with nogil:
            tile_backward(on, self.dtype, x.count, self.tiles + 4, self.inner, self.tiles, y.diff_on(on), x.mutable_diff_on(on))
