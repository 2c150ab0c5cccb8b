from minicaffe.ops.engine cimport Operation

cpdef enum Function:
    SIGMOID, RELU, TANH


cdef class Activation(Operation):
    cdef public Function function
    cdef public double slope              # of ReLU, below 0
