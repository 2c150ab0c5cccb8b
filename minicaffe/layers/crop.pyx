"""Crop: a box cut out of a blob (Caffe crop_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.kernels.types cimport item_size
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.ops.strips.caffe cimport copy_box

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.checks import axis_of


cdef class CropLayer(DeviceLayer):
    """Cut bottom[0] to the size of bottom[1] from ``axis`` on, starting at ``offset``; bottom[1]'s values do not count."""

    exact_num_bottom_blobs = 2
    flops_per_value = 0, 0
    exact_num_top_blobs = 1
    refuses_in_place = True

    cdef int axes
    cdef long long[32] size, whole, offset   # of the box and the bottom; the last axis in bytes

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], reference = bottom[1], y = top[0]
        cdef long long unit
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
            unit = item_size(self.dtype) if axis == self.axes - 1 else 1
            self.size[axis], self.whole[axis], self.offset[axis] = shape[axis] * unit, x.dims[axis] * unit, offsets[axis] * unit

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], y = top[0]
        with nogil:
            copy_box(on, self.axes, self.size, self.whole, self.offset, False, y.mutable_data_on(on), <void*> x.data_on(on))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        (<Blob> bottom[0]).fill_diff_on(on, 0)
        cdef Blob y = top[0], x = bottom[0]
        with nogil:
            copy_box(on, self.axes, self.size, self.whole, self.offset, True, <void*> y.diff_on(on), x.mutable_diff_on(on))
