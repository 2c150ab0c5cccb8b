from minicaffe.net.schedule cimport Schedule
from minicaffe.net.step cimport FusedStep


cdef class GradientReports:
    cdef object on_gradients
    cdef list params                # the learnable parameters
    cdef Schedule schedule          # of the backward
    cdef bint stream_large          # pass on a large gradient part by part, and small ones together
    cdef list complete              # parameters, by number, whose complete gradients wait for others
    cdef long long elements         # of these gradients
    cdef int add(self, list numbers, bint last=*) except -1
    cdef list run_backward(self, FusedStep step)


cdef int clear_gradients(list params) except -1
