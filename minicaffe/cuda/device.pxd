from cuda.bindings cimport cydriver

from minicaffe.device.context cimport CudaStream


cdef class Device:
    cdef readonly int index
    cdef readonly str name
    cdef readonly tuple capability          # (9, 0) for sm_90
    cdef readonly int multiprocessors
    cdef cydriver.CUcontext context
    cdef CudaStream stream                  # the computing stream
    cdef readonly Stream copies             # the copy stream, concurrent with it
    cdef object failure                     # the exception behind stream.failed
    cdef list modules
    cdef list idle_streams                  # handles without a Stream now
    cdef object timers                      # threading.local: `marks`, the two Events between which a thread's launches are timed
    cdef int streams_made                   # number of handles
    cdef dict peers                         # index of another device -> 1 if kernels here may use its memory, else 0
    cdef object held                        # deque of (event, owners ...): foreign memory that copies before the event use
    cdef list guests                        # devices that have used memory of this one since its own stream waited for them
    cdef int activate(self) except -1
    cdef int give_back(self) except -1
    cdef int wait_for_guests(self) except -1


cdef class Stream:
    cdef readonly Device device
    cdef cydriver.CUstream handle
    cdef bint owned


cdef class Event:
    cdef readonly Device device
    cdef cydriver.CUevent handle


cpdef Device get_device(int index)
cpdef Stream computing(Device device)
cdef int follow(Stream line, Device other) except -1
cdef int follow_all(Stream line, Device other) except -1
cdef int borrow(Device user, Device owner, str name) except -1
cdef int raise_failure(CudaStream* stream) except -1
