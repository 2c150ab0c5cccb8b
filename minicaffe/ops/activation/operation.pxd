from minicaffe.engines.engine cimport Blob, Operation

cdef extern from "minicaffe/ops/activation/plain.hpp" namespace "mc":
    cpdef enum Function:
        ABS "mc::kAbs"
        BNLL "mc::kBnll"
        CLIP "mc::kClip"
        ELU "mc::kElu"
        EXP "mc::kExp"
        LOG "mc::kLog"
        POWER "mc::kPower"
        RELU "mc::kRelu"
        RELU_X "mc::kReluX"
        SIGMOID "mc::kSigmoid"
        SWISH "mc::kSwish"
        TANH "mc::kTanh"
        THRESHOLD "mc::kThreshold"


cdef class Activation(Operation):
    cdef readonly Function function
    cdef readonly bint reads_x, reads_y     # whether the gradient reads bottom data, top data
    cdef double[3] params                   # in the order of the members of the function's functor (kernel.hpp)
    cdef Blob saved_bottom                  # for the next backward: the values of a bottom that forward overwrote, or None
