"""SyncedMemory: one piece of memory mirrored on host and device (Caffe ``syncedmem.cpp``).

Nothing is allocated or copied before somebody looks. The head says which side is valid; `TABLE` says what each call
does in each state. Unlike Caffe's, a block outlives its SyncedMemory while a view shows it, a refused call raises
instead of ending the process, and copies are counted. Several threads may look at one object (docs/threads.md): a call that has
something to do holds `device_lock`. A pointer is valid as long as nobody puts other memory in its place.
"""

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memset

from minicaffe.memory.allocator cimport Buffer, foreign_buffer
from minicaffe.memory.reporter cimport Reporter

import threading

from minicaffe.errors import ConfigError, Error, WrongTypeError
from minicaffe.memory.place import CPUPlace
from minicaffe.memory.registry import registry
from minicaffe.memory.reporter import reporter


cpdef enum Action:
    KEEP            # nothing to do
    ZERO_HOST       # allocate the host side and fill it with zeros; only ever the very first allocation
    ZERO_DEVICE
    TO_HOST         # copy device to host; allocate the host side if there is none
    TO_DEVICE       # copy host to device; allocate the device side if there is none
    PUSH            # TO_DEVICE on a stream, which the caller waits for
    ADOPT_HOST      # take foreign memory as the host side
    ADOPT_DEVICE
    REFUSE

cpdef enum Call:
    CPU_DATA
    MUTABLE_CPU_DATA
    GPU_DATA
    MUTABLE_GPU_DATA
    SET_CPU_DATA
    SET_GPU_DATA
    SET_CPU_COPY
    ASYNC_GPU_PUSH

cdef enum:
    STATES = 4
    CALLS = 8

NONE, CPU, GPU, BOTH = SyncedHead.UNINITIALIZED, SyncedHead.HEAD_AT_CPU, SyncedHead.HEAD_AT_GPU, SyncedHead.SYNCED

# state x call -> action, new state. The code below does what this table says and decides nothing itself.
TABLE = {
    # from            UNINITIALIZED         HEAD_AT_CPU          HEAD_AT_GPU          SYNCED
    CPU_DATA:         ((ZERO_HOST, CPU),    (KEEP, CPU),         (TO_HOST, BOTH),     (KEEP, BOTH)),
    MUTABLE_CPU_DATA: ((ZERO_HOST, CPU),    (KEEP, CPU),         (TO_HOST, CPU),      (KEEP, CPU)),
    GPU_DATA:         ((ZERO_DEVICE, GPU),  (TO_DEVICE, BOTH),   (KEEP, GPU),         (KEEP, BOTH)),
    MUTABLE_GPU_DATA: ((ZERO_DEVICE, GPU),  (TO_DEVICE, GPU),    (KEEP, GPU),         (KEEP, GPU)),
    SET_CPU_DATA:     ((ADOPT_HOST, CPU),   (ADOPT_HOST, CPU),   (ADOPT_HOST, CPU),   (ADOPT_HOST, CPU)),
    SET_GPU_DATA:     ((ADOPT_DEVICE, GPU), (ADOPT_DEVICE, GPU), (ADOPT_DEVICE, GPU), (ADOPT_DEVICE, GPU)),
    SET_CPU_COPY:     ((REFUSE, NONE),      (REFUSE, CPU),       (ADOPT_HOST, BOTH),  (ADOPT_HOST, BOTH)),
    ASYNC_GPU_PUSH:   ((REFUSE, NONE),      (PUSH, BOTH),        (REFUSE, GPU),       (REFUSE, BOTH)),
}

cdef struct Step:
    Action action
    SyncedHead head
    bint idle           # neither action nor a new head: the fast path

cdef Step[CALLS][STATES] steps      # TABLE for the C compiler
for _call, _row in TABLE.items():
    for _state, (_action, _head) in enumerate(_row):
        steps[<int>_call][<int>_state] = Step(_action, _head, _action == KEEP and _state == _head)

cdef Reporter _reporter = reporter

# The launches of one operation share the stream's scratch memory, and a graph that is recorded takes in whatever anyone
# launches; a copy changes which side is valid. So threads take turns, an operation or a copy at a time.
device_lock = threading.RLock()


cdef class DeviceSide:
    """Copy between the host and one device (abstract); its provider registers it with the allocator of the place.

    Addresses are integers, sizes bytes. All but `push` return when the bytes are there.
    """

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
        """Put in line a copy of `nbytes` from one device address to another; the host does not wait."""
        raise Error(f"{type(self).__name__} must override copy_within")

    cpdef push(self, size_t dst, size_t src, size_t nbytes, stream):
        """As `copy_to_device`, but only put in line on `stream`."""
        raise Error(f"{type(self).__name__} must override push")


cdef class SyncedMemory:
    """`size` bytes mirrored on host and device.

    Parameters
    ----------
    size : int
        Bytes, fixed for life.
    name : str
        What it serves (``conv1 data``), for the reporter.
    place : CUDAPlace, optional
        Of the device side; if None, ``memory.registry.device_place`` at the time when it is made.

    Attributes
    ----------
    head : SyncedHead
        Which side is valid.
    copies, bytes_copied : int
        Between the sides, so far, both ways.
    """

    def __cinit__(self, size_t size, str name="", place=None):
        self.size = size
        self._name = name
        self._place = place

    cdef const void* cpu_data_ptr(self) except? NULL:
        if not steps[<int>CPU_DATA][<int>self.head].idle:
            self.act(CPU_DATA, None)
        return self.host.ptr

    cdef void* mutable_cpu_data_ptr(self) except? NULL:
        if not steps[<int>MUTABLE_CPU_DATA][<int>self.head].idle:
            self.act(MUTABLE_CPU_DATA, None)
        return self.host.ptr

    cdef const void* gpu_data_ptr(self) except? NULL:
        if not steps[<int>GPU_DATA][<int>self.head].idle:
            self.act(GPU_DATA, None)
        return self.device.ptr

    cdef void* mutable_gpu_data_ptr(self) except? NULL:
        if not steps[<int>MUTABLE_GPU_DATA][<int>self.head].idle:
            self.act(MUTABLE_GPU_DATA, None)
        return self.device.ptr

    cpdef Buffer cpu_data(self):
        """Give the valid host side, to read."""
        self.cpu_data_ptr()
        return self.host.toreadonly()

    cpdef Buffer mutable_cpu_data(self):
        """Give the valid host side, to write; the device side becomes stale."""
        self.mutable_cpu_data_ptr()
        return self.host

    cpdef Buffer gpu_data(self):
        """Give the valid device side, to read."""
        self.gpu_data_ptr()
        return self.device.toreadonly()

    cpdef Buffer mutable_gpu_data(self):
        """Give the valid device side, to write; the host side becomes stale."""
        self.mutable_gpu_data_ptr()
        return self.device

    cpdef set_cpu_data(self, source):
        """Take the memory of `source` as the host side; it is kept alive and never freed.

        Parameters
        ----------
        source : object with the buffer protocol
            Contiguous, writable, exactly `size` bytes.

        Raises
        ------
        ConfigError
            If `source` is none of that.
        """
        self.act(SET_CPU_DATA, self.wrapped(source, "set_cpu_data"))

    cpdef set_cpu_copy(self, source):
        """Take the memory of `source`, which holds what the device side holds, as the host side: both are valid then.

        Raises
        ------
        ConfigError
            As `set_cpu_data`, and if the device side is not valid.
        """
        self.act(SET_CPU_COPY, self.wrapped(source, "set_cpu_copy"))

    cdef Buffer wrapped(self, source, str call):
        """Wrap the memory of `source` for `call`."""
        cdef Py_buffer view
        try:
            owner = memoryview(source)      # holds the export, so that a bytearray cannot be resized
            PyObject_GetBuffer(owner, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
        except (TypeError, ValueError, BufferError) as error:
            raise self.wrong(call, f"needs contiguous writable memory, got {type(source).__name__}: {error}")
        cdef void* ptr = view.buf
        cdef size_t nbytes = view.len
        PyBuffer_Release(&view)             # `owner` has its own hold
        if nbytes != self.size or ptr == NULL:
            raise self.wrong(call, f"needs {self.size} bytes, got {nbytes}")
        return foreign_buffer(ptr, nbytes, CPUPlace(), owner, self._name)

    cpdef set_gpu_data(self, size_t address, owner=None):
        """Take `size` bytes at device `address` as the device side; `owner` is kept alive, the memory never freed."""
        if address == 0:
            raise self.wrong("set_gpu_data", "needs a device address, got 0")
        self.act(SET_GPU_DATA, foreign_buffer(<void*>address, self.size, self.place, owner, self._name))

    cpdef async_gpu_push(self, stream):
        """Put the copy of the host side to the device on `stream`; wait for the stream before using the device side.

        Raises
        ------
        ConfigError
            Unless the head is HEAD_AT_CPU.
        """
        self.act(ASYNC_GPU_PUSH, stream)

    cdef int act(self, int call, argument) except -1:
        """Do what TABLE says; a failure leaves head and sides as they were."""
        with device_lock:
            self.carry_out(call, argument)
        return 0

    cdef int carry_out(self, int call, argument) except -1:
        cdef Step step = steps[call][<int>self.head]     # another thread may have been here meanwhile
        cdef Buffer side
        cdef str change
        if step.action == ZERO_HOST:
            side = self.new_host()
            with nogil:
                memset(side.ptr, 0, side.nbytes)
            self.host = side
        elif step.action == ZERO_DEVICE:
            side = self.new_device()
            self.side.zero(<size_t>side.ptr, self.size)
            self.device = side
        elif step.action == TO_HOST:
            side = self.host if self.host is not None else self.new_host()
            self.side.copy_to_host(<size_t>side.ptr, <size_t>self.device.ptr, self.size)
            self.host = side
            self.count_copy(side, "device to host")
        elif step.action == TO_DEVICE or step.action == PUSH:
            side = self.device if self.device is not None else self.new_device()
            if step.action == TO_DEVICE:
                self.side.copy_to_device(<size_t>side.ptr, <size_t>self.host.ptr, self.size)
            else:
                self.side.push(<size_t>side.ptr, <size_t>self.host.ptr, self.size, argument)
            self.device = side
            self.count_copy(side, "host to device")
        elif step.action == ADOPT_HOST:
            self.host = argument
        elif step.action == ADOPT_DEVICE:
            self.find_side()
            self.device = argument
        elif step.action == REFUSE:
            remedy = "write through mutable_cpu_data first" if call == ASYNC_GPU_PUSH else "write through mutable_gpu_data first"
            raise self.wrong(Call(call).name.lower(), f"has nothing to do in state {SyncedHead(self.head).name}; {remedy}")
        if _reporter.recording and step.head != self.head:
            change = f"{SyncedHead(self.head).name} -> {SyncedHead(step.head).name} by {Call(call).name.lower()}"
            self.head = step.head
            _reporter.event("head", self.place, 0, self.size, self._name, change)
        self.head = step.head
        return 0

    cdef int count_copy(self, Buffer target, str direction) except -1:
        self.copies += 1
        self.bytes_copied += self.size
        if _reporter.recording:
            _reporter.event("copy", target.place, <size_t>target.ptr, self.size, self._name, direction)
        return 0

    cdef Buffer new_host(self):
        return Buffer(registry.allocator(registry.host_place), self.size, self._name)

    cdef Buffer new_device(self):
        self.find_side()
        return Buffer(registry.allocator(self.place), self.size, self._name)

    cdef int find_side(self) except -1:
        if self.side is None:
            self._place = self.place
            self.side = registry.device_side(self._place)
        return 0

    cdef wrong(self, str call, str message):
        return ConfigError(f"SyncedMemory.{call} {message}", field=self._name or None)

    @property
    def place(self):
        """CUDAPlace: of the device side; until there is one, the place where it would be made now."""
        return registry.device_place if self._place is None else self._place

    @property
    def name(self):
        """str: what it serves; its blocks carry the name, too."""
        return self._name

    @name.setter
    def name(self, str name not None):
        self._name = name
        for side in (self.host, self.device):
            if side is not None:
                (<Buffer>side).name = name

    @property
    def own_cpu_data(self):
        """bool: is there a host side that we allocated?"""
        return self.host is not None and self.host.allocator is not None

    @property
    def own_gpu_data(self):
        """bool: is there a device side that we allocated?"""
        return self.device is not None and self.device.allocator is not None

    def __repr__(self):
        return f"<SyncedMemory {self._name!r} {self.size:,} bytes, {SyncedHead(self.head).name}>"

    def __reduce__(self):
        raise WrongTypeError("a SyncedMemory cannot be copied or pickled: it is a place, not a value; "
                             "copy a NumPy view of it")
