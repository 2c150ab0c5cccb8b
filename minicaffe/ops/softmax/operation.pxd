from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.engines.engine cimport Operation
from minicaffe.loops.lanes.caffe cimport Channels


cdef class Softmax(Operation):
    cdef long long outer, channels, inner
    cpdef int set_shape(self, Blob bottom, int axis) except -1
    cdef Layout find(self, const Context& on, Layout layout, Blob bottom, Channels* found)
