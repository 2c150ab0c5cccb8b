"""The state of each CUDA device in this process: context, streams, peers, kernels (THC's THCState).

A `Device` is made once, on the device's primary context, which it shares with cuBLAS, cuDNN and other libraries of the
process. All computing is on one stream, which is synchronized with the legacy default stream of other libraries; `copies` is
concurrent with it. Calls that wait release the GIL. The device of GPU mode is in mode.pyx, memory of other devices in peers.pyx.
"""

import threading
from collections import deque

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uintptr_t
from libcpp.vector cimport vector

from minicaffe.cuda.driver cimport check, error_of, exchange_context, may_call
from minicaffe.device.threads cimport num_threads
from minicaffe.memory.buffer cimport Buffer
from minicaffe.memory.reporter cimport Reporter
from minicaffe.device.context cimport CudaKernel, CudaStream, HostImage, image_of, kScratch, set_active

from minicaffe import sim
from minicaffe.cuda import compile, driver, libraries
from minicaffe.errors import ConfigError, DeviceError, int_of
from minicaffe.memory.place import CUDAPlace
from minicaffe.memory.reporter import reporter

cdef extern from *:
    enum: kMaxDevices "mc::cuda::kMaxDevices"

cdef enum:
    # Bytes of a stream's workspace for cuBLAS: what its documentation recommends (cublasSetWorkspace), 32 MiB from
    # compute capability 9.0 on. With less it uses slower algorithms. Small GPUs keep the memory, as in PyTorch.
    WORKSPACE = 4 << 20
    LARGE_WORKSPACE = 32 << 20

cdef Reporter _reporter = reporter
_devices = {}           # index -> Device
_lock = threading.RLock()


cpdef Device get_device(index):
    """Return the state of device `index`, made on first use.

    Raises DependencyError or DeviceError if there is no driver, or the device cannot be used; WrongTypeError if it is not an int.
    """
    index = int_of(index, "device_id")
    found = _devices.get(index)
    if found is None:
        with _lock:
            found = _devices.get(index)
            if found is None:
                found = Device(index)
                libraries.attach(<size_t> &(<Device> found).stream, found.name, store_failure_of, time_call)
                _devices[index] = found
    return found


def devices_made():
    """Return the devices used so far, by index; creates none."""
    return dict(_devices)


cdef class Device:
    """One device; use `get_device(index)`.

    Attributes
    ----------
    index, multiprocessors : int
    name : str
    capability : tuple of int
        ``(9, 0)`` for sm_90.
    copies : Stream
        For copies concurrent with the computing.
    """

    def __init__(self, index):
        cdef cydriver.CUdevice handle
        cdef char name[128]
        cdef cydriver.CUdeviceptr scratch = 0, workspace = 0
        cdef size_t free = 0, memory = 0
        cdef cydriver.CUstream stream
        if not 0 <= index < min(driver.count(), kMaxDevices):
            raise DeviceError(f"there is no device {index}; this machine has {driver.count()}, minicaffe device_query lists them",
                              code="CUDA_ERROR_INVALID_DEVICE")
        self.index = index
        self.modules, self.free_stream_handles, self.peers, self.peer_users, self.pending_owners = [], [], {}, [], deque()
        check(cydriver.cuDeviceGet(&handle, index), "cuDeviceGet", (index,))
        check(cydriver.cuDeviceGetName(name, 128, handle), "cuDeviceGetName", (index,))
        self.name = (<bytes> name).decode()
        self.capability = (self.attribute(cydriver.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                           self.attribute(cydriver.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
        self.multiprocessors = self.attribute(cydriver.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        check(cydriver.cuDevicePrimaryCtxRetain(&self.context, handle), "cuDevicePrimaryCtxRetain", (index,))
        self.activate()
        check(cydriver.cuStreamCreate(&stream, cydriver.CU_STREAM_DEFAULT), "cuStreamCreate", (index,))
        check(cydriver.cuMemAlloc(&scratch, kScratch * 8), "cuMemAlloc", (kScratch * 8,))
        check(cydriver.cuMemGetInfo(&free, &memory), "cuMemGetInfo")
        self.stream.workspace_bytes = LARGE_WORKSPACE if self.capability[0] >= 9 and memory >= <size_t> 8 << 30 else WORKSPACE
        check(cydriver.cuMemAlloc(&workspace, self.stream.workspace_bytes), "cuMemAlloc", (self.stream.workspace_bytes,))
        # C++ code launches by these members of mc::cuda::Stream (device/stream.hpp); the functions are further down in this file.
        self.stream.workspace = <void*> <uintptr_t> workspace
        self.stream.handle = <void*> stream
        self.stream.device = index
        self.stream.multiprocessors = self.multiprocessors
        self.stream.capability = 10 * self.capability[0] + self.capability[1]
        self.stream.scratch = <double*> <uintptr_t> scratch
        self.stream.load = load
        self.stream.fail = fail
        self.stream.watch = watch
        self.stream.raise_error = raise_failure
        self.stream.activate = activate
        self.stream.dry = num_threads().pool.dry    # 1 within a dry run of the calling thread: launches are skipped
        self.stream.recording = 0
        self.stream.start = launch_function()
        self.copies = Stream(self)
        self.timers = threading.local()

    cdef int activate(self) except -1:
        """Make the device's context current in the calling thread; raise DeviceError at exit and in a forked process."""
        if not may_call():
            raise error_of(cydriver.CUDA_ERROR_DEINITIALIZED, "cuCtxSetCurrent", (self.index,))
        check(cydriver.cuCtxSetCurrent(self.context), "cuCtxSetCurrent", (self.index,))
        set_active(&self.stream)

    def attribute(self, int which):
        """Return a device attribute (CUdevice_attribute)."""
        cdef int value = 0
        check(cydriver.cuDeviceGetAttribute(&value, <cydriver.CUdevice_attribute> which, self.index), "cuDeviceGetAttribute",
              (which, self.index))
        return value

    def memory_info(self):
        """Return the free and the total bytes of device memory."""
        cdef size_t free = 0, total = 0
        self.activate()
        check(cydriver.cuMemGetInfo(&free, &total), "cuMemGetInfo")
        return free, total

    def synchronize(self):
        """Wait until all work of the device's context is done; raise the first error of that work."""
        cdef cydriver.CUresult code
        self.activate()
        with nogil:
            code = cydriver.cuCtxSynchronize()
        if self.stream.failed:
            raise_failure(&self.stream)
        check(code, "cuCtxSynchronize")

    cdef int free_resources(self) except -1:
        """Free the resources of this object in the driver, at the process's exit (cuda/mode.pyx); it is unusable afterwards."""
        self.activate()
        self.copies = self.timers = None    # the handle of `copies` is idle now
        for module in self.modules:
            check(cydriver.cuModuleUnload(<cydriver.CUmodule> <void*> <uintptr_t> module), "cuModuleUnload")
        for handle in (*self.free_stream_handles, <uintptr_t> self.stream.handle):
            check(cydriver.cuStreamDestroy(<cydriver.CUstream> <void*> <uintptr_t> handle), "cuStreamDestroy")
        for address in (<uintptr_t> self.stream.scratch, <uintptr_t> self.stream.workspace):
            check(cydriver.cuMemFree(address), "cuMemFree")

    def reaches(self, Device other not None):
        """Whether the two are peers, so that `enable_peer_access` can make the memory of `other` accessible to kernels here."""
        cdef int can = other is self
        if not can:
            check(cydriver.cuDeviceCanAccessPeer(&can, self.index, other.index), "cuDeviceCanAccessPeer", (self.index, other.index))
        return can != 0

    def peer_access(self, Device other not None):
        """Return 1 if kernels here may use the memory of `other`, 0 if not, -1 if it was never requested (THC's matrix)."""
        return 1 if other is self else self.peers.get(other.index, -1)

    @property
    def bus_id(self):
        """str: the PCI bus id, such as ``0000:3b:00.0``, independent of CUDA_VISIBLE_DEVICES."""
        cdef char name[32]
        check(cydriver.cuDeviceGetPCIBusId(name, 32, self.index), "cuDeviceGetPCIBusId", (self.index,))
        return (<bytes> name).decode()

    @property
    def architecture(self):
        """str: NVRTC's name of it, such as ``sm_90``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def clock_rate(self):
        """int: the maximum clock rate in Hz."""
        return 1000 * self.attribute(cydriver.CU_DEVICE_ATTRIBUTE_CLOCK_RATE)

    @property
    def streams(self):
        """int: the number of live `Stream` objects with a handle of their own, including `copies`; not the computing stream."""
        return self.streams_created - len(self.free_stream_handles)

    @property
    def scratch_bytes(self):
        """int: memory of the computing stream for sums in two launches."""
        return kScratch * sizeof(double)

    @property
    def workspace_bytes(self):
        """int: memory of the computing stream for long matrix products and cuBLAS."""
        return self.stream.workspace_bytes

    @property
    def library_versions(self):
        """dict: the versions (int) of ``cuBLAS`` and ``cuDNN``; None for one that is not open here."""
        return libraries.versions(<size_t> &self.stream)

    @property
    def launches(self):
        """int: kernels launched so far."""
        return self.stream.launches

    @property
    def compute_stream(self):
        """int: the computing CUstream, for other libraries."""
        return <uintptr_t> self.stream.handle

    def load_module(self, image):
        """Load a module from `image`, the bytes of a cubin or PTX; return its CUmodule (int), which is unloaded at exit."""
        cdef cydriver.CUmodule module
        cdef const unsigned char[::1] view = image
        self.activate()
        with RelaxedCapture():
            check(cydriver.cuModuleLoadData(&module, &view[0]), "cuModuleLoadData", (f"{len(image)} bytes",))
        self.modules.append(<uintptr_t> module)
        return <uintptr_t> module

    def function(self, size_t module, str name):
        """Return the CUfunction (int) of the kernel `name` (its symbol) in a `module` of `load_module`."""
        cdef cydriver.CUfunction function
        encoded = name.encode()
        with RelaxedCapture():      # it may load the kernel only now: CUDA_MODULE_LOADING=LAZY
            check(cydriver.cuModuleGetFunction(&function, <cydriver.CUmodule> <void*> module, encoded), "cuModuleGetFunction",
                  (name,))
        return <uintptr_t> function

    def wait_for(self, size_t stream):
        """Make the computing stream wait for the work now queued on `stream`, a CUstream of any library; the host continues."""
        cdef Event event = Event(self)
        check(cydriver.cuEventRecord(event.handle, <cydriver.CUstream> <void*> stream), "cuEventRecord", (hex(stream),))
        check(cydriver.cuStreamWaitEvent(<cydriver.CUstream> self.stream.handle, event.handle, 0), "cuStreamWaitEvent")

    def make_stream_wait(self, size_t stream):
        """Make `stream`, a CUstream of any library, wait for the work now queued on the computing stream; the host continues."""
        cdef Event event = Event(self)
        event.record(computing(self))
        check(cydriver.cuStreamWaitEvent(<cydriver.CUstream> <void*> stream, event.handle, 0), "cuStreamWaitEvent", (hex(stream),))

    def launch(self, size_t function, tuple grid, tuple block, list arguments, size_t shared=0, Stream stream=None):
        """Launch a kernel, from `function`, on `stream`, by default the computing stream; the built-in ones are launched by C++.

        `grid` and `block` have 1 to 3 sizes; `arguments` are ctypes objects, passed by value; `shared` is bytes of dynamic memory.
        Raises DeviceError if the launch fails. An error of the kernel itself is raised by the next call that waits for it.
        """
        import ctypes
        values = (ctypes.c_void_p * max(1, len(arguments)))(*[ctypes.addressof(a) for a in arguments])
        cdef uintptr_t addresses = ctypes.addressof(values)
        cdef unsigned x, y, z, bx, by, bz
        cdef cydriver.CUstream target_stream = <cydriver.CUstream> self.stream.handle if stream is None else stream.handle
        x, y, z = (grid + (1, 1))[:3]
        bx, by, bz = (block + (1, 1))[:3]
        self.activate()
        check(cydriver.cuLaunchKernel(<cydriver.CUfunction> <void*> function, x, y, z, bx, by, bz, shared, target_stream,
                                      <void**> <void*> addresses, NULL),
              "cuLaunchKernel", (f"grid {grid}", f"block {block}"))
        self.stream.launches += 1

    @property
    def recording(self):
        """bool: whether every launch is reported as an event."""
        return self.stream.recording != 0

    def record_launches(self, bint on):
        """Turn on or off events for kernel launches and calls of cuBLAS and cuDNN (`minicaffe.memory.record`).

        When on, the host waits for each of them, events of the stream measure its time, and no iteration is run as a graph.
        While a `Recorder` records, launches are recorded also after ``record_launches(False)``. Afterwards this setting holds.
        """
        self.recording_by_hand = on
        self.stream.recording = on or self.launch_recorders > 0

    def add_launch_recorder(self):
        """Record launches for a `Recorder` until `remove_launch_recorder` was called as often, whatever `record_launches` sets."""
        self.launch_recorders += 1      # threads may call it at once; nothing here releases the GIL
        self.stream.recording = 1

    def remove_launch_recorder(self):
        """End what `add_launch_recorder` began; what `record_launches` has turned on stays on."""
        self.launch_recorders -= 1
        self.stream.recording = self.recording_by_hand or self.launch_recorders > 0

    def __repr__(self):
        return f"<Device {self.index} {self.name!r} {self.architecture}>"


# ---- what mc::cuda::launch calls (device/stream.hpp)

ctypedef int (*start_function)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                               void**) noexcept nogil


cdef start_function launch_function() except NULL:
    """Return the address of cuLaunchKernel, so that a launch does not go through cuda-bindings' wrapper."""
    cdef uintptr_t address = driver.entry_point("cuLaunchKernel")
    if not address:
        raise DeviceError("the driver has no cuLaunchKernel; update the NVIDIA driver")
    return <start_function> <void*> address


cdef Device device_of(CudaStream* stream):
    return <Device> _devices[stream.device]


cdef store_failure(CudaStream* stream, error):
    """Store why the stream failed, unless an earlier reason is stored; launches on it do nothing until it is raised."""
    cdef Device owner = device_of(stream)
    if not stream.failed:
        owner.failure = error
        stream.failed = 1


def store_failure_of(int index, error):
    """Mark the computing stream of device `index` as failed with `error`, for cuda/libraries.pyx; the next check raises it."""
    store_failure(&get_device(index).stream, error)


cdef void* load(CudaStream* stream, CudaKernel* kernel) noexcept with gil:
    """Compile a kernel, or read it from the cache, and load it, at its first launch on a device (Stream::load). NULL: failure."""
    cdef HostImage image
    cdef Device owner
    cdef size_t function
    try:
        owner = device_of(stream)
        spelling = (<bytes> kernel.host.name).decode()
        if sim.selected():
            image = image_of(kernel.host, 1)
            function = owner.function(owner.load_module(<unsigned char[:sizeof(HostImage)]> <unsigned char*> &image), spelling)
        else:
            cubin, name = compile.kernel_image(spelling, kernel.host.argument_sizes[0], owner.architecture)
            function = owner.function(owner.load_module(cubin), name)
        kernel.functions[stream.device] = <void*> function
        return <void*> function
    except BaseException as error:
        store_failure(stream, error)
        return NULL


cdef void fail(CudaStream* stream, int code, CudaKernel* kernel, unsigned blocks, unsigned threads) noexcept with gil:
    """Store the error of a launch, `code` of the driver, which the next check of the stream raises (Stream::fail)."""
    store_failure(stream, error_of(<cydriver.CUresult> code, "cuLaunchKernel",
                                  (compile.short_name((<bytes> kernel.host.name).decode()), f"{blocks} blocks",
                                   f"{threads} threads")))


cdef long long time_work(Device owner, bint begins) except -1:
    """Record the start of work on the computing stream and return 0; at its end (not `begins`) wait and return its nanoseconds."""
    cdef Event begin, end
    if owner.stream.rate != NULL:   # work in a graph capture does not run yet
        return 0
    marks = getattr(owner.timers, "marks", None)    # each thread has its own: another may launch between the two
    if marks is None:
        marks = owner.timers.marks = (Event(owner, timing=True), Event(owner, timing=True))
    begin, end = marks
    (begin if begins else end).record(computing(owner))
    if begins:
        return 0
    end.synchronize()
    return <long long> (1e6 * end.elapsed(begin))


def time_call(int index, call):
    """Time a call of cuBLAS or cuDNN on device `index`: before it `call` is None; after it its name, and this waits and reports."""
    cdef long long took = time_work(get_device(index), call is None)
    if call is not None:
        _reporter.event("call", CUDAPlace(index), 0, 0, call, "", took)


cdef int watch(CudaStream* stream, CudaKernel* kernel, void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
               void** arguments) noexcept with gil:
    """Launch a kernel, wait, report an event, return the code (Stream::watch: for Stream::start while launches are recorded)."""
    cdef Device owner = device_of(stream)
    cdef cydriver.CUresult code = cydriver.CUDA_SUCCESS
    cdef long long took
    try:
        time_work(owner, True)
        with nogil:
            code = <cydriver.CUresult> stream.start(function, x, y, z, threads, 1, 1, 0, stream.handle, arguments, NULL)
        if code != cydriver.CUDA_SUCCESS:
            return code
        took = time_work(owner, False)
        arrays = live_blocks_in(<const size_t*> arguments[0], <const size_t*> kernel.host.pointers[0](),
                                kernel.host.argument_sizes[0] // sizeof(size_t))
        detail = [f"{x}x{y}x{z} blocks of {threads} threads", *[f"{name} ({nbytes} bytes)" for name, nbytes in arrays]]
        _reporter.event("launch", CUDAPlace(stream.device), 0, sum([nbytes for _, nbytes in arrays]),
                        compile.short_name((<bytes> kernel.host.name).decode()), "; ".join(detail), took)
    except BaseException as error:
        store_failure(stream, error)
    return code


cdef list live_blocks_in(const size_t* words, const size_t* is_pointer, size_t count):
    """List (name, bytes) of each live block at a pointer among `words`, a kernel's parameters; `is_pointer` is nonzero there."""
    cdef size_t i, block
    cdef vector[size_t] found
    cdef list blocks = []       # made first: the collector, which an allocation may start, can free blocks
    for i in range(count):
        for block in _reporter.blocks:
            if is_pointer[i] and words[i] - <size_t> (<Buffer> <void*> block).ptr < (<Buffer> <void*> block).nbytes:
                found.push_back(block)
    for block in found:
        blocks.append(<Buffer> <void*> block)
    return [((<Buffer> buffer).name, (<Buffer> buffer).nbytes) for buffer in dict.fromkeys(blocks)]


cdef int raise_failure(CudaStream* stream) except -1:
    """Raise the stored error and clear it (Stream::raise, for `settle`). If the context is lost, the next call fails again."""
    cdef Device owner = device_of(stream)
    error, owner.failure = owner.failure, None
    stream.failed = 0
    raise error if error is not None else DeviceError("the stream failed, for a reason that was raised before")


cdef int activate(CudaStream* stream) noexcept with gil:
    """Make the device current in this thread for C++ code (Stream::activate). If that fails, store the error and return -1."""
    try:
        return device_of(stream).activate()
    except BaseException as error:
        store_failure(stream, error)
        return -1


class RelaxedCapture:
    """``with RelaxedCapture():`` this thread may make calls that a graph capture forbids, such as loading the code of a library."""

    def __enter__(self):
        cdef cydriver.CUstreamCaptureMode mode = cydriver.CU_STREAM_CAPTURE_MODE_RELAXED
        check(cydriver.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode")
        self.before = <int> mode

    def __exit__(self, kind, error, trace):
        cdef cydriver.CUstreamCaptureMode mode = <cydriver.CUstreamCaptureMode> <int> self.before
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)


# ---- streams and events

@cython.no_gc_clear     # __dealloc__ needs device
cdef class Stream:
    """A CUDA stream of one device.

    When the object is deallocated, its handle is kept for a later Stream: allocators store handles of streams, and may still
    record an event on this one when a block that it used is freed.
    """

    def __init__(self, Device device not None):
        if self.device is not None:
            raise ConfigError("a Stream is made once; __init__ was called again")
        if device.free_stream_handles:
            self.handle = <cydriver.CUstream> <void*> <uintptr_t> device.free_stream_handles.pop()
        else:
            device.activate()
            check(cydriver.cuStreamCreate(&self.handle, cydriver.CU_STREAM_NON_BLOCKING), "cuStreamCreate", (device.index,))
            device.streams_created += 1
        self.device = device
        self.owned = True

    def __dealloc__(self):
        if self.owned:
            self.device.free_stream_handles.append(<uintptr_t> self.handle)

    def synchronize(self):
        """Wait until all its work is done."""
        cdef cydriver.CUresult code
        self.device.activate()
        with nogil:
            code = cydriver.cuStreamSynchronize(self.handle)
        check(code, "cuStreamSynchronize")

    def wait(self, Event event not None):
        """Make later work on this stream wait for `event`; the host does not wait."""
        self.device.activate()
        check(cydriver.cuStreamWaitEvent(self.handle, event.handle, 0), "cuStreamWaitEvent")

    @property
    def address(self):
        """int: the CUstream."""
        return <uintptr_t> self.handle


cpdef Stream computing(Device device):
    """Return the computing stream of `device` as a new Stream, which does not own the handle."""
    cdef Stream stream = Stream.__new__(Stream)
    stream.device = device
    stream.handle = <cydriver.CUstream> device.stream.handle
    return stream


@cython.no_gc_clear     # an object that waits for this event when it is deallocated may be in the same cycle
cdef class Event:
    """A CUDA event: a point in the work of a stream of `device`. `elapsed` needs `timing`; without, the event costs less."""

    def __init__(self, Device device not None, bint timing=False):
        self.device = device
        device.activate()
        check(cydriver.cuEventCreate(&self.handle, cydriver.CU_EVENT_DEFAULT if timing else cydriver.CU_EVENT_DISABLE_TIMING),
              "cuEventCreate")

    def __dealloc__(self):
        cdef cydriver.CUcontext before
        if self.handle != NULL and may_call():
            before = exchange_context(self.device.context)
            cydriver.cuEventDestroy(self.handle)
            exchange_context(before)

    def record(self, Stream stream not None):
        """Record this event after the work now queued on `stream`."""
        self.device.activate()
        check(cydriver.cuEventRecord(self.handle, stream.handle), "cuEventRecord")

    def done(self):
        """Return whether all work before it is done, without waiting; also in a graph capture, unless it was recorded in that."""
        cdef cydriver.CUstreamCaptureMode mode = cydriver.CU_STREAM_CAPTURE_MODE_RELAXED
        self.device.activate()
        check(cydriver.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode")
        code = cydriver.cuEventQuery(self.handle)
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
        if code != cydriver.CUDA_ERROR_NOT_READY:
            check(code, "cuEventQuery")
        return code == cydriver.CUDA_SUCCESS

    def synchronize(self):
        """Wait until all work before it is done."""
        cdef cydriver.CUresult code
        self.device.activate()
        with nogil:
            code = cydriver.cuEventSynchronize(self.handle)
        check(code, "cuEventSynchronize")

    def elapsed(self, Event start not None):
        """Return the milliseconds between `start` and this event."""
        cdef float milliseconds = 0
        self.device.activate()
        check(cydriver.cuEventElapsedTime(&milliseconds, start.handle, self.handle), "cuEventElapsedTime")
        return milliseconds
