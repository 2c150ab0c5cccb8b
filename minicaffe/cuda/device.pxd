from cuda.bindings cimport cydriver

from minicaffe.device.context cimport CudaStream


cdef class Device:
    cdef readonly int index
    cdef readonly str name
    cdef readonly tuple capability          # (9, 0) for sm_90
    cdef readonly int multiprocessors
    cdef cydriver.CUcontext context
    cdef CudaStream stream                  # the computing stream, with all that a launch from C++ needs (device/stream.hpp)
    cdef readonly Stream copies             # the copy stream, concurrent with it
    cdef object failure                     # the exception behind stream.failed
    cdef bint recording_by_hand             # the last argument of record_launches
    cdef int launch_recorders               # calls of add_launch_recorder less those of remove_launch_recorder
    cdef list modules                       # CUmodules (int), unloaded at exit
    cdef list free_stream_handles           # handles (int) whose Stream was deallocated, for the next Stream
    cdef object timers                      # threading.local: `marks`, the two Events between which a thread's launches are timed
    cdef int streams_created                # number of handles, used and free
    cdef dict peers                         # index of another device -> 1 if kernels here may use its memory, else 0
    cdef object pending_owners              # deque of (event, owners ...): foreign memory that copies before the event use
    cdef list peer_users                    # devices that have used memory of this one since its own stream waited for them
    cdef int activate(self) except -1
    cdef int free_resources(self) except -1


cdef class Stream:
    cdef readonly Device device
    cdef cydriver.CUstream handle
    cdef bint owned                         # False: the handle is that of `device.stream`


cdef class Event:
    cdef readonly Device device
    cdef cydriver.CUevent handle


cpdef Device get_device(index)
cpdef Stream computing(Device device)
cdef int raise_failure(CudaStream* stream) except -1
