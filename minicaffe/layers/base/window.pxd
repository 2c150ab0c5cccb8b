from minicaffe.blob cimport Blob
from minicaffe.layers.base.operation cimport OperationLayer
from minicaffe.ops.conv.operation cimport Window


cdef class WindowLayer(OperationLayer):
    cdef Window window              # sizes for the operation; `in_` of the image, `out` of the columns (number of positions)
    cdef readonly int channel_axis  # axes before it are images, axes behind it spatial
    cdef int axes                   # number of spatial axes
    cdef long long channels, images  # of the bottoms; images: product of the axes before the channels
    cdef readonly list kernel, stride, pad, dilation  # one number a spatial axis
    cdef int read_window(self, Blob bottom) except -1
    cdef int check_bottoms(self, list bottom) except -1
    cdef int set_window(self, image_sizes, column_sizes) except -1
    cdef list convolved(self, sizes)
    cdef list deconvolved(self, sizes)
    cdef object checked_size(self, out, i, size, why)
