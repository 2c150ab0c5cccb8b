from minicaffe.memory.allocator cimport Allocator
from minicaffe.memory.buffer cimport Buffer
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.provider cimport DeviceSide
from minicaffe.memory.states cimport SyncedHead

cdef extern from "Python.h":
    ctypedef struct PyObject
    Py_ssize_t Py_REFCNT(PyObject* o)


cdef class SyncedMemory:
    cdef readonly size_t size       # bytes
    cdef readonly SyncedHead head
    cdef object _place              # of the device side; None until there is one
    cdef int gpu                    # its number; -1 until there is a device side
    cdef readonly size_t copies
    cdef readonly size_t bytes_copied
    cdef readonly size_t reorders
    cdef Buffer host                # the plain sides: of `size` bytes, or None; `head` says which sides are valid
    cdef Buffer device
    cdef Buffer private_side        # in `private_layout`, on the host or the device as `private_layout.on_device`; or None
    cdef Layout private_layout      # None: there is no private side
    cdef DeviceSide side            # None until the first GPU call
    cdef public Allocator pool      # allocates the host's blocks; None: that of the place
    cdef public bint skip_zero_fill     # the first write covers all of it, so that new blocks need no zeros
    cdef bint zero_claimed          # `claim_lazy_zeros` was called since the last `mark_zero`: zeros on a device may wait for it
    cdef str _name                  # such as ``conv1 data``
    # Caffe's four calls; those of the same names without `_ptr` return the side as a Buffer.
    cdef const void* cpu_data_ptr(self) except? NULL nogil
    cdef void* mutable_cpu_data_ptr(self) except? NULL nogil
    cdef const void* gpu_data_ptr(self) except? NULL nogil
    cdef void* mutable_gpu_data_ptr(self) except? NULL nogil
    # The same for the private side; call `publish_private` after writing to a mutable one.
    cdef const void* private_data_ptr(self, Layout layout) except? NULL nogil
    cdef void* mutable_private_data_ptr(self, Layout layout) except? NULL nogil
    cdef void* overwrite_private_data_ptr(self, Layout layout) except? NULL nogil
    cpdef int publish_private(self) except -1
    cpdef int drop_plain(self) except -1
    cdef int free_private(self) except -1
    cdef int free_scaled(self) except -1
    cpdef bint recycle(self) except -1
    cpdef renew(self)
    cpdef Layout layout(self)
    cdef bint has_external_view(self) noexcept
    cdef Buffer plain_side(self)
    cdef void set_plain_side(self, Buffer block, bint on_device) noexcept
    cdef bint plain_has_view(self) noexcept
    cdef Buffer private_block_on_device(self)
    cdef int prepare_private(self, int call, Layout layout) except -1 with gil
    cdef int change_layout(self, int call, Layout layout) except -1
    cpdef Buffer cpu_data(self)
    cpdef Buffer mutable_cpu_data(self)
    cpdef Buffer gpu_data(self)
    cpdef Buffer mutable_gpu_data(self)
    cdef int use_on_device(self, int call) except -1 with gil
    cdef int execute_locked(self, int call, argument) except -1 with gil
    cdef int set_head(self, SyncedHead head, str why) except -1
    cdef int execute(self, int call, argument) except -1
    cdef Buffer block_for(self, int action)
    cdef int count_copy(self, Buffer target, size_t nbytes, str direction, long long began) except -1
    cdef int count_reorder(self, Buffer target, str direction, long long began) except -1
    cdef Buffer new_private(self, Layout layout)
    cdef Buffer new_block(self, place, size_t nbytes)
    cdef int clear_private(self, Buffer block, Layout layout, bint whole) except -1
    cdef int fill_zeros(self, Buffer block, size_t nbytes) except -1
    cdef bint ready(self, int call, Layout layout) noexcept nogil
    cdef int make_plain_only(self, str why) except -1
    cdef int init_device_side(self) except -1
    cdef config_error(self, str call, str message)


cdef bint is_shared(PyObject* block) noexcept
