from minicaffe.engines.engine cimport Operation


cdef class InnerProduct(Operation):
    cdef long long m, n, k      # rows (images), outputs, inputs
    cdef bint transpose         # the weights are (k, n), not (n, k)
    cdef bint learned           # the weights change from step to step
