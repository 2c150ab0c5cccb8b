from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive


cdef class Softmax(Operation):
    cdef long long outer, channels, inner
    cdef int see(self, Blob x, int axis) except -1
    cdef int forward(self, const Context& on, Blob x, Blob y) except -1
    cdef int backward(self, const Context& on, Blob y, Blob x) except -1


cdef class SoftmaxPrimitive(Primitive):
    cdef int forward(self, const Context& on, Softmax op, Blob x, Blob y) except -1
    cdef int backward(self, const Context& on, Softmax op, Blob y, Blob x) except -1
