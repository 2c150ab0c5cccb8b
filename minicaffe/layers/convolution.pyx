"""Convolution, Deconvolution and Im2col: what slides a window over an image (Caffe base_conv_layer.cpp and its family).

A window has any number of axes, also none. The work is done in ops/conv/caffe.hpp, on a device with engine CUDNN in
ops/conv/cudnn.hpp. `force_nd_im2col` chooses between code paths of Caffe that give the same numbers; it changes nothing.
"""

import math

from minicaffe.blob cimport Blob
from minicaffe.layer cimport DeviceLayer
from minicaffe.device.context cimport Context
from minicaffe.ops.conv.operation cimport Convolution, Window

from minicaffe.errors import ConfigError, Error, ShapeError
from minicaffe.layer import register_layer

cdef extern from "minicaffe/ops/conv/caffe.hpp" namespace "mc" nogil:
    void im2col(const Context&, int dtype, long long channels, const Window& window, const void* image, void* column)
    void col2im(const Context&, int dtype, long long channels, const Window& window, const void* column, void* image)

MAX_INT = 2**31 - 1


cdef class WindowLayer(DeviceLayer):
    """What Convolution, Deconvolution and Im2col have in common: the fields of the window, and its sizes."""

    cdef Window window
    cdef int channel_axis, axes
    cdef long long channels, images
    cdef object kernel, stride, pad, dilation  # one number a spatial axis

    cdef int read_window(self, Blob bottom) except -1:
        """Read axis, kernel, stride, pad and dilation.

        Raises
        ------
        ConfigError, ShapeError
            For a wrong axis; for a list that is neither 1 long nor one for each spatial axis; for sizes out of range.
        """
        param = self.param.convolution_param
        try:
            self.channel_axis = bottom.canonical_axis(param.axis)
        except Error as error:
            raise error.at(field="convolution_param.axis")
        self.axes = bottom.num_axes - self.channel_axis - 1
        self.channels = bottom.dim(self.channel_axis)
        self.kernel = _per_axis(param, "kernel_size", "kernel", self.axes, None, 1)
        self.stride = _per_axis(param, "stride", "stride", self.axes, 1, 1)
        self.pad = _per_axis(param, "pad", "pad", self.axes, 0, 0)
        self.dilation = _per_axis(param, "dilation", None, self.axes, 1, 1)
        return 0

    cdef int check_bottoms(self, list bottom, list top) except -1:
        """Raise if a bottom differs from the first or from what layer_setup saw; count the images."""
        cdef Blob first = bottom[0]
        if first.num_axes != self.channel_axis + 1 + self.axes or first.dims[self.channel_axis] != self.channels:
            raise ShapeError(f"has shape {list(first.shape)}; the layer was set up for {self.channel_axis + 1 + self.axes} "
                             f"axes and {self.channels} channels at axis {self.channel_axis}", field="bottom[0]")
        for i in range(len(bottom)):
            if not (<Blob> bottom[i]).same_shape(first):
                raise ShapeError(f"has shape {list(bottom[i].shape)}, all must be like bottom[0], {list(first.shape)}",
                                 field=f"bottom[{i}]")
            if top[i] is bottom[i]:
                raise ConfigError(f"{self.type} cannot work in place; give the top a name of its own", field=f"top[{i}]")
        self.images = first.count_range(0, self.channel_axis)
        return 0

    cdef int set_window(self, image_sizes, column_sizes) except -1:
        """Fill in the window: the sizes of the image side, and how many positions the window takes there."""
        cdef int i
        self.window.num_axes = self.axes
        for i in range(self.axes):
            self.window.in_[i], self.window.out[i] = image_sizes[i], column_sizes[i]
            self.window.kernel[i], self.window.stride[i] = self.kernel[i], self.stride[i]
            self.window.pad[i], self.window.dilation[i] = self.pad[i], self.dilation[i]
        return 0

    cdef list convolved(self, sizes):
        """Output sizes ``(in + 2 pad - dilation (kernel - 1) - 1) / stride + 1``; the division truncates towards 0, so an input
        too small by less than one stride gives size 1.
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
        """Output sizes ``stride (in - 1) + dilation (kernel - 1) + 1 - 2 pad``."""
        return [self.checked_size(self.stride[i] * (size - 1) + self.dilation[i] * (self.kernel[i] - 1) + 1 - 2 * self.pad[i],
                                  i, size, "check stride, kernel_size and pad") for i, size in enumerate(sizes)]

    cdef object checked_size(self, out, i, size, why):
        if not 1 <= out <= MAX_INT:
            raise ShapeError(f"the output would have size {out} along spatial axis {i}, where the input has {size}: {why}",
                             field="convolution_param.kernel_size")
        return out


cdef class BaseConvolutionLayer(WindowLayer):
    """What Convolution and Deconvolution have in common: all but which side is the image."""

    min_bottom_blobs = 1
    min_top_blobs = 1
    equal_num_bottom_top_blobs = True

    cdef Convolution op
    cdef bint bias_term
    cdef long long num_output, group

    cdef bint reversed(self):
        """Whether this is a deconvolution."""
        return False

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.convolution_param
        self.read_window(bottom[0])
        self.num_output, self.group, self.bias_term = param.num_output, param.group, param.bias_term
        self.op = Convolution(self.dtype, param.engine)
        self.op.transposed = self.reversed()
        for name in ("num_output", "group"):
            if not 1 <= getattr(param, name) <= MAX_INT:
                raise ConfigError(f"must be at least 1, got {getattr(param, name)}" if not getattr(param, name) else
                                  f"must be at most 2^31 - 1, got {getattr(param, name)}", field=f"convolution_param.{name}")
        for what, number in (("channels", self.channels), ("num_output", self.num_output)):
            if number % self.group:
                raise ConfigError(f"must divide the {number} {what}, got {self.group}", field="convolution_param.group")
        self.output_sizes(bottom[0])  # before memory is taken for the weights
        if len(self.param.blobs) not in (0, 1 + self.bias_term):
            raise ConfigError(f"give none or {1 + self.bias_term}, got {len(self.param.blobs)}", field="blobs")
        outer, inner = (self.channels, self.num_output) if self.reversed() else (self.num_output, self.channels)
        try:
            self.add_param((outer, inner // self.group, *self.kernel), param.weight_filler, "convolution_param.weight_filler")
            if self.bias_term:
                self.add_param((self.num_output,), param.bias_filler, "convolution_param.bias_filler")
        except ShapeError as error:
            raise error.at(field="convolution_param")

    cdef list output_sizes(self, Blob bottom):
        """The spatial sizes of the top."""
        sizes = bottom.shape[self.channel_axis + 1:]
        return self.deconvolved(sizes) if self.reversed() else self.convolved(sizes)

    cpdef reshape(self, list bottom, list top):
        self.check_bottoms(bottom, top)
        cdef Blob first = bottom[0]
        inputs, outputs = list(first.shape[self.channel_axis + 1:]), self.output_sizes(first)
        for blob in top:
            blob.reshape_to((*first.shape[:self.channel_axis], self.num_output, *outputs))
        if self.reversed():
            self.set_window(outputs, inputs)
            self.op.describe_shape(self.images, self.num_output, self.channels, self.group, self.window, math.prod(outputs))
        else:
            self.set_window(inputs, outputs)
            self.op.describe_shape(self.images, self.channels, self.num_output, self.group, self.window, math.prod(outputs))

    def operations(self):
        return [self.op]

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef int i
        for i in range(len(bottom)):
            self.op.forward(on, bottom[i], self.blobs[0], self.blobs[1] if self.bias_term else None, top[i])

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef int i
        for i in range(len(top)):
            if self.bias_term and self.learns(1):
                self.op.backward_bias(on, top[i], self.blobs[1])
            if self.learns(0):
                self.op.backward_weights(on, bottom[i], top[i], self.blobs[0])
            if propagate_down[i]:
                self.op.backward_data(on, top[i], self.blobs[0], bottom[i])


cdef class ConvolutionLayer(BaseConvolutionLayer):
    """``top[o] = bias[o] + sum over c, u of weight[o, c, u] bottom[c, i stride - pad + u dilation]`` (Caffe conv_layer.cpp).

    Each bottom (images..., channels, spatial...) is convolved with the same weights, (num_output, channels / group, kernel...).
    """


cdef class DeconvolutionLayer(BaseConvolutionLayer):
    """``top[o, i stride - pad + u dilation] += weight[c, o, u] bottom[c, i]``, plus the bias (Caffe deconv_layer.cpp).

    The weights are (channels, num_output / group, kernel...).
    """

    cdef bint reversed(self):
        return True


cdef class Im2colLayer(WindowLayer):
    """The column matrix of a convolution: channel ``c taps + u`` of the top is what tap u sees of channel c (Caffe
    im2col_layer.cpp). The bottom's gradient is the sum over all that saw a pixel.
    """

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cpdef layer_setup(self, list bottom, list top):
        self.read_window(bottom[0])
        if not self.axes:
            raise ConfigError(f"needs a spatial axis behind it, the bottom has shape {list(bottom[0].shape)}",
                              field="convolution_param.axis")

    cpdef reshape(self, list bottom, list top):
        self.check_bottoms(bottom, top)
        shape = bottom[0].shape
        sizes = shape[self.channel_axis + 1:]
        outputs = self.convolved(sizes)
        self.set_window(sizes, outputs)
        top[0].reshape_to((*shape[:self.channel_axis], self.channels * math.prod(self.kernel), *outputs))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef const void* x = (<Blob> bottom[0]).data_on(on)
        cdef void* y = (<Blob> top[0]).mutable_data_on(on)
        with nogil:
            im2col(on, self.dtype, self.images * self.channels, self.window, x, y)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        cdef const void* y = (<Blob> top[0]).diff_on(on)
        cdef void* x = (<Blob> bottom[0]).mutable_diff_on(on)
        with nogil:
            col2im(on, self.dtype, self.images * self.channels, self.window, y, x)


def _per_axis(param, name, short_name, axes, default, least):
    """Return one number for each of `axes` spatial axes, from the list `name` or from the two fields <short_name>_h and _w.

    Raises
    ------
    ConfigError
        For a wrong number of values, both forms at once, one of _h and _w without the other, or a value out of range.
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
        if not least <= value <= MAX_INT:
            rule = f"at least {least}" if value < least else "at most 2^31 - 1"
            raise ConfigError(f"must be {rule}, got {value}", field=f"convolution_param.{pair[i]}" if given else field)
    return values


register_layer("Convolution", ConvolutionLayer)
register_layer("Deconvolution", DeconvolutionLayer)
register_layer("Im2col", Im2colLayer)
