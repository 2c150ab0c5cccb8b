"""Permute: another order of the axes (SSD's permute_layer.cpp), as NumPy's transpose.

Forward and backward are a strided copy (loops/strided/caffe.hpp), on a device to and from the layout of the bottom. Different from
Caffe: the number of axes may change between iterations, and no gradient is written that is not needed.
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.engines.channels_last cimport find_strides
from minicaffe.engines.layouts cimport data_layout, element, of_images, of_mode
from minicaffe.loops.strided.caffe cimport copy_strided

from minicaffe.errors import ConfigError


cdef class PermuteLayer(DeviceLayer):
    """Axis i of the top is axis `permute_param.order`[i] of the bottom; axes that are not named follow in their order.

    An order that changes nothing shares the bottom's data and diff. Raises ConfigError if an axis is named twice, or the bottom
    does not have it.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False

    cdef bint identity
    cdef list order         # of all axes
    cdef Layout layout      # of the bottom in the last forward, on a device

    cpdef layer_setup(self, list bottom, list top):
        order = list(self.param.permute_param.order)
        for i, axis in enumerate(order):
            if axis in order[:i]:
                raise ConfigError(f"names axis {axis} twice, in {order}", field=f"permute_param.order[{i}]")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], y = top[0]
        order = list(self.param.permute_param.order)
        for i, named in enumerate(order):
            if named >= x.num_axes:
                raise ConfigError(f"must be an axis of the bottom, whose shape is {list(x.shape)}, got {named}",
                                  field=f"permute_param.order[{i}]")
        order += [axis for axis in range(x.num_axes) if axis not in order]
        self.order = order
        self.identity = order == sorted(order)
        y.reshape_to([x.dims[axis] for axis in order])
        if self.identity:
            y.share_data(x)
            y.share_diff(x)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if self.identity:
            return 0
        cdef Blob x = bottom[0], y = top[0]
        self.layout = of_images(data_layout(on, bottom, True), x)
        self.copy(on, False, x, y, <void*> x.data_in_layout(on, self.layout), y.mutable_data_on(on))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.identity:
            return 0
        cdef Blob y = top[0], x = bottom[0]
        self.layout = of_mode(on, self.layout)
        self.copy(on, True, x, y, x.overwrite_diff_in_layout(on, self.layout), <void*> y.diff_on(on))

    cdef int copy(self, const Context& on, bint back, Blob x, Blob y, void* at_x, void* at_y) except -1:
        """Copy x, in the layout of the last forward, to y, in plain order, or `back`."""
        cdef long long[32] strides, x_strides, y_strides
        cdef int dtype = element(self.layout, x)
        find_strides(self.layout, x, strides)
        find_strides(None, y, y_strides)
        for i, axis in enumerate(self.order):
            x_strides[<int> i] = strides[<int> axis]
        with nogil:
            if back:
                copy_strided(on, self.dtype, dtype, y.num_axes, y.dims, at_y, y_strides, at_x, x_strides)
            else:
                copy_strided(on, dtype, self.dtype, y.num_axes, y.dims, at_x, x_strides, at_y, y_strides)
