"""Memory of CUDA devices and page-locked host memory, from the driver; copies between them; the StreamOrder of allocators.

These are the lowest allocators of a CUDAPlace and of PinnedPlace; those of minicaffe/memory are built on them.
"""

import mmap

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t

from minicaffe.cuda.device cimport Device, Event, Stream, computing, get_device, raise_failure
from minicaffe.cuda.driver cimport check, may_call
from minicaffe.cuda.peers cimport use_peer_memory, wait_for_device, wait_for_device_and_peer_users, wait_for_peer_users
from minicaffe.device.context cimport current_gpu
from minicaffe.memory.allocator cimport Allocator, out_of_memory
from minicaffe.memory.buffer cimport Buffer
from minicaffe.memory.provider cimport DeviceSide, StreamOrder

from minicaffe.cuda import driver
from minicaffe.cuda.device import devices_made
from minicaffe.cuda.mode import selected
from minicaffe.errors import PointerError, WrongDeviceError, WrongTypeError
from minicaffe.memory.place import CUDAPlace, PinnedPlace
from minicaffe.memory.red_zones import RedZones
from minicaffe.memory.registry import registry
from minicaffe.memory.synced import device_lock


@cython.final
@cython.no_gc_clear     # allocators built on it may still free blocks in their __dealloc__
cdef class DriverAllocator(Allocator):
    """Every block from cuMemAlloc (the plain allocator of a CUDAPlace), whose free waits for all streams of the device."""
    cdef Device device

    def __init__(self, place):
        super().__init__(place)
        self.device = get_device(place.device)

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        cdef cydriver.CUdeviceptr address = 0
        cdef cydriver.CUstreamCaptureMode mode = cydriver.CU_STREAM_CAPTURE_MODE_RELAXED
        self.device.activate()
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)       # allows cuMemAlloc during a graph capture, which does not record it
        code = cydriver.cuMemAlloc(&address, max(nbytes, <size_t> 1))   # the driver refuses 0
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if code == cydriver.CUDA_ERROR_OUT_OF_MEMORY:
            raise out_of_memory(self, nbytes, "what the device has")
        check(code, "cuMemAlloc", (nbytes,))
        self.remember(<void*> <uintptr_t> address, nbytes)      # `forget` raises PointerError unless a live block begins there
        return <void*> <uintptr_t> address

    cdef int free_ptr(self, void* ptr) except -1:
        self.forget(ptr)
        if may_call():
            wait_for_peer_users(self.device)       # cuMemFree waits for the streams of this device only
            self.device.activate()
            check(cydriver.cuMemFree(<uintptr_t> ptr), "cuMemFree", (hex(<uintptr_t> ptr),))

    def red_zones(self):
        """Return red zones of one page on the simulated device, for allocators built on this; a GPU's driver has none."""
        poison, unpoison = driver.entry_point("mcsim_poison"), driver.entry_point("mcsim_unpoison")
        return RedZones(mmap.PAGESIZE if poison and unpoison else 0, poison, unpoison)

    def memory_info(self):
        """Return the free and the total bytes of device memory."""
        return self.device.memory_info()


@cython.final
@cython.no_gc_clear
cdef class PinnedAllocator(Allocator):
    """Page-locked host memory, every block from cuMemHostAlloc."""
    cdef Device device

    def __init__(self, place):
        super().__init__(place)
        self.device = get_device(selected())    # its context allocates; CU_MEMHOSTALLOC_PORTABLE: all GPUs can use the memory

    cdef void* alloc_ptr(self, size_t nbytes) except NULL:
        cdef void* ptr = NULL
        self.device.activate()
        check(cydriver.cuMemHostAlloc(&ptr, max(nbytes, <size_t> 1), cydriver.CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc",
              (nbytes,))
        self.remember(ptr, nbytes)
        return ptr

    cdef int free_ptr(self, void* ptr) except -1:
        self.forget(ptr)
        if may_call():
            self.device.activate()
            check(cydriver.cuMemFreeHost(ptr), "cuMemFreeHost", (hex(<uintptr_t> ptr),))


cdef class CudaCopier(DeviceSide):
    """Copies between the host and one device, on its computing stream, for SyncedMemory and memory.copy."""
    cdef Device device

    def __init__(self, place):
        super().__init__(place)
        self.device = get_device(place.device)

    cdef int begin(self) except -1:
        """Prepare for work on the computing stream: make it wait for GPUs that use memory of this one, and its device current."""
        self.drop_finished()
        wait_for_peer_users(self.device)
        self.device.activate()

    def keep_alive(self, owner):
        """Keep `owner` of foreign memory, such as an array of PyTorch, alive until the work now queued on the device is done."""
        cdef Event event = Event(self.device)
        event.record(computing(self.device))
        self.drop_finished()
        self.device.pending_owners.append((event, owner))

    cdef int drop_finished(self) except -1:
        """Drop the references to foreign memory whose copies are done."""
        pending_owners = self.device.pending_owners
        while pending_owners and pending_owners[0][0].done():
            pending_owners.popleft()

    cdef cydriver.CUstream target_stream(self) noexcept:
        return <cydriver.CUstream> self.device.stream.handle

    cpdef copy_to_device(self, size_t dst, size_t src, size_t nbytes):
        self.begin()
        with device_lock:       # keeps the copy out of a graph that another thread records on the stream
            check(cydriver.cuMemcpyHtoDAsync(dst, <const void*> src, nbytes, self.target_stream()), "cuMemcpyHtoDAsync",
                  (hex(dst), hex(src), nbytes))
            computing(self.device).synchronize()

    cpdef copy_to_host(self, size_t dst, size_t src, size_t nbytes):
        self.begin()
        with device_lock:
            if self.device.stream.failed:       # the kernel that computes the data may not have run
                raise_failure(&self.device.stream)
            check(cydriver.cuMemcpyDtoHAsync(<void*> dst, src, nbytes, self.target_stream()), "cuMemcpyDtoHAsync",
                  (hex(dst), hex(src), nbytes))
            computing(self.device).synchronize()

    cpdef zero(self, size_t dst, size_t nbytes):
        self.begin()
        with device_lock:
            check(cydriver.cuMemsetD8Async(dst, 0, nbytes, self.target_stream()), "cuMemsetD8Async", (hex(dst), 0, nbytes))

    cpdef copy_within(self, size_t dst, size_t src, size_t nbytes):
        self.begin()
        with device_lock:
            check(cydriver.cuMemcpyDtoDAsync(dst, src, nbytes, self.target_stream()), "cuMemcpyDtoDAsync",
                  (hex(dst), hex(src), nbytes))

    cpdef copy_from_peer(self, Buffer dst, Buffer src, size_t nbytes, DeviceSide source):
        """Queue a copy from `src` on another device, whose side is `source`; both computing streams are synchronized with it."""
        cdef Device other = (<CudaCopier?> source).device
        self.begin()
        wait_for_device_and_peer_users(computing(self.device), other)
        src.record_stream(<size_t> self.device.stream.handle)       # its allocator reuses it only after this stream's copy
        check(cydriver.cuMemcpyPeerAsync(dst.address, self.device.context, src.address, other.context, nbytes,
                                         self.target_stream()),
              "cuMemcpyPeerAsync", (hex(dst.address), self.device.index, hex(src.address), other.index, nbytes))
        wait_for_device(computing(other), self.device)   # its later work on the source must wait for the copy
        self.device.activate()

    cpdef push(self, Buffer dst, Buffer src, size_t nbytes, stream, bint fresh):
        """Queue a copy on `stream`, such as `Device.copies`; `fresh`: a new block, which the device's queued work may still use."""
        cdef Stream target_stream
        cdef bint known     # whether both blocks have allocators of ours, which do not reuse them before the copy is done
        if not isinstance(stream, Stream):
            raise WrongTypeError(f"a push needs a minicaffe.cuda.Stream, got {type(stream).__name__}")
        target_stream = stream
        if target_stream.device is not self.device:
            raise WrongDeviceError(f"{dst.name or 'the memory'} is on GPU {self.device.index}, the stream is one of GPU "
                                   f"{target_stream.device.index}; push on a stream of the memory's own GPU")
        if fresh:
            wait_for_device_and_peer_users(target_stream, self.device)
            if not src.place.on_host and src.place != self.place:
                wait_for_device_and_peer_users(target_stream, get_device(src.place.device))
        self.device.activate()
        known = dst.record_stream(<size_t> target_stream.handle)
        known = src.record_stream(<size_t> target_stream.handle) and known
        event = None if known else Event(self.device)
        if src.place.on_host:
            check(cydriver.cuMemcpyHtoDAsync(dst.address, src.ptr, nbytes, target_stream.handle), "cuMemcpyHtoDAsync",
                  (hex(dst.address), hex(src.address), nbytes))
        elif dst.place.on_host:
            check(cydriver.cuMemcpyDtoHAsync(dst.ptr, src.address, nbytes, target_stream.handle), "cuMemcpyDtoHAsync",
                  (hex(dst.address), hex(src.address), nbytes))
        else:       # of one device or of two
            check(cydriver.cuMemcpyPeerAsync(dst.address, self.device.context, src.address, get_device(src.place.device).context,
                                             nbytes, target_stream.handle),
                  "cuMemcpyPeerAsync", (hex(dst.address), hex(src.address), nbytes))
        self.drop_finished()
        if event is not None:       # a foreign block: kept alive until the copy is done
            self.device.pending_owners.append((event, dst, src))
            event.record(target_stream)

    cpdef int device_of(self, size_t address) except? -1:
        """Return the index of the GPU with memory at `address`, -1 for memory that all GPUs can use."""
        found = driver.allocation(address)
        if found is None:
            raise PointerError(f"{address:#x} is not memory of a GPU according to the driver; pass an address of GPU memory")
        return found[0]

    cpdef size_t stream(self) except 0:
        """Return the address of the computing CudaStream, for launches by this thread, such as of a change of layout."""
        self.begin()
        return <size_t> &self.device.stream

    cpdef check_peer_access(self, str name, Buffer block):
        """Raise WrongDeviceError unless the current GPU may use `block` of this one (None: not allocated); order their work."""
        cdef Device user = get_device(current_gpu)
        use_peer_memory(user, self.device, name)
        if block is not None:
            block.record_stream(<size_t> user.stream.handle)


@cython.no_gc_clear     # an allocator in a cycle records events while the collector frees its blocks
cdef class CudaStreamOrder(StreamOrder):
    """Streams and events of one device, for allocators that keep blocks until all streams have finished with them."""
    cdef Device device

    def __init__(self, place):
        self.device = get_device(place.device)

    cpdef size_t current(self) except? -1:
        """Return the handle of the device's computing stream."""
        return <size_t> self.device.stream.handle

    cpdef record(self, size_t stream):
        """Return an Event after the work now queued on `stream`; None, which counts as done, at exit: all streams have ended."""
        cdef cydriver.CUcontext context = NULL
        cdef Device owner
        if not may_call():
            return None
        self.device.activate()
        check(cydriver.cuStreamGetCtx(<cydriver.CUstream> <void*> stream, &context), "cuStreamGetCtx", (hex(stream),))
        for owner in devices_made().values():     # mostly this one, or one that uses memory of it
            if owner.context == context:
                break
        cdef Event event = Event(owner)
        check(cydriver.cuEventRecord(event.handle, <cydriver.CUstream> <void*> stream), "cuEventRecord")
        return event

    cpdef bint done(self, event) except -1:  # None: see `record`
        return event is None or event.done()

    cpdef wait(self, event):
        if event is not None:
            event.synchronize()


registry.register(CUDAPlace, DriverAllocator, CudaCopier, CudaStreamOrder, "caching")
registry.register(PinnedPlace, PinnedAllocator, streams=lambda place: CudaStreamOrder(CUDAPlace(selected())), default="caching")
