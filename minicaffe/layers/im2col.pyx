"""Im2col: the column matrix of a convolution (Caffe im2col_layer.cpp)."""

import math

from minicaffe.device.context cimport Context
from minicaffe.layers.base.window cimport Blob, WindowLayer
from minicaffe.ops.conv.operation cimport Window

from minicaffe.errors import ConfigError

cdef extern from "minicaffe/ops/conv/caffe.hpp" namespace "mc" nogil:
    void im2col "MC_TYPED(mc::im2col)"(int dtype, const Context&, long long channels, const Window& window, const void* image,
                                       void* column)
    void col2im "MC_TYPED(mc::col2im)"(int dtype, const Context&, long long channels, const Window& window, const void* column,
                                       void* image)


cdef class Im2colLayer(WindowLayer):
    """Channel ``c taps + u`` of the top is what kernel element u reads of channel c. A pixel's gradient is the sum of theirs."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
    backward_reads_bottoms = backward_reads_tops = False

    cpdef layer_setup(self, list bottom, list top):
        self.read_window(bottom[0])
        if not self.axes:
            raise ConfigError(f"needs a spatial axis behind it, the bottom has shape {list(bottom[0].shape)}",
                              field="convolution_param.axis")

    cpdef reshape(self, list bottom, list top):
        self.check_bottoms(bottom)
        shape = bottom[0].shape
        sizes = shape[self.channel_axis + 1:]
        outputs = self.convolved(sizes)     # numbers of window positions
        self.set_window(sizes, outputs)
        top[0].reshape_to((*shape[:self.channel_axis], self.channels * math.prod(self.kernel), *outputs))

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0], y = top[0]
        with nogil:
            im2col(self.dtype, on, self.images * self.channels, self.window, x.data_on(on), y.mutable_data_on(on))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob y = top[0], x = bottom[0]
        with nogil:
            col2im(self.dtype, on, self.images * self.channels, self.window, y.diff_on(on), x.mutable_diff_on(on))
