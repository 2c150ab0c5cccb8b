"""Crop: a box cut out of a blob (Caffe crop_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.kernels.types cimport BF16, FLOAT, item_size
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.layouts cimport data_layout, element, of_images, of_mode
from minicaffe.ops.strips.caffe cimport copy_box

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.checks import axis_of

cdef extern from "minicaffe/device/typed.hpp" namespace "mc" nogil:
    void fill_typed(const Context&, int dtype, long long n, double value, void* y)


cdef class CropLayer(DeviceLayer):
    """Cut bottom[0] to the size of bottom[1] from ``axis`` on, starting at ``offset``; bottom[1]'s values do not count."""

    exact_num_bottom_blobs = 2
    flops_per_value = 0, 0
    exact_num_top_blobs = 1
    refuses_in_place = True

    cdef int axes
    cdef long long[32] size, whole, offset   # of the box and the bottom
    cdef Layout layout      # of the bottom in the last forward

    cpdef reshape(self, list bottom, list top):
        cdef Blob x = bottom[0], reference = bottom[1], y = top[0]
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

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], y = top[0]
        cdef Layout layout = of_images(data_layout(on, bottom[:1], True), x)
        if layout is not None and layout.dtype == BF16 and (self.size[1] | self.whole[1] | self.offset[1]) % 2:
            layout = None       # boxes are copied by words of 4 bytes
        cdef Layout cropped = layout.with_shape(y.shape) if layout is not None else None
        self.layout = layout if cropped is not None else None
        self.copy(on, False, element(self.layout, x), <void*> x.data_in_layout(on, self.layout),
                  y.overwrite_data_in_layout(on, cropped))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        cdef Blob x = bottom[0], y = top[0]
        self.layout = of_mode(on, self.layout)
        cdef const void* dy = y.diff_in_layout(on, self.layout.with_shape(y.shape) if self.layout is not None else None)
        cdef void* dx
        if self.layout is None:
            x.fill_diff_on(on, 0)
            dx = x.mutable_diff_on(on)
        else:
            dx = x.overwrite_diff_in_layout(on, self.layout)
            fill_typed(on, FLOAT, self.layout.nbytes // item_size(FLOAT), 0, dx)
        self.copy(on, True, element(self.layout, x), dx, <void*> dy)

    cdef int copy(self, const Context& on, bint back, int dtype, void* array, void* box) except -1:
        """Copy the box out of the array of `dtype`, or `back` into it, both in the layout of the last forward."""
        cdef long long[32] size, whole, offset
        cdef long long unit
        cdef int i, axis
        for i in range(self.axes):
            axis, unit = i, 1
            if self.layout is not None and i:       # axis 1 is the last
                axis = i + 1 if i < self.axes - 1 else 1
            if i == self.axes - 1:                  # in bytes
                unit = item_size(dtype)
            size[i], whole[i], offset[i] = self.size[axis] * unit, self.whole[axis] * unit, self.offset[axis] * unit
        with nogil:
            copy_box(on, self.axes, size, whole, offset, back, box, array)
