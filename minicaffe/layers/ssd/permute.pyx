"""Permute: another order of the axes (SSD's permute_layer.cpp), as NumPy's transpose.

Forward and backward are one strided copy (ops/strided/caffe.hpp). Different from Caffe: the number of axes may change between
iterations, and no gradient is written that is not needed.
"""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.channels_last cimport ChannelsLast
from minicaffe.ops.layouts cimport data_layout
from minicaffe.ops.strided.caffe cimport copy_strided

from minicaffe.errors import ConfigError


cdef class PermuteLayer(DeviceLayer):
    """Axis i of the top is axis `permute_param.order`[i] of the bottom; axes that are not named follow in their order.

    An order that changes nothing shares the bottom's data and diff. Raises ConfigError if an axis is named twice, or the bottom
    does not have it.
    """

    exact_num_bottom_blobs = 1
    flops_per_value = 0, 0
    exact_num_top_blobs = 1
    refuses_in_place = True

    cdef bint identity
    cdef int axes
    cdef long long[32] sizes, x_strides, y_strides   # of the top; in the order of its axes
    cdef list order

    cpdef layer_setup(self, list bottom, list top):
        order = list(self.param.permute_param.order)
        for i, axis in enumerate(order):
            if axis in order[:i]:
                raise ConfigError(f"names axis {axis} twice, in {order}", field=f"permute_param.order[{i}]")

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], y = top[0]
        cdef int axis
        order = list(self.param.permute_param.order)
        for i, named in enumerate(order):
            if named >= x.num_axes:
                raise ConfigError(f"must be an axis of the bottom, whose shape is {list(x.shape)}, got {named}",
                                  field=f"permute_param.order[{i}]")
        order += [axis for axis in range(x.num_axes) if axis not in order]
        self.order = order
        self.axes = x.num_axes
        self.identity = order == sorted(order)
        y.reshape_to([x.dims[axis] for axis in order])
        if self.identity:
            y.share_data(x)
            y.share_diff(x)
        for i in range(self.axes):
            self.sizes[i] = y.dims[i]
            self.x_strides[i] = x.count_range(order[i] + 1, x.num_axes)
            self.y_strides[i] = y.count_range(i + 1, y.num_axes)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        if self.identity:
            return 0
        cdef Blob x = bottom[0], y = top[0]
        cdef Layout layout = data_layout(on, bottom) if on.stream != NULL else None
        cdef long long[32] last_strides
        cdef const long long* strides = self.x_strides
        cdef int i
        if layout is not None and layout.dims != x.shape:
            layout = None
        if layout is not None:
            for i in range(self.axes):
                last_strides[i] = (<ChannelsLast> layout).stride(self.order[i])
            strides = last_strides
        with nogil:
            copy_strided(on, self.dtype, self.axes, self.sizes, x.data_in_layout(on, layout), strides,
                         y.mutable_data_on(on), self.y_strides)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.identity or not propagate_down[0]:
            return 0
        cdef Blob y = top[0], x = bottom[0]
        with nogil:
            copy_strided(on, self.dtype, self.axes, self.sizes, y.diff_on(on), self.y_strides, x.mutable_diff_on(on),
                         self.x_strides)
