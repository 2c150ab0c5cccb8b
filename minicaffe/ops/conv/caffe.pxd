from minicaffe.device.context cimport Context
from minicaffe.ops.conv.operation cimport Window

cdef extern from "minicaffe/ops/conv/caffe.hpp" namespace "mc" nogil:
    void im2col(const Context&, int dtype, long long channels, const Window& window, const void* image, void* column)
    void col2im(const Context&, int dtype, long long channels, const Window& window, const void* column, void* image)
