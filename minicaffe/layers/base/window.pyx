"""The base of Convolution, Deconvolution and Im2col: a window that slides over an image (Caffe base_conv_layer.cpp).

A window has any number of axes, also none. `force_nd_im2col` chooses between code paths of Caffe that give the same numbers; it
changes nothing.
"""

from minicaffe.blob cimport Blob
from minicaffe.layers.base.operation cimport OperationLayer

from minicaffe.errors import ConfigError, ShapeError
from minicaffe.layers.base.checks import axis_of, check_size


cdef class WindowLayer(OperationLayer):
    """The fields of ConvolutionParameter that describe the window, and its sizes."""

    refuses_in_place = True

    cdef int read_window(self, Blob bottom) except -1:
        """Read axis, kernel, stride, pad and dilation.

        Raises ConfigError or ShapeError for a wrong axis; for a list that is neither 1 long nor one for each spatial axis; for
        sizes out of range.
        """
        param = self.param.convolution_param
        self.channel_axis = axis_of(bottom, param.axis, "convolution_param.axis")
        self.axes = bottom.num_axes - self.channel_axis - 1
        self.channels = bottom.dim(self.channel_axis)
        self.kernel = _per_axis(param, "kernel_size", "kernel", self.axes, None, 1)
        self.stride = _per_axis(param, "stride", "stride", self.axes, 1, 1)
        self.pad = _per_axis(param, "pad", "pad", self.axes, 0, 0)
        self.dilation = _per_axis(param, "dilation", None, self.axes, 1, 1)

    cdef int check_bottoms(self, list bottom) except -1:
        """Raise if a bottom differs from the first or from what layer_setup saw; count the images."""
        cdef Blob first = bottom[0]
        if first.num_axes != self.channel_axis + 1 + self.axes or first.dims[self.channel_axis] != self.channels:
            raise ShapeError(f"has shape {list(first.shape)}; the layer was set up for {self.channel_axis + 1 + self.axes} "
                             f"axes and {self.channels} channels at axis {self.channel_axis}", field="bottom[0]")
        for i in range(len(bottom)):
            if not (<Blob> bottom[i]).same_shape(first):
                raise ShapeError(f"has shape {list(bottom[i].shape)}, all must be like bottom[0], {list(first.shape)}",
                                 field=f"bottom[{i}]")
        self.images = first.count_range(0, self.channel_axis)

    cdef int set_window(self, image_sizes, column_sizes) except -1:
        """Fill in `window` for the operation: sizes of the image, and numbers of window positions, the columns, on each axis."""
        cdef int i
        self.window.num_axes = self.axes
        for i in range(self.axes):
            self.window.in_[i], self.window.out[i] = image_sizes[i], column_sizes[i]
            self.window.kernel[i], self.window.stride[i] = self.kernel[i], self.stride[i]
            self.window.pad[i], self.window.dilation[i] = self.pad[i], self.dilation[i]

    cdef list convolved(self, sizes):
        """Return the sizes of the columns: ``(in + 2 pad - dilation (kernel - 1) - 1) / stride + 1``. The division truncates
        towards 0, so an input too small by less than one stride gives size 1.
        """
        result = []
        for i, size in enumerate(sizes):
            extent = self.dilation[i] * (self.kernel[i] - 1) + 1
            room = size + 2 * self.pad[i] - extent
            out = (room // self.stride[i] if room >= 0 else -(-room // self.stride[i])) + 1
            result.append(self.checked_size(out, i, size, f"the window covers {extent} pixels, the padded input has "
                                                          f"{size + 2 * self.pad[i]}"))
        return result

    cdef list deconvolved(self, sizes):
        """Return the sizes of the image of a deconvolution: ``stride (in - 1) + dilation (kernel - 1) + 1 - 2 pad``."""
        return [self.checked_size(self.stride[i] * (size - 1) + self.dilation[i] * (self.kernel[i] - 1) + 1 - 2 * self.pad[i],
                                  i, size, "check stride, kernel_size and pad") for i, size in enumerate(sizes)]

    cdef object checked_size(self, out, i, size, why):
        """Return the size `out` of spatial axis `i`; raise ShapeError with `why` if it is not from 1 to 2^31 - 1."""
        if not 1 <= out < 2**31:
            raise ShapeError(f"the output would have size {out} along spatial axis {i}, where the input has {size}: {why}",
                             field="convolution_param.kernel_size")
        return out


def _per_axis(param, name, short_name, axes, default, least):
    """Return one number for each of `axes` spatial axes, from the list `name` or from <short_name>_h and _w (None: none such).

    Raises ConfigError for a wrong number of values, both forms at once, one of _h and _w without the other, or a value out of
    range.
    """
    field = f"convolution_param.{name}"
    values = list(getattr(param, name))
    pair = [f"{short_name}_{side}" for side in "hw"] if short_name else []
    given = [part for part in pair if param.HasField(part)]
    if given:
        if axes != 2:
            raise ConfigError(f"is only for two spatial axes, the bottom has {axes}; use {name}",
                              field=f"convolution_param.{given[0]}")
        if values:
            raise ConfigError(f"give {name} or {pair[0]} and {pair[1]}, not both", field=field)
        if len(given) == 1 and least:
            missing = pair[1] if given[0] == pair[0] else pair[0]
            raise ConfigError(f"is missing, {given[0]} is given; set both", field=f"convolution_param.{missing}")
        values = [getattr(param, part) for part in pair]
    elif values:
        if len(values) not in (1, axes):
            raise ConfigError(f"give one value or one for each of the {axes} spatial axes, got {len(values)}", field=field)
        values = values * axes if len(values) == 1 else values
    elif default is None and axes:
        raise ConfigError(f"is missing; give {name}, once or for each of the {axes} spatial axes", field=field)
    else:
        values = [default] * axes
    for i, value in enumerate(values):
        check_size(value, f"convolution_param.{pair[i]}" if given else field, least)
    return values
