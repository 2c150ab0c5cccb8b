from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive

cdef extern from "minicaffe/ops/activation/cudnn.hpp" namespace "mc::cuda":
    enum Function "mc::cuda::CudnnActivation":
        SIGMOID "mc::cuda::kSigmoid"
        RELU "mc::cuda::kRelu"
        TANH "mc::cuda::kTanh"


cdef class Activation(Operation):
    cdef Function function
    cdef double slope              # of ReLU, below 0
    cdef int forward(self, const Context& on, Blob x, Blob y) except -1
    cdef int backward(self, const Context& on, Blob x, Blob y) except -1


cdef class ActivationPrimitive(Primitive):
    cdef int forward(self, const Context& on, Activation op, Blob x, Blob y) except -1
    cdef int backward(self, const Context& on, Activation op, Blob x, Blob y) except -1
