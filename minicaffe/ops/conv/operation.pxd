from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.engines.engine cimport Operation
from minicaffe.loops.lanes.caffe cimport Channels

cdef extern from "minicaffe/ops/conv/shape.hpp" namespace "mc" nogil:
    cppclass Window:
        int num_axes
        int* in_ "in"
        int* kernel
        int* stride
        int* pad
        int* dilation
        int* out
    cppclass ConvShape:
        long long images, channels, outputs, groups, group_channels     # channels of the image, outputs: those of the columns
        long long pixels, positions     # of a plane of the image, and of the columns
        Window window
        void set(long long images, long long channels, long long outputs, long long groups, const Window& window) except +


cdef class Convolution(Operation):
    cdef ConvShape shape
    cdef bint transposed           # a deconvolution: the image is its top
    cdef bint learned              # the weights change from step to step
    cdef Channels top(self)
    cdef bint fuses(self, const Context& on, Blob bottom, Blob top) except -1

cdef int backward_bias(const Context& on, Convolution op, Blob top, Blob bias, Layout layout=*) except -1
