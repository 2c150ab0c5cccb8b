"""Convolution (Caffe conv_layer.cpp)."""

from minicaffe.layers.base.window cimport Blob, WindowLayer
from minicaffe.ops.conv.operation cimport Convolution

from minicaffe.errors import ConfigError, ShapeError, located
from minicaffe.layers.base.checks import check_size


cdef class ConvolutionLayer(WindowLayer):
    """``top[o] = bias[o] + sum over c, u of weight[o, c, u] bottom[c, i stride - pad + u dilation]``.

    Each bottom (images..., channels, spatial...) is convolved with the same weights, (num_output, channels / group, kernel...).
    """

    min_bottom_blobs = 1
    min_top_blobs = 1
    equal_num_bottom_top_blobs = True
    backward_reads_tops = False
    transposed = False  # a deconvolution's is True: the top is the image

    cdef bint bias_term
    cdef readonly long long num_output, group   # channels of the top; groups of channels that are convolved separately

    cpdef layer_setup(self, list bottom, list top):
        cdef Convolution op = Convolution(self.dtype, self.param.convolution_param.engine)
        param = self.param.convolution_param
        self.read_window(bottom[0])
        if not self.channels:
            raise ShapeError(f"has no channels, its shape is {list(bottom[0].shape)}; a convolution needs at least 1",
                             field="bottom[0]")
        self.num_output, self.group, self.bias_term = param.num_output, param.group, param.bias_term
        self.op, op.transposed, op.learned = op, self.transposed, self.learns_weights()
        for name in ("num_output", "group"):
            check_size(getattr(param, name), f"convolution_param.{name}")
        for what, number in (("channels", self.channels), ("num_output", self.num_output)):
            if number % self.group:
                raise ConfigError(f"must divide the {number} {what}, got {self.group}", field="convolution_param.group")
        self.output_sizes(bottom[0])  # before memory is taken for the weights
        outer, inner = (self.channels, self.num_output) if self.transposed else (self.num_output, self.channels)
        with located(field="convolution_param"):
            self.add_param((outer, inner // self.group, *self.kernel), param.weight_filler, "convolution_param.weight_filler")
            if self.bias_term:
                self.add_param((self.num_output,), param.bias_filler, "convolution_param.bias_filler")

    def multiply_adds(self, bottom, top):       # for `Layer.flops`
        columns = bottom if self.transposed else top    # each weight is used once for each pixel of a plane of these
        return sum(self.blobs[0].count // self.blobs[0].shape[0] * blob.count for blob in columns)

    cdef list output_sizes(self, Blob bottom):
        """Return the spatial sizes of the top; raise ShapeError if the kernel does not fit."""
        sizes = bottom.shape[self.channel_axis + 1:]
        return self.deconvolved(sizes) if self.transposed else self.convolved(sizes)

    cpdef reshape(self, list bottom, list top):
        self.check_bottoms(bottom)
        cdef Blob first = bottom[0]
        cdef Convolution op = self.op
        inputs, outputs = list(first.shape[self.channel_axis + 1:]), self.output_sizes(first)
        for blob in top:
            blob.reshape_to((*first.shape[:self.channel_axis], self.num_output, *outputs))
        if op.transposed:
            self.set_window(outputs, inputs)
            op.shape.set(self.images, self.num_output, self.channels, self.group, self.window)      # the top is the image
        else:
            self.set_window(inputs, outputs)
            op.shape.set(self.images, self.channels, self.num_output, self.group, self.window)
        op.changed()    # engines are chosen again
