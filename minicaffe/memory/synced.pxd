from minicaffe.memory.buffer cimport Buffer


cpdef enum SyncedHead:
    UNINITIALIZED = 0
    HEAD_AT_CPU
    HEAD_AT_GPU
    SYNCED


cdef class DeviceSide:
    cdef readonly object place
    cpdef copy_to_device(self, size_t dst, size_t src, size_t nbytes)
    cpdef copy_to_host(self, size_t dst, size_t src, size_t nbytes)
    cpdef zero(self, size_t dst, size_t nbytes)
    cpdef copy_within(self, size_t dst, size_t src, size_t nbytes)
    cpdef copy_from_peer(self, Buffer dst, Buffer src, size_t nbytes, DeviceSide source)
    cpdef push(self, Buffer dst, Buffer src, size_t nbytes, stream, bint fresh)
    cpdef int device_of(self, size_t address) except? -1
    cpdef admit(self, str name, Buffer block)


cdef class SyncedMemory:
    cdef readonly size_t size       # bytes
    cdef readonly SyncedHead head
    cdef object _place              # of the device side; None until there is one
    cdef int gpu                    # its number; -1 until there is a device side
    cdef readonly size_t copies
    cdef readonly size_t bytes_copied
    cdef Buffer host
    cdef Buffer device
    cdef DeviceSide side            # None until the first GPU call
    cdef str _name
    # Caffe's four calls; those of the same names without `_ptr` give the side as a Buffer.
    cdef const void* cpu_data_ptr(self) except? NULL
    cdef void* mutable_cpu_data_ptr(self) except? NULL
    cdef const void* gpu_data_ptr(self) except? NULL
    cdef void* mutable_gpu_data_ptr(self) except? NULL
    cpdef Buffer cpu_data(self)
    cpdef Buffer mutable_cpu_data(self)
    cpdef Buffer gpu_data(self)
    cpdef Buffer mutable_gpu_data(self)
    cpdef set_cpu_data(self, source)
    cpdef set_cpu_copy(self, source)
    cdef Buffer wrapped(self, source, str call)
    cpdef set_gpu_data(self, size_t address, owner=*)
    cpdef async_gpu_push(self, stream)
    cpdef copy_on_device(self, SyncedMemory source, size_t nbytes)
    cdef int use_on_device(self, int call) except -1
    cdef int act(self, int call, argument) except -1
    cdef int carry_out(self, int call, argument) except -1
    cdef Buffer block_for(self, int action)
    cdef int count_copy(self, Buffer target, size_t nbytes, str direction) except -1
    cdef Buffer new_host(self)
    cdef Buffer new_device(self)
    cdef int find_side(self) except -1
    cdef wrong(self, str call, str message)
