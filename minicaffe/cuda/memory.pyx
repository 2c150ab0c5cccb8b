"""Memory of CUDA devices and page-locked memory of the host, by the driver; copies between them; streams as allocators see them.

These are the lowest allocators of a CUDAPlace and of PinnedPlace; those of minicaffe/memory are built on them.
"""

import mmap

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from minicaffe.cuda.device cimport Device, Event, Stream, get_device, raise_failure
from minicaffe.cuda.driver cimport check, may_call
from minicaffe.memory.allocator cimport Allocator, out_of_memory
from minicaffe.memory.streams cimport StreamOrder
from minicaffe.memory.synced cimport DeviceSide

from minicaffe.cuda import driver
from minicaffe.cuda.device import selected
from minicaffe.memory.place import CUDAPlace, PinnedPlace
from minicaffe.memory.red_zones import RedZones
from minicaffe.memory.registry import registry
from minicaffe.memory.synced import device_lock


@cython.final
@cython.no_gc_clear     # __dealloc__ of those above may still free
cdef class DriverAllocator(Allocator):
    """Every block from cuMemAlloc (the plain allocator of a CUDAPlace)."""
    cdef Device device

    def __init__(self, place):
        super().__init__(place)
        self.device = get_device(place.device)

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        cdef cydriver.CUdeviceptr address = 0
        self.device.activate()
        code = cydriver.cuMemAlloc(&address, max(nbytes, <size_t> 1))
        if code == cydriver.CUDA_ERROR_OUT_OF_MEMORY:
            raise out_of_memory(self, nbytes, "what the device has")
        check(code, "cuMemAlloc", (nbytes,))
        self.remember(<void*> <uintptr_t> address, nbytes)
        return <void*> <uintptr_t> address

    cdef int free_ptr(self, void* ptr) except -1:
        self.forget(ptr)
        if may_call():
            self.device.activate()
            check(cydriver.cuMemFree(<uintptr_t> ptr), "cuMemFree", (hex(<uintptr_t> ptr),))
        return 0

    def red_zones(self):
        """Give pages that the simulated device keeps closed; a GPU's driver has no such functions, and no zones."""
        poison, unpoison = driver.entry_point("mcsim_poison"), driver.entry_point("mcsim_unpoison")
        return RedZones(mmap.PAGESIZE if poison and unpoison else 0, poison, unpoison)

    def memory_info(self):
        """Return the bytes of device memory that are free, and all there are."""
        return self.device.memory_info()


@cython.final
@cython.no_gc_clear
cdef class PinnedAllocator(Allocator):
    """Page-locked host memory, every block from cuMemHostAlloc."""
    cdef Device device

    def __init__(self, place):
        super().__init__(place)
        self.device = get_device(selected())

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        cdef void* ptr = NULL
        self.device.activate()
        check(cydriver.cuMemHostAlloc(&ptr, max(nbytes, <size_t> 1), cydriver.CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc", (nbytes,))
        self.remember(ptr, nbytes)
        return ptr

    cdef int free_ptr(self, void* ptr) except -1:
        self.forget(ptr)
        if may_call():
            self.device.activate()
            check(cydriver.cuMemFreeHost(ptr), "cuMemFreeHost", (hex(<uintptr_t> ptr),))
        return 0


cdef class CudaSide(DeviceSide):
    """Copies between the host and one device, in order with its computing."""
    cdef Device device

    def __init__(self, place):
        super().__init__(place)
        self.device = get_device(place.device)

    cdef int finish(self) except -1:
        cdef cydriver.CUresult code
        cdef cydriver.CUstream stream = <cydriver.CUstream> self.device.stream.handle
        with nogil:
            code = cydriver.cuStreamSynchronize(stream)
        check(code, "cuStreamSynchronize")
        return 0

    cpdef copy_to_device(self, size_t dst, size_t src, size_t nbytes):
        self.device.activate()
        with device_lock:
            check(cydriver.cuMemcpyHtoDAsync(dst, <const void*> src, nbytes, <cydriver.CUstream> self.device.stream.handle),
                  "cuMemcpyHtoDAsync", (hex(dst), hex(src), nbytes))
            self.finish()

    cpdef copy_to_host(self, size_t dst, size_t src, size_t nbytes):
        self.device.activate()
        with device_lock:
            if self.device.stream.failed:
                raise_failure(&self.device.stream)
            check(cydriver.cuMemcpyDtoHAsync(<void*> dst, src, nbytes, <cydriver.CUstream> self.device.stream.handle),
                  "cuMemcpyDtoHAsync", (hex(dst), hex(src), nbytes))
            self.finish()

    cpdef zero(self, size_t dst, size_t nbytes):
        self.device.activate()
        check(cydriver.cuMemsetD8Async(dst, 0, nbytes, <cydriver.CUstream> self.device.stream.handle), "cuMemsetD8Async",
              (hex(dst), 0, nbytes))

    cpdef copy_within(self, size_t dst, size_t src, size_t nbytes):
        self.device.activate()
        with device_lock:
            check(cydriver.cuMemcpyDtoDAsync(dst, src, nbytes, <cydriver.CUstream> self.device.stream.handle), "cuMemcpyDtoDAsync",
                  (hex(dst), hex(src), nbytes))

    cpdef push(self, size_t dst, size_t src, size_t nbytes, stream):
        cdef Stream line = stream
        self.device.activate()
        check(cydriver.cuMemcpyHtoDAsync(dst, <const void*> src, nbytes, line.handle), "cuMemcpyHtoDAsync",
              (hex(dst), hex(src), nbytes))


cdef class CudaOrder(StreamOrder):
    """Streams and events of one device, for allocators that keep blocks until their streams are past them."""
    cdef Device device

    def __init__(self, place):
        self.device = get_device(place.device)

    cpdef size_t current(self) except? -1:
        return <size_t> self.device.stream.handle

    cpdef record(self, size_t stream):
        cdef Event event = Event(self.device)
        check(cydriver.cuEventRecord(event.handle, <cydriver.CUstream> <void*> stream), "cuEventRecord")
        return event

    cpdef bint done(self, event) except -1:
        return event.done()

    cpdef wait(self, event):
        event.synchronize()


registry.register(CUDAPlace, DriverAllocator, CudaSide, CudaOrder, "caching")
registry.register(PinnedPlace, PinnedAllocator, streams=lambda place: CudaOrder(CUDAPlace(selected())), default="caching")
