from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive


cdef class InnerProduct(Operation):
    cdef long long m, n, k
    cdef bint transpose
    cdef int forward(self, const Context& on, Blob x, Blob weight, Blob bias, Blob y) except -1
    cdef int backward_data(self, const Context& on, Blob y, Blob weight, Blob x) except -1
    cdef int backward_weights(self, const Context& on, Blob x, Blob y, Blob weight) except -1
    cdef int backward_bias(self, const Context& on, Blob y, Blob bias) except -1


cdef class InnerProductPrimitive(Primitive):
    cdef int forward(self, const Context& on, InnerProduct op, Blob x, Blob weight, Blob bias, Blob y) except -1
    cdef int backward_data(self, const Context& on, InnerProduct op, Blob y, Blob weight, Blob x) except -1
    cdef int backward_weights(self, const Context& on, InnerProduct op, Blob x, Blob y, Blob weight) except -1
    cdef int backward_bias(self, const Context& on, InnerProduct op, Blob y, Blob bias) except -1
