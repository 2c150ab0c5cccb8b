from minicaffe.engines.engine cimport Operation


cdef class InnerProduct(Operation):
    cdef long long m, n, k
    cdef bint transpose
    cdef bint learned           # the weights change from step to step
