from cuda.bindings cimport cydriver

from minicaffe.ops.context cimport CudaStream


cdef class Device:
    cdef readonly int index
    cdef readonly str name
    cdef readonly tuple capability          # (9, 0) for sm_90
    cdef readonly int multiprocessors
    cdef cydriver.CUcontext context
    cdef CudaStream stream                  # of all computing
    cdef readonly Stream copies             # of copies beside it
    cdef object failure                     # the exception behind stream.failed
    cdef list modules
    cdef dict peers                         # device -> whether its memory can be reached
    cdef int activate(self) except -1


cdef class Stream:
    cdef readonly Device device
    cdef cydriver.CUstream handle
    cdef bint owned


cdef class Event:
    cdef readonly Device device
    cdef cydriver.CUevent handle


cpdef Device get_device(int index)
cdef int raise_failure(CudaStream* stream) except -1
