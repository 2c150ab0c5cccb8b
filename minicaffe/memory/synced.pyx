"""SyncedMemory: one piece of memory mirrored on host and device (Caffe ``syncedmem.cpp``).

Memory is allocated and copied on first access. The head is the state that says which side is valid; `TABLE` defines the action
of each call in each state. Unlike Caffe's, a block outlives its SyncedMemory while a view refers to it, an invalid call raises
instead of ending the process, and copies are counted. Several threads may use one object (docs/threads.md): a call that
changes anything holds `device_lock`. A pointer is valid until the side gets other memory.

An engine may store the array in its own order (memory/layout.pyx): the private side, on the host or on the device. A call for a
plain side reorders, which is counted. A view of the plain side may be read and written at any time; so while a view exists,
private data is not assumed to be current (`plain_has_view`).
"""

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from libc.string cimport memset

from minicaffe.device.context cimport current_gpu
from minicaffe.kernels.types cimport BF16
from minicaffe.memory.arguments cimport bytes_of
from minicaffe.memory.buffer cimport Buffer, foreign_buffer
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.reporter cimport Reporter

import threading

from minicaffe.errors import ConfigError, Error, RecycledError, WrongDeviceError, check_type
from minicaffe.memory.place import CPUPlace
from minicaffe.memory.registry import registry
from minicaffe.memory.reporter import reporter

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* o)


cpdef enum Action:
    KEEP            # nothing to do
    ZERO_HOST       # fill the host side with zeros; allocate it if there is none
    ZERO_DEVICE
    TO_HOST         # copy device to host; allocate the host side if there is none
    TO_DEVICE       # copy host to device; allocate the device side if there is none
    PUSH            # TO_DEVICE on a stream, which the caller waits for
    FILL_DEVICE     # copy another memory's device side to the device side; allocate that if there is none
    ADOPT_HOST      # take foreign memory as the host side
    ADOPT_DEVICE
    ZERO_PRIVATE    # fill the private side with zeros, which are zeros in any layout; allocate it if there is none
    TO_PRIVATE      # reorder the plain side on the same device to private; allocate the private side if there is none
    TO_PLAIN        # reorder private to the plain side on the same device; allocate that if there is none
    TAKE_PRIVATE    # allocate the private side if there is none; its contents are undefined
    VIA_HOST        # do CPU_DATA first, then the action of this call in the new state
    VIA_DEVICE      # the same with GPU_DATA
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
    COPY_ON_DEVICE
    PRIVATE_DATA
    MUTABLE_PRIVATE_DATA
    OVERWRITE_PRIVATE_DATA
    GPU_PRIVATE_DATA            # the same three for layouts of devices
    MUTABLE_GPU_PRIVATE_DATA
    OVERWRITE_GPU_PRIVATE_DATA

cdef enum:
    STATES = 9
    CALLS = 15
    TO_DEVICE_CALL = 3          # offset from a call for a private side on the host to the one on the device

NONE, CPU, GPU, BOTH = SyncedHead.UNINITIALIZED, SyncedHead.HEAD_AT_CPU, SyncedHead.HEAD_AT_GPU, SyncedHead.SYNCED
OWN, HOST = SyncedHead.HEAD_AT_PRIVATE, SyncedHead.SYNCED_PRIVATE
GPU_OWN, DEVICE, GONE = SyncedHead.HEAD_AT_GPU_PRIVATE, SyncedHead.SYNCED_GPU_PRIVATE, SyncedHead.RECYCLED

# state x call -> action, new state. All decisions are in this table; the code below only executes it. A conversion between two
# private layouts, or between host and device, goes through a plain side (`change_layout`).
TABLE = {
    # from            UNINITIALIZED         HEAD_AT_CPU          HEAD_AT_GPU          SYNCED
    #                 HEAD_AT_PRIVATE       SYNCED_PRIVATE       HEAD_AT_GPU_PRIVATE  SYNCED_GPU_PRIVATE   RECYCLED
    CPU_DATA:         ((ZERO_HOST, CPU),    (KEEP, CPU),         (TO_HOST, BOTH),     (KEEP, BOTH),
                       (TO_PLAIN, HOST),    (KEEP, HOST),        (VIA_DEVICE, BOTH),  (TO_HOST, BOTH),     (REFUSE, GONE)),
    MUTABLE_CPU_DATA: ((ZERO_HOST, CPU),    (KEEP, CPU),         (TO_HOST, CPU),      (KEEP, CPU),
                       (TO_PLAIN, CPU),     (KEEP, CPU),         (VIA_DEVICE, CPU),   (TO_HOST, CPU),      (REFUSE, GONE)),
    GPU_DATA:         ((ZERO_DEVICE, GPU),  (TO_DEVICE, BOTH),   (KEEP, GPU),         (KEEP, BOTH),
                       (VIA_HOST, BOTH),    (TO_DEVICE, BOTH),   (TO_PLAIN, DEVICE),  (KEEP, DEVICE),      (REFUSE, GONE)),
    MUTABLE_GPU_DATA: ((ZERO_DEVICE, GPU),  (TO_DEVICE, GPU),    (KEEP, GPU),         (KEEP, GPU),
                       (VIA_HOST, GPU),     (TO_DEVICE, GPU),    (TO_PLAIN, GPU),     (KEEP, GPU),         (REFUSE, GONE)),
    SET_CPU_DATA:     ((ADOPT_HOST, CPU),) * 9,
    SET_GPU_DATA:     ((ADOPT_DEVICE, GPU),) * 9,
    SET_CPU_COPY:     ((REFUSE, NONE),      (REFUSE, CPU),       (ADOPT_HOST, BOTH),  (ADOPT_HOST, BOTH),
                       (REFUSE, OWN),       (REFUSE, HOST),      (VIA_DEVICE, BOTH),  (ADOPT_HOST, BOTH),  (REFUSE, GONE)),
    ASYNC_GPU_PUSH:   ((REFUSE, NONE),      (PUSH, BOTH),        (REFUSE, GPU),       (REFUSE, BOTH),
                       (VIA_HOST, BOTH),    (PUSH, BOTH),        (REFUSE, GPU_OWN),   (REFUSE, DEVICE),    (REFUSE, GONE)),
    COPY_ON_DEVICE:   ((FILL_DEVICE, GPU),) * 9,
    PRIVATE_DATA:     ((ZERO_PRIVATE, OWN), (TO_PRIVATE, HOST),  (VIA_HOST, HOST),    (TO_PRIVATE, HOST),
                       (KEEP, OWN),         (KEEP, HOST),        (VIA_HOST, HOST),    (VIA_HOST, HOST),    (REFUSE, GONE)),
    MUTABLE_PRIVATE_DATA: (
                      (ZERO_PRIVATE, OWN),  (TO_PRIVATE, OWN),   (VIA_HOST, OWN),     (TO_PRIVATE, OWN),
                      (KEEP, OWN),          (KEEP, OWN),         (VIA_HOST, OWN),     (VIA_HOST, OWN),     (REFUSE, GONE)),
    OVERWRITE_PRIVATE_DATA: (
                      (TAKE_PRIVATE, OWN),  (TAKE_PRIVATE, OWN), (TAKE_PRIVATE, OWN), (TAKE_PRIVATE, OWN),
                      (KEEP, OWN),          (KEEP, OWN),         (TAKE_PRIVATE, OWN), (TAKE_PRIVATE, OWN), (REFUSE, GONE)),
    GPU_PRIVATE_DATA: ((ZERO_PRIVATE, GPU_OWN), (VIA_DEVICE, DEVICE), (TO_PRIVATE, DEVICE), (TO_PRIVATE, DEVICE),
                       (VIA_DEVICE, DEVICE), (VIA_DEVICE, DEVICE), (KEEP, GPU_OWN), (KEEP, DEVICE),        (REFUSE, GONE)),
    MUTABLE_GPU_PRIVATE_DATA: (
                      (ZERO_PRIVATE, GPU_OWN), (VIA_DEVICE, GPU_OWN), (TO_PRIVATE, GPU_OWN), (TO_PRIVATE, GPU_OWN),
                      (VIA_DEVICE, GPU_OWN), (VIA_DEVICE, GPU_OWN), (KEEP, GPU_OWN), (KEEP, GPU_OWN),      (REFUSE, GONE)),
    OVERWRITE_GPU_PRIVATE_DATA: (
                      (TAKE_PRIVATE, GPU_OWN), (TAKE_PRIVATE, GPU_OWN), (TAKE_PRIVATE, GPU_OWN), (TAKE_PRIVATE, GPU_OWN),
                      (TAKE_PRIVATE, GPU_OWN), (TAKE_PRIVATE, GPU_OWN), (KEEP, GPU_OWN), (KEEP, GPU_OWN),  (REFUSE, GONE)),
}

cdef struct TableEntry:
    Action action
    SyncedHead head
    bint idle           # neither action nor a new head: the fast path

cdef TableEntry[CALLS][STATES] steps      # TABLE for the C compiler
for _call, _row in TABLE.items():
    for _state, (_action, _head) in enumerate(_row):
        steps[<int>_call][<int>_state] = TableEntry(_action, _head, _action == KEEP and _state == _head)

cdef Reporter _reporter = reporter
cdef list HEADS = [SyncedHead(_state).name for _state in range(STATES)]
cdef list CALL_NAMES = [Call(_call).name.lower() for _call in range(CALLS)]
SyncedHead.__str__ = lambda self: self.name     # that of an int enum gives the number

# The launches of one operation share the stream's scratch memory, a graph capture records launches of all threads, and a copy
# changes which side is valid. So threads run one operation or copy at a time.
device_lock = threading.RLock()


cdef class DeviceSide:
    """Copy between the host and one device (abstract); its provider registers it with the allocator of the place.

    Addresses are integers, sizes bytes. `copy_to_device` and `copy_to_host` return when the copy is complete.
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
        """Queue a copy of `nbytes` from one device address to another; the host does not wait."""
        raise Error(f"{type(self).__name__} must override copy_within")

    cpdef copy_from_peer(self, Buffer dst, Buffer src, size_t nbytes, DeviceSide source):
        """As `copy_within`, from a block of another device, whose side is `source`."""
        raise Error(f"{type(self).__name__} must override copy_from_peer")

    cpdef push(self, Buffer dst, Buffer src, size_t nbytes, stream, bint fresh):
        """Queue a copy on `stream`, between blocks of which one is on this device; neither is reused before it is done.

        With `fresh` the copy waits for the device's queued work: its last owner may still use a newly allocated block there.
        """
        raise Error(f"{type(self).__name__} must override push")

    cpdef int device_of(self, size_t address) except? -1:
        """Return the number of the GPU on which `address` is; -1 if unknown."""
        return -1

    cpdef size_t stream(self) except 0:
        """Return the address of the device's computing `CudaStream`, ready for launches by the calling thread."""
        raise Error(f"{type(self).__name__} must override stream")

    cpdef admit(self, str name, Buffer block):
        """Raise WrongDeviceError if the current GPU may not use memory of this one; otherwise synchronize their streams.

        `name` is that of the memory, `block` the memory, None if it is not allocated yet.
        """


cdef class SyncedMemory:
    """`size` bytes mirrored on host and device.

    Parameters
    ----------
    size : int
        Bytes; constant.
    name : str
        Its purpose (``conv1 data``), for the reporter.
    place : CUDAPlace, optional
        Of the device side; None: ``memory.registry.device_place`` when the side is created.

    Attributes
    ----------
    head : SyncedHead
        Which side is valid.
    copies, bytes_copied : int
        Number so far: between the sides, both directions, and from other device sides to this one's.
    reorders : int
        Number so far: between plain and private layouts.
    """

    def __cinit__(self, size, name="", place=None):
        self.size = bytes_of(size, "size")
        self._name = name if type(name) is str else check_type(name, str, "name", "a str")
        self._place = place
        self.gpu = -1

    cdef const void* cpu_data_ptr(self) except? NULL nogil:
        if not steps[<int>CPU_DATA][<int>self.head].idle:
            self.execute_locked(CPU_DATA, None)
        return self.host.ptr

    cdef void* mutable_cpu_data_ptr(self) except? NULL nogil:
        if not steps[<int>MUTABLE_CPU_DATA][<int>self.head].idle:
            self.execute_locked(MUTABLE_CPU_DATA, None)
        return self.host.ptr

    cdef const void* gpu_data_ptr(self) except? NULL nogil:
        if self.gpu != current_gpu:
            self.use_on_device(GPU_DATA)
        elif not steps[<int>GPU_DATA][<int>self.head].idle:
            self.execute_locked(GPU_DATA, None)
        return self.device.ptr

    cdef void* mutable_gpu_data_ptr(self) except? NULL nogil:
        if self.gpu != current_gpu:
            self.use_on_device(MUTABLE_GPU_DATA)
        elif not steps[<int>MUTABLE_GPU_DATA][<int>self.head].idle:
            self.execute_locked(MUTABLE_GPU_DATA, None)
        return self.device.ptr

    cdef const void* private_data_ptr(self, Layout layout) except? NULL nogil:
        if not self.ready(PRIVATE_DATA, layout):
            self.prepare_private(PRIVATE_DATA, layout)
        return self.private_side.ptr

    cdef void* mutable_private_data_ptr(self, Layout layout) except? NULL nogil:
        if not self.ready(MUTABLE_PRIVATE_DATA, layout):
            self.prepare_private(MUTABLE_PRIVATE_DATA, layout)
        return self.private_side.ptr

    cdef void* overwrite_private_data_ptr(self, Layout layout) except? NULL nogil:
        if not self.ready(OVERWRITE_PRIVATE_DATA, layout):
            # If the array is smaller than the memory, the bytes after it must not be overwritten.
            self.prepare_private(OVERWRITE_PRIVATE_DATA if layout.plain_nbytes == self.size else MUTABLE_PRIVATE_DATA, layout)
        return self.private_side.ptr

    cdef bint ready(self, int call, Layout layout) noexcept nogil:
        """Whether `call`, given as the one for the host, needs no action for the private side in `layout`."""
        if self.private_layout is not layout or layout.on_device and self.gpu != current_gpu:
            return False
        return steps[call + TO_DEVICE_CALL * layout.on_device][<int>self.head].idle

    cpdef int show_private(self) except -1:
        """End a write begun by `mutable_private_data` or `overwrite_private_data`: update the plain side if it has a view."""
        if self.head in (HEAD_AT_PRIVATE, HEAD_AT_GPU_PRIVATE) and self.plain_has_view():
            with device_lock:
                self.make_plain_only("show_private")
        return 0

    cdef int make_plain_only(self, str why) except -1:
        """Make the plain side on the private side's device the only valid one."""
        if self.head == HEAD_AT_PRIVATE or self.head == HEAD_AT_GPU_PRIVATE:
            self.execute(CPU_DATA if self.head == HEAD_AT_PRIVATE else GPU_DATA, None)
        if self.head == SYNCED_PRIVATE or self.head == SYNCED_GPU_PRIVATE:
            self.set_head(HEAD_AT_CPU if self.head == SYNCED_PRIVATE else HEAD_AT_GPU, why)
        return 0

    def clear(self, nbytes, bint on_device=False):
        """Set all to zeros if `nbytes` is the size and only one side, on the host, is valid; return whether that was done.

        The zeros are written at the next access, or not at all if that overwrites everything (`claim_lazy_zeros`). With `on_device`
        the side does not matter, but it is done only if that was called since the last time: otherwise the caller had better fill
        all memories by one launch.
        """
        cdef size_t size = bytes_of(nbytes, "nbytes")
        cdef bint claimed
        with device_lock:
            if on_device and self.head != UNINITIALIZED:
                claimed, self.claimed = self.claimed, False
                if not claimed or size != self.size or self.gpu != current_gpu or held(<PyObject*>self.device):
                    return False
                self.set_head(UNINITIALIZED, "clear")
                return True
            if self.overwritten:
                return False
            whole = size == self.size and (self.head == HEAD_AT_CPU
                                             or self.head == HEAD_AT_PRIVATE and self.private_layout.plain_nbytes == self.size)
            if not whole or self.has_external_view():
                return self.head == UNINITIALIZED
            self.set_head(UNINITIALIZED, "clear")
        return True

    cpdef int drop_plain(self) except -1:
        """Free the plain side if the private side has the same values and no view refers to the plain one."""
        if self.layout() is None or self.plain_side() is None:
            return 0
        with device_lock:
            if self.layout() is not None and self.private_layout.dtype != BF16 and self.private_layout.plain_nbytes == self.size \
                    and not self.plain_has_view():
                if self.private_layout.on_device:
                    self.device = None
                else:
                    self.host = None
                self.set_head(HEAD_AT_GPU_PRIVATE if self.private_layout.on_device else HEAD_AT_PRIVATE, "drop_plain")
        return 0

    def drop_host(self):
        """Free the host side if only a side on the device is valid, so that a later copy to the host goes to new memory."""
        with device_lock:
            if self.head in (HEAD_AT_GPU, HEAD_AT_GPU_PRIVATE, SYNCED_GPU_PRIVATE):
                self.host = None

    cpdef bint claim_lazy_zeros(self, bint on_device=False, Layout layout=None) except -1:
        """Return whether all is zeros that are not written yet; if so, the caller must now overwrite all of it.

        `layout` is the one in which it does, None for the plain side. A private side is taken by `overwrite_private_data_ptr`.
        """
        with device_lock:
            self.claimed = True
            if self.head != UNINITIALIZED:
                return False
            if layout is None and on_device:
                if self.device is None:
                    self.device = self.new_device()
                self.set_head(HEAD_AT_GPU, "claim_lazy_zeros")
            elif layout is None:
                if self.host is None:
                    self.host = self.new_host()
                self.set_head(HEAD_AT_CPU, "claim_lazy_zeros")
        return True

    cdef int free_private(self) except -1:
        """Keep the values on the plain side only and free the private one: a reshape calls this, as its layout is for one shape."""
        with device_lock:
            self.make_plain_only("free_private")
            self.private_side = self.private_layout = None
        return 0

    def exchange_private(self, other):
        """Swap private sides with another memory that has the same layout; these are then the only valid ones."""
        if not isinstance(other, SyncedMemory):
            check_type(other, SyncedMemory, "other", "a SyncedMemory")
        cdef SyncedMemory memory = other
        with device_lock:
            if self.private_side is None or memory.private_side is None or self.private_layout != memory.private_layout:
                raise self.config_error("exchange_private", f"needs a memory whose private side has the same layout, got {other!r}")
            self.private_side, memory.private_side = memory.private_side, self.private_side
            head = HEAD_AT_GPU_PRIVATE if self.private_layout.on_device else HEAD_AT_PRIVATE
            self.set_head(head, "exchange_private")
            memory.set_head(head, "exchange_private")
            self.private_side.name, memory.private_side.name = self._name, memory._name

    cpdef bint recycle(self) except -1:
        """Free the blocks of all sides, unless another object refers to one; reading and writing raise until `renew`.

        Returns
        -------
        bool
            Whether they were freed.
        """
        with device_lock:
            if held(<PyObject*>self.host) or held(<PyObject*>self.device):
                return False
            self.host = self.device = self.private_side = self.private_layout = None
            self.set_head(RECYCLED, "recycle")
        return True

    cpdef renew(self):
        """Make the memory usable after `recycle`, for a caller that overwrites all of it."""
        if self.head == RECYCLED:
            self.set_head(UNINITIALIZED, "renew")

    cpdef Layout layout(self):
        """Return the layout of the private side if that is valid and not scaled, else None: plain."""
        cdef bint valid = HEAD_AT_PRIVATE <= self.head <= SYNCED_GPU_PRIVATE
        return self.private_layout if valid and not self.private_layout.scaled else None

    cdef bint has_external_view(self) noexcept:
        """Whether a view refers to the host side, so that it may be read or written at any time."""
        return held(<PyObject*>self.host)

    cdef Buffer plain_side(self):
        """Return the plain side on the private side's device, or None."""
        return self.device if self.private_layout.on_device else self.host

    cdef bint plain_has_view(self) noexcept:
        """Whether a view refers to the plain side on the private side's device."""
        if self.private_layout.on_device:
            return held(<PyObject*>self.device)
        return held(<PyObject*>self.host)

    def device_state(self):
        """Return (head, address of the plain block, address of the private block) on the device, 0 for none; None if recycled.

        Not the blocks themselves: a reference to a block would count as a view (`held`).
        """
        return None if self.head == RECYCLED else (self.head, address_of(self.device), address_of(self.private_block_on_device()))

    cdef Buffer private_block_on_device(self):
        """Return the private side if it is on the device, else None."""
        return self.private_side if self.private_layout is not None and self.private_layout.on_device else None

    cdef bint has_same_blocks(self, tuple state) except -1:
        """Whether the blocks of a `device_state` are still those of this memory."""
        _, device, private = state
        return device in (0, address_of(self.device)) and private in (0, address_of(self.private_block_on_device()))

    cdef bint make_device_only(self, tuple state) except -1:
        """Make the side on the device, if there is one, the only valid one; return whether its block is that of `state`.

        With a `device_state`, it is the side that was valid then; otherwise the private side if that is valid, or was valid before
        the host accessed the array.
        """
        cdef size_t own = address_of(self.private_block_on_device())
        cdef bint private = HEAD_AT_GPU_PRIVATE <= self.head <= SYNCED_GPU_PRIVATE
        if state is None:
            private = private or own and self.head in (HEAD_AT_CPU, SYNCED)
        elif self.head != RECYCLED and (state[2] == own or state[1] and not state[2]):     # not exchanged since
            private = own and state[0] == HEAD_AT_GPU_PRIVATE
        if private:
            self.mutable_private_data_ptr(self.private_layout)
        elif self.device is not None or HEAD_AT_GPU_PRIVATE <= self.head <= SYNCED_GPU_PRIVATE:
            self.mutable_gpu_data_ptr()
        return private or self.has_same_plain_block(state)

    cdef bint has_same_plain_block(self, tuple state) except -1:
        """Whether the plain block of a `device_state` is still that of this memory; True for None."""
        return state is None or state[1] in (0, address_of(self.device))

    cdef int restore_head(self, tuple state) except -1:
        """Restore the head of a `device_state`: after a CUDA graph wrote or converted a side on the device, or after a failed
        recording."""
        cdef SyncedHead head = state[0]
        if (HEAD_AT_GPU_PRIVATE <= head <= SYNCED_GPU_PRIVATE or HEAD_AT_GPU_PRIVATE <= self.head <= SYNCED_GPU_PRIVATE) \
                and head != self.head and self.head != RECYCLED and self.has_same_blocks(state):
            self.set_head(head, "a CUDA graph")
        return self.show_private()

    def blocks_on_device(self):
        """Return the list of its blocks on the device."""
        return [block for block in (self.device, self.private_block_on_device()) if block is not None]

    cdef int prepare_private(self, int call, Layout layout) except -1 with gil:
        """Do `call` for the private side in `layout`."""
        cdef bint elsewhere = layout.on_device and current_gpu >= 0 and self.gpu != current_gpu
        with device_lock:
            if layout.plain_nbytes > self.size:
                raise self.config_error(Call(call).name.lower(), f"has {self.size} bytes, the layout needs {layout.plain_nbytes}")
            if elsewhere:
                self.use_on_device(-1)
            if self.private_layout is not layout and self.private_layout != layout:
                self.change_layout(call, layout)
            call += TO_DEVICE_CALL * layout.on_device
            if not steps[call][<int>self.head].idle:
                self.execute(call, None)
            if self.head in (SYNCED_PRIVATE, SYNCED_GPU_PRIVATE) and self.plain_has_view():
                self.make_plain_only("a view")    # the private side is current for this call only: the view may be written
            if elsewhere and self.gpu != current_gpu:
                self.side.admit(self._name, self.private_side)
        return 0

    cdef int change_layout(self, int call, Layout layout) except -1:
        """Change the private side's layout; it stays valid if it was the only valid side and a direct conversion exists."""
        cdef Buffer block
        cdef long long began
        cdef bint same = self.private_layout is not None and layout.on_device == self.private_layout.on_device
        if self.head in (HEAD_AT_PRIVATE, HEAD_AT_GPU_PRIVATE) and (same or call == OVERWRITE_PRIVATE_DATA):
            block = self.new_private(layout)
            began = _reporter.clock()
            if call == OVERWRITE_PRIVATE_DATA:
                self.clear_block(block, layout, False)
            elif layout.from_layout(<size_t>block.ptr, self.private_layout, <size_t>self.private_side.ptr):
                self.count_reorder(block, f"{self.private_layout.name} to {layout.name}", began)
            else:
                block = None
            if block is not None:
                self.private_side, self.private_layout = block, layout
                if not same:
                    self.set_head(HEAD_AT_GPU_PRIVATE if layout.on_device else HEAD_AT_PRIVATE, CALL_NAMES[call])
                return 0
        self.make_plain_only("another layout")
        self.private_side, self.private_layout = None, layout
        return 0

    def private_data(self, layout):
        """Return the private side in `layout`, for reading."""
        check_type(layout, Layout, "layout", "a Layout")
        self.private_data_ptr(layout)
        return self.private_side.toreadonly()

    def mutable_private_data(self, layout):
        """Return the private side in `layout`, for reading and writing; the plain sides are then stale."""
        check_type(layout, Layout, "layout", "a Layout")
        self.mutable_private_data_ptr(layout)
        return self.private_side

    def overwrite_private_data(self, layout):
        """Return the private side in `layout`, with undefined contents, to be overwritten; the plain sides are then stale."""
        check_type(layout, Layout, "layout", "a Layout")
        self.overwrite_private_data_ptr(layout)
        return self.private_side

    cpdef Buffer cpu_data(self):
        """Return the valid host side, for reading."""
        self.cpu_data_ptr()
        return self.host.toreadonly()

    cpdef Buffer mutable_cpu_data(self):
        """Return the valid host side, for writing; the device side becomes stale."""
        self.mutable_cpu_data_ptr()
        return self.host

    cpdef Buffer gpu_data(self):
        """Return the valid device side, for reading."""
        self.gpu_data_ptr()
        return self.device.toreadonly()

    cpdef Buffer mutable_gpu_data(self):
        """Return the valid device side, for writing; the host side becomes stale."""
        self.mutable_gpu_data_ptr()
        return self.device

    def set_cpu_data(self, source):
        """Use the memory of `source` as the host side; it is kept alive and never freed.

        Parameters
        ----------
        source : object with the buffer protocol
            Contiguous, writable, exactly `size` bytes.

        Raises
        ------
        ConfigError
            If `source` does not meet these conditions.
        """
        self.execute_locked(SET_CPU_DATA, self.wrapped(source, "set_cpu_data"))

    def set_cpu_copy(self, source):
        """Use the memory of `source`, which must have the values of the device side, as the host side: both are valid then.

        Raises
        ------
        ConfigError
            As `set_cpu_data`, and if the device side is not valid.
        """
        self.execute_locked(SET_CPU_COPY, self.wrapped(source, "set_cpu_copy"))

    cdef Buffer wrapped(self, source, str call):
        """Wrap the memory of `source` for `call`."""
        cdef Py_buffer view
        try:
            owner = memoryview(source)      # keeps the export, so that a bytearray cannot be resized
            PyObject_GetBuffer(owner, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
        except (TypeError, ValueError, BufferError) as error:
            raise self.config_error(call, f"needs contiguous writable memory, got {type(source).__name__}: {error}")
        cdef void* ptr = view.buf
        cdef size_t nbytes = view.len
        PyBuffer_Release(&view)             # `owner` has an export of its own
        if nbytes != self.size or ptr == NULL:
            raise self.config_error(call, f"needs {self.size} bytes, got {nbytes}")
        return foreign_buffer(ptr, nbytes, CPUPlace(), owner, self._name)

    def set_gpu_data(self, address, owner=None):
        """Use `size` bytes at device `address` as the device side; `owner` is kept alive, the memory never freed."""
        if address == 0:
            raise self.config_error("set_gpu_data", "needs a device address, got 0")
        cdef size_t start = bytes_of(address, "address")
        with device_lock:
            place = self.place
            gpu = registry.device_side(place).device_of(start)
            if gpu >= 0 and gpu != place.device:
                if self._place is not None:
                    raise WrongDeviceError(f"SyncedMemory.set_gpu_data: {start:#x} is memory of GPU {gpu}, this memory's device "
                                           f"side is on GPU {place.device}; give memory of that one", field=self._name or None)
                place = type(place)(gpu)
            if current_gpu >= 0:
                registry.device_side(place).admit(self._name, None)
            self._place = place
            self.execute_locked(SET_GPU_DATA, foreign_buffer(<void*>start, self.size, place, owner, self._name))

    def async_gpu_push(self, stream):
        """Queue the copy of the host side to the device on `stream`; wait for the stream before using the device side.

        Dropping the memory is always safe: the stream is recorded with the allocators of both blocks, and foreign memory is kept
        until the copy is done. Before either side is used, make the computing stream wait for an event of the stream, or
        the host for the stream. As in Caffe, this is not done automatically.

        Raises
        ------
        ConfigError
            Unless the head is HEAD_AT_CPU.
        WrongDeviceError
            If the memory is on another GPU than the current one, or the stream than the memory.
        """
        self.use_on_device(-1)
        self.execute_locked(ASYNC_GPU_PUSH, stream)

    def copy_on_device(self, source, nbytes):
        """Copy the first `nbytes` of `source`, device side to device side, also from another GPU; the host does not wait.

        Raises
        ------
        ConfigError
            If either has fewer bytes, or both are the same.
        WrongDeviceError
            If this memory is on another GPU than the current one.
        """
        if not isinstance(source, SyncedMemory):
            check_type(source, SyncedMemory, "source", "a SyncedMemory")
        cdef SyncedMemory other = source
        cdef size_t size = bytes_of(nbytes, "nbytes")
        if size > min(self.size, other.size) or other is self:
            raise self.config_error("copy_on_device", f"cannot copy {nbytes} bytes here ({self.size} bytes) from {source!r}")
        with device_lock:
            if size < self.size:
                self.mutable_gpu_data_ptr()     # the rest stays
            else:
                self.use_on_device(-1)
            if not steps[<int>GPU_DATA][<int>other.head].idle:
                other.execute_locked(GPU_DATA, None)
            self.execute_locked(COPY_ON_DEVICE, (other, size))

    cdef int use_on_device(self, int call) except -1 with gil:
        """Do `call` (-1: nothing) if the device side may be on another GPU than the current one, which must have peer access."""
        self.init_device_side()
        cdef bint elsewhere = current_gpu >= 0 and self.gpu != current_gpu
        if elsewhere:
            self.side.admit(self._name, None)
        if call >= 0 and not steps[call][<int>self.head].idle:
            self.execute_locked(call, None)
        if elsewhere and self.device is not None:
            self.side.admit(self._name, self.device)
        return 0

    cdef int execute_locked(self, int call, argument) except -1 with gil:
        """Execute the action of TABLE; a failure leaves head and sides unchanged."""
        with device_lock:
            self.execute(call, argument)
        return 0

    cdef int execute(self, int call, argument) except -1:
        cdef SyncedHead head
        cdef TableEntry step
        cdef Buffer host, device, private, side
        cdef SyncedMemory source
        cdef long long began
        # Read before written.
        cdef bint zeros = not self.overwritten or call in (CPU_DATA, GPU_DATA, PRIVATE_DATA, GPU_PRIVATE_DATA)
        cdef size_t stream = 0
        while True:
            # Read the state here, as another thread may have changed it; and again if the allocator ran code that changed it.
            head, host, device, private = self.head, self.host, self.device, self.private_side
            step = steps[call][<int>head]
            if step.action == VIA_HOST or step.action == VIA_DEVICE:
                self.execute(CPU_DATA if step.action == VIA_HOST else GPU_DATA, None)
                continue
            side = self.block_for(step.action)
            if head == self.head and host is self.host and device is self.device and private is self.private_side:
                break
        began = _reporter.clock()
        if step.action == ZERO_HOST:
            if zeros:
                with nogil:
                    memset(side.ptr, 0, side.nbytes)
            self.host = side
        elif step.action == ZERO_DEVICE:
            if zeros:
                self.side.zero(<size_t>side.ptr, self.size)
            self.device = side
        elif step.action == TO_HOST:
            self.side.copy_to_host(<size_t>side.ptr, <size_t>self.device.ptr, self.size)
            self.host = side
            self.count_copy(side, self.size, "device to host", began)
        elif step.action == TO_DEVICE or step.action == PUSH:
            if step.action == TO_DEVICE:
                self.side.copy_to_device(<size_t>side.ptr, <size_t>self.host.ptr, self.size)
            else:
                self.side.push(side, self.host, self.size, argument, device is None)
            self.device = side
            self.count_copy(side, self.size, "host to device", began)
        elif step.action == FILL_DEVICE:
            source, nbytes = argument
            if source.side is self.side:
                self.side.copy_within(<size_t>side.ptr, <size_t>source.device.ptr, nbytes)
            else:
                self.side.copy_from_peer(side, source.device, nbytes, source.side)
            self.device = side
            self.count_copy(side, nbytes, "device to device" if source.side is self.side else "device to peer", began)
        elif step.action == ADOPT_HOST:
            self.host = argument
        elif step.action == ADOPT_DEVICE:
            self.init_device_side()
            self.device = argument
        elif step.action == ZERO_PRIVATE or (step.action == TAKE_PRIVATE and private is None):
            self.clear_block(side, self.private_layout, step.action == ZERO_PRIVATE and zeros)
            if step.action == ZERO_PRIVATE and self.private_layout.plain_nbytes < self.size and self.plain_side() is not None:
                if self.private_layout.on_device:   # what lies behind the part is zeros, too, and `clear` leaves what was there
                    self.side.zero(<size_t>self.device.ptr, self.size)
                else:
                    memset(self.host.ptr, 0, self.size)
            self.private_side = side
        elif step.action == TO_PRIVATE:
            stream = self.side.stream() if self.private_layout.on_device else 0
            self.private_layout.from_plain(<size_t>side.ptr, <size_t>self.plain_side().ptr, stream)
            self.private_side = side
            self.count_reorder(side, f"plain to {self.private_layout.name}", began)
        elif step.action == TO_PLAIN:
            if self.plain_side() is None and self.private_layout.plain_nbytes < self.size:
                if self.private_layout.on_device:
                    self.side.zero(<size_t>side.ptr, self.size)
                else:
                    memset(side.ptr, 0, side.nbytes)
            stream = self.side.stream() if self.private_layout.on_device else 0
            self.private_layout.to_plain(<size_t>side.ptr, <size_t>private.ptr, stream)
            if self.private_layout.on_device:
                self.device = side
            else:
                self.host = side
            self.count_reorder(side, f"{self.private_layout.name} to plain", began)
        elif step.action == REFUSE and self.head == RECYCLED:
            blob, _, part = self._name.rpartition(" ")
            keep = "" if blob.endswith("]") else f"with keep=['{blob}'], or "       # `keep` does not apply to parameters
            raise RecycledError(f"the {part} of blob '{blob}' is gone: after net.release() run forward first; in a net with a plan "
                                f"the memory is reused: make the net {keep}without a plan")
        elif step.action == REFUSE:
            remedy = "write through mutable_cpu_data first" if call == ASYNC_GPU_PUSH else "write through mutable_gpu_data first"
            raise self.config_error(Call(call).name.lower(), f"has nothing to do in state {SyncedHead(self.head).name}; {remedy}")
        return self.set_head(step.head, CALL_NAMES[call])

    cdef int set_head(self, SyncedHead head, str why) except -1:
        """Set the head, and report the change."""
        cdef SyncedHead before = self.head
        self.head = head
        if _reporter.recording and head != before:
            _reporter.event("head", self.place, <size_t><void*>self, self.size, self._name,
                            f"{HEADS[<int>before]} -> {HEADS[<int>head]} by {why}")
        return 0

    cdef Buffer block_for(self, int action):
        """Return the block that `action` writes, a new one if there is none."""
        cdef bint to_device = action == TO_PLAIN and self.private_layout.on_device
        if action in (ZERO_HOST, TO_HOST, TO_PLAIN) and not to_device:
            return self.new_host() if self.host is None else self.host
        if to_device or action in (ZERO_DEVICE, TO_DEVICE, PUSH, FILL_DEVICE):
            return self.new_device() if self.device is None else self.device
        if action in (ZERO_PRIVATE, TO_PRIVATE, TAKE_PRIVATE):
            return self.new_private(self.private_layout) if self.private_side is None else self.private_side
        return None

    cdef int count_copy(self, Buffer target, size_t nbytes, str direction, long long began) except -1:
        self.copies += 1
        self.bytes_copied += nbytes
        if _reporter.recording:
            _reporter.event("copy", target.place, <size_t>target.ptr, nbytes, self._name, direction, _reporter.clock() - began)
        return 0

    cdef int count_reorder(self, Buffer target, str direction, long long began) except -1:
        self.reorders += 1
        if _reporter.recording:
            _reporter.event("reorder", target.place, <size_t>target.ptr, target.nbytes, self._name, direction,
                            _reporter.clock() - began)
        return 0

    cdef Buffer new_private(self, Layout layout):
        if layout.on_device:
            self.init_device_side()
            return Buffer(registry.allocator(self.place), layout.nbytes, self._name)
        return Buffer(registry.allocator(CPUPlace()) if self.pool is None else self.pool, layout.nbytes, self._name)

    cdef Buffer new_host(self):
        place = registry.host_place
        pooled = self.pool is not None and place == self.pool.place     # page-locked memory has a cache of its own
        return Buffer(self.pool if pooled else registry.allocator(place), self.size, self._name)

    cdef Buffer new_device(self):
        self.init_device_side()
        return Buffer(registry.allocator(self.place), self.size, self._name)

    cdef int clear_block(self, Buffer block, Layout layout, bint whole) except -1:
        """Fill a private block with zeros if `whole`, or if it has padding in this layout, which is always zero."""
        cdef size_t as_plain = layout.nbytes * (2 if layout.dtype == BF16 else 1)
        if layout.on_device:
            if whole:
                self.side.zero(<size_t>block.ptr, layout.nbytes)
        elif whole or as_plain > layout.plain_nbytes:
            with nogil:
                memset(block.ptr, 0, block.nbytes)
        return 0

    cdef int init_device_side(self) except -1:
        if self.side is None:
            self._place = self.place
            self.side = registry.device_side(self._place)
            self.gpu = self._place.device
        return 0

    cdef config_error(self, str call, str message):
        return ConfigError(f"SyncedMemory.{call} {message}", field=self._name or None)

    @property
    def place(self):
        """CUDAPlace: of the device side; if there is none, the place where it would be created now."""
        return registry.device_place if self._place is None else self._place

    @property
    def name(self):
        """str: its purpose, which is also the name of its blocks."""
        return self._name

    @name.setter
    def name(self, str name not None):
        self._name = name
        for side in (self.host, self.device, self.private_side):
            if side is not None:
                (<Buffer>side).name = name

    @property
    def own_cpu_data(self):
        """bool: whether there is a host side that was allocated here."""
        return self.host is not None and self.host.allocator is not None

    @property
    def own_gpu_data(self):
        """bool: whether there is a device side that was allocated here."""
        return self.device is not None and self.device.allocator is not None

    def __repr__(self):
        return f"<SyncedMemory {self._name!r} {self.size:,} bytes, {SyncedHead(self.head).name}>"


cdef size_t address_of(Buffer block) noexcept:
    return 0 if block is None else <size_t>block.ptr


cdef bint held(PyObject* block) noexcept:
    """Whether a view refers to a block (or None), or it is foreign memory: it may be read or written at any time."""
    return block != <PyObject*>None and (Py_REFCNT(block) > 1 or (<Buffer>block).allocator is None)
