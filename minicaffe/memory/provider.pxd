from minicaffe.memory.buffer cimport Buffer


cdef class DeviceSide:
    cdef readonly object place
    cpdef copy_to_device(self, size_t dst, size_t src, size_t nbytes)
    cpdef copy_to_host(self, size_t dst, size_t src, size_t nbytes)
    cpdef zero(self, size_t dst, size_t nbytes)
    cpdef copy_within(self, size_t dst, size_t src, size_t nbytes)
    cpdef copy_from_peer(self, Buffer dst, Buffer src, size_t nbytes, DeviceSide source)
    cpdef push(self, Buffer dst, Buffer src, size_t nbytes, stream, bint fresh)
    cpdef int device_of(self, size_t address) except? -1
    cpdef size_t stream(self) except 0
    cpdef check_peer_access(self, str name, Buffer block)


cdef class StreamOrder:
    cpdef size_t current(self) except? -1
    cpdef record(self, size_t stream)
    cpdef bint done(self, event) except -1
    cpdef wait(self, event)
