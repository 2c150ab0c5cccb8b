"""Interface of a provider of device memory, besides its allocator (memory/registry.py; cuda/memory.pyx is the only provider).

Addresses are integers, sizes bytes. Streams are numbers here (the driver's handles) and events any objects.
"""

from minicaffe.memory.buffer cimport Buffer

from minicaffe.errors import Error


cdef class DeviceSide:
    """Copies on one device's computing stream, for SyncedMemory (abstract). Those to and from the host are complete on return."""

    def __init__(self, place):
        self.place = place

    cpdef copy_to_device(self, size_t dst, size_t src, size_t nbytes):
        """Copy `nbytes` from host address `src` to device address `dst`."""
        raise Error(f"{type(self).__name__} must override copy_to_device")

    cpdef copy_to_host(self, size_t dst, size_t src, size_t nbytes):
        """Copy `nbytes` from device address `src` to host address `dst`."""
        raise Error(f"{type(self).__name__} must override copy_to_host")

    cpdef zero(self, size_t dst, size_t nbytes):
        """Fill `nbytes` at device address `dst` with zeros."""
        raise Error(f"{type(self).__name__} must override zero")

    cpdef copy_within(self, size_t dst, size_t src, size_t nbytes):
        """Copy `nbytes` from one address of this device to another."""
        raise Error(f"{type(self).__name__} must override copy_within")

    cpdef copy_from_peer(self, Buffer dst, Buffer src, size_t nbytes, DeviceSide source):
        """As `copy_within`, from a block of another device, whose side is `source`."""
        raise Error(f"{type(self).__name__} must override copy_from_peer")

    cpdef push(self, Buffer dst, Buffer src, size_t nbytes, stream, bint fresh):
        """Queue a copy on a cuda.Stream, between blocks of which one is on this device; neither is reused before it is done.

        With `fresh` the copy waits for the device's queued work: its last owner may still use a newly allocated block there.
        """
        raise Error(f"{type(self).__name__} must override push")

    cpdef int device_of(self, size_t address) except? -1:
        """Return the number of the GPU on which `address` is; -1 if unknown (the default), or if all GPUs can use it."""
        return -1

    cpdef size_t stream(self) except 0:
        """Return the address of the computing `CudaStream`, ready for launches by this thread, such as those of a Layout."""
        raise Error(f"{type(self).__name__} must override stream")

    cpdef check_peer_access(self, str name, Buffer block):
        """Raise WrongDeviceError if the current GPU may not use memory of this one; otherwise synchronize their streams.

        `name` is that of the memory, `block` the memory, None if it is not allocated yet. The default allows all.
        """


cdef class StreamOrder:
    """Streams and events of one device (abstract), for allocators that keep blocks (memory/streams.pyx)."""

    cpdef size_t current(self) except? -1:
        """Return the stream that new work of this thread goes to."""
        raise Error(f"{type(self).__name__} must override current")

    cpdef record(self, size_t stream):
        """Return an event that is done when all work now queued on `stream` is done."""
        raise Error(f"{type(self).__name__} must override record")

    cpdef bint done(self, event) except -1:
        """Return whether `event` is done, without waiting."""
        raise Error(f"{type(self).__name__} must override done")

    cpdef wait(self, event):
        """Block the host until `event` is done."""
        raise Error(f"{type(self).__name__} must override wait")
