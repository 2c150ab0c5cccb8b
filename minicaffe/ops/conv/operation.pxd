from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive

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
        Window window
        void set(long long images, long long channels, long long outputs, long long groups, const Window& window) except +


cdef class Convolution(Operation):
    cdef ConvShape shape
    cdef bint transposed           # a deconvolution: the image is its top
    cdef long long images, outputs, plane   # of the top
    cdef int describe_shape(self, long long images, long long channels, long long outputs, long long groups, const Window& window,
                            long long plane) except -1
    cdef int forward(self, const Context& on, Blob x, Blob weight, Blob bias, Blob y) except -1
    cdef int backward_data(self, const Context& on, Blob y, Blob weight, Blob x) except -1
    cdef int backward_params(self, const Context& on, Blob x, Blob y, Blob weight, Blob bias) except -1


cdef class ConvolutionPrimitive(Primitive):
    cdef int forward(self, const Context& on, Convolution op, Blob x, Blob weight, Blob bias, Blob y) except -1
    cdef int backward_data(self, const Context& on, Convolution op, Blob y, Blob weight, Blob x) except -1
    cdef int backward_params(self, const Context& on, Convolution op, Blob x, Blob y, Blob weight, Blob bias) except -1
    cdef int backward_weights(self, const Context& on, Convolution op, Blob x, Blob y, Blob weight) except -1
    cdef int backward_bias(self, const Context& on, Convolution op, Blob y, Blob bias) except -1
