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
    cdef bint recording_by_hand             # what record_launches was last called with
    cdef int launch_recorders               # between add_launch_recorder and remove_launch_recorder
    cdef list modules
    cdef list free_stream_handles                  # handles without a Stream now
    cdef object timers                      # threading.local: `marks`, the two Events between which a thread's launches are timed
    cdef int streams_created                   # number of handles
    cdef dict peers                         # index of another device -> 1 if kernels here may use its memory, else 0
    cdef object pending_owners              # deque of (event, owners ...): foreign memory that copies before the event use
    cdef list peer_users                        # devices that have used memory of this one since its own stream waited for them
    cdef int activate(self) except -1
    cdef int free_resources(self) except -1


cdef class Stream:
    cdef readonly Device device
    cdef cydriver.CUstream handle
    cdef bint owned


cdef class Event:
    cdef readonly Device device
    cdef cydriver.CUevent handle


cpdef Device get_device(index)
cpdef Stream computing(Device device)
cdef int raise_failure(CudaStream* stream) except -1
