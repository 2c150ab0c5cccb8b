"""Crop: a box cut out of a blob (Caffe crop_layer.cpp)."""

from minicaffe.blob cimport Blob
from minicaffe.kernels.types cimport FLOAT, item_size
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.engines.channels_last cimport find_strides
from minicaffe.engines.layouts cimport data_layout, element, of_images, of_mode
from minicaffe.loops.strided.caffe cimport copy_strided, fill_typed

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.checks import axis_of


cdef class CropLayer(DeviceLayer):
    """Cut bottom[0] to the size of bottom[1] from ``axis`` on, starting at ``offset``; bottom[1]'s values do not count."""

    exact_num_bottom_blobs = 2
    exact_num_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False

    cdef list offsets       # of the box in bottom[0], one for each axis
    cdef Layout layout      # of the bottom in the last forward, channels last on a device; None: plain

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
        self.offsets = [0] * start + (offsets * cropped if len(offsets) == 1 else offsets)
        shape = x.shape[:start] + reference.shape[start:]
        for axis in range(start, x.num_axes):
            if x.shape[axis] < self.offsets[axis] + shape[axis]:
                raise ShapeError(f"offset {self.offsets[axis]} and size {shape[axis]} reach beyond axis {axis} of bottom[0], shape "
                                 f"{list(x.shape)}", field="crop_param.offset")
        y.reshape_to(shape)

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], y = top[0]
        self.layout = of_images(data_layout(on, bottom[:1], True), x)       # that of x if its channels are last, else None
        cdef Layout cropped = self.layout.with_shape(y.shape) if self.layout is not None else None
        if cropped is None:
            self.layout = None
        self.copy(on, False, x, y, <char*> x.data_in_layout(on, self.layout), y.overwrite_data_in_layout(on, cropped))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        cdef Blob x = bottom[0], y = top[0]
        self.layout = of_mode(on, self.layout)      # None if the mode changed since forward
        cdef const void* dy = y.diff_in_layout(on, self.layout.with_shape(y.shape) if self.layout is not None else None)
        cdef void* dx
        if self.layout is None:
            x.fill_diff_on(on, 0)
            dx = x.mutable_diff_on(on)
        else:
            dx = x.overwrite_diff_in_layout(on, self.layout)
            fill_typed(on, FLOAT, self.layout.nbytes // item_size(FLOAT), 0, dx)
        self.copy(on, True, x, y, <char*> dx, <void*> dy)

    cdef int copy(self, const Context& on, bint back, Blob x, Blob y, char* array, void* box) except -1:
        """Copy the box, y, out of `array`, data of x, or if `back`, gradients, into it; both are in `layout`."""
        cdef long long[32] x_strides, y_strides
        cdef int axis, dtype = element(self.layout, x)
        find_strides(self.layout, x, x_strides)     # in elements
        find_strides(self.layout, y, y_strides)
        for axis in range(x.num_axes):
            array += <long long> self.offsets[axis] * x_strides[axis] * item_size(dtype)
        with nogil:
            if back:
                copy_strided(on, dtype, dtype, y.num_axes, y.dims, box, y_strides, array, x_strides)
            else:
                copy_strided(on, dtype, dtype, y.num_axes, y.dims, array, x_strides, box, y_strides)
