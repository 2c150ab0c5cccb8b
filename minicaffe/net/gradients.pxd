from minicaffe.net.schedule cimport Schedule
from minicaffe.net.step cimport FusedStep


cdef class GradientReports:
    cdef object on_gradients
    cdef list params
    cdef Schedule schedule
    cdef bint stream_large
    cdef list complete              # parameters, by number, whose complete gradients wait for others
    cdef long long elements         # of these gradients
    cdef int add(self, list numbers, bint last=*) except -1
    cdef bint can_stream(self, FusedStep step) except -1
    cdef list stream(self, FusedStep step)


cdef int clear_gradients(list params) except -1
