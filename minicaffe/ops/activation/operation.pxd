from minicaffe.ops.engine cimport Operation

cdef extern from "minicaffe/ops/activation/cudnn.hpp" namespace "mc::cuda":
    cpdef enum Function "mc::cuda::CudnnActivation":
        SIGMOID "mc::cuda::kSigmoid"
        RELU "mc::cuda::kRelu"
        TANH "mc::cuda::kTanh"


cdef class Activation(Operation):
    cdef public Function function
    cdef public double slope              # of ReLU, below 0
