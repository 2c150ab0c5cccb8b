"""SyncedMemory: one piece of memory mirrored on host and device (Caffe ``syncedmem.cpp``).

Memory is allocated and copied on first access. The head is the state that says which side is valid; `TABLE` (memory/states.pyx)
defines the action of each call in each state. Unlike Caffe's, a block outlives its SyncedMemory while a view refers to it, an
invalid call raises instead of ending the process, and copies are counted. Several threads may use one object (docs/threads.md): a
call that changes anything holds `device_lock`. A pointer is valid until the side gets other memory.

An engine may store the array in its own order (memory/layout.pyx): the private side, on the host or on the device. A call for a
plain side reorders, which is counted. A view of the plain side may be read and written at any time; so while a view exists,
private data is not assumed to be current (`plain_has_view`).
"""

from libc.string cimport memset

from minicaffe.device.context cimport current_gpu
from minicaffe.kernels.types cimport BF16
from minicaffe.memory.allocator cimport bytes_of
from minicaffe.memory.buffer cimport Buffer, foreign_buffer, wrap_array
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.reporter cimport Reporter
from minicaffe.memory.states cimport (
    ADOPT_DEVICE, ADOPT_HOST, ASYNC_GPU_PUSH, CALLS, COPY_ON_DEVICE, CPU_DATA, FILL_DEVICE, GPU_DATA, GPU_PRIVATE_DATA, HEAD_AT_CPU,
    HEAD_AT_GPU, HEAD_AT_GPU_PRIVATE, HEAD_AT_PRIVATE, MUTABLE_CPU_DATA, MUTABLE_GPU_DATA, MUTABLE_PRIVATE_DATA,
    OVERWRITE_PRIVATE_DATA, PRIVATE_DATA, PUSH, RECYCLED, REFUSE, SET_CPU_COPY, SET_CPU_DATA, SET_GPU_DATA, STATES,
    SYNCED_GPU_PRIVATE, SYNCED_PRIVATE, TAKE_PRIVATE, TO_DEVICE, TO_DEVICE_CALL, TO_HOST, TO_PLAIN, TO_PRIVATE, UNINITIALIZED,
    VIA_DEVICE, VIA_HOST, ZERO_DEVICE, ZERO_HOST, ZERO_PRIVATE, SyncedHead, TableEntry, steps,
)

import threading

from minicaffe.errors import ConfigError, RecycledError, WrongDeviceError, check_type
from minicaffe.memory.place import CPUPlace
from minicaffe.memory.registry import registry
from minicaffe.memory.reporter import reporter
from minicaffe.memory.states import Call, SyncedHead as Head

cdef Reporter _reporter = reporter
cdef list HEADS = [Head(_state).name for _state in range(STATES)]
cdef list CALL_NAMES = [Call(_call).name.lower() for _call in range(CALLS)]

# The launches of one operation share the stream's scratch memory, a graph capture records launches of all threads, and a copy
# changes which side is valid. So threads run one operation or copy at a time.
device_lock = threading.RLock()


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

    # ---- Caffe's four calls, as pointers and as Buffers; an idle call takes no lock, and `gpu` is -1 before the device's first use

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

    # ---- the execution of a call

    cdef int use_on_device(self, int call) except -1 with gil:
        """Do `call` (-1: none) where the device side is new or on another GPU than the current one, which needs peer access."""
        self.init_device_side()
        cdef bint elsewhere = current_gpu >= 0 and self.gpu != current_gpu
        if elsewhere:
            self.side.check_peer_access(self._name, None)
        if call >= 0 and not steps[call][<int>self.head].idle:
            self.execute_locked(call, None)
        if elsewhere and self.device is not None:
            self.side.check_peer_access(self._name, self.device)
        return 0

    cdef int execute_locked(self, int call, argument) except -1 with gil:
        """As `execute`, with `device_lock`; a failure leaves head and sides unchanged."""
        with device_lock:
            self.execute(call, argument)
        return 0

    cdef int execute(self, int call, argument) except -1:
        """Execute the action of TABLE for `call`. `argument`: the stream of a push, (source, bytes) of a copy, or a new side."""
        cdef SyncedHead head
        cdef TableEntry step
        cdef Buffer host, device, private, block
        cdef SyncedMemory source
        cdef long long began
        # Whether new memory has to be zeros: it may be read before all of it was written.
        cdef bint zeros = not self.skip_zero_fill or call in (CPU_DATA, GPU_DATA, PRIVATE_DATA, GPU_PRIVATE_DATA)
        cdef size_t stream = 0
        while True:
            # Read the state here, as another thread may have changed it; and again if the allocator ran code that changed it.
            head, host, device, private = self.head, self.host, self.device, self.private_side
            step = steps[call][<int>head]
            if step.action == VIA_HOST or step.action == VIA_DEVICE:
                self.execute(CPU_DATA if step.action == VIA_HOST else GPU_DATA, None)
                continue
            block = self.block_for(step.action)
            if head == self.head and host is self.host and device is self.device and private is self.private_side:
                break
        began = _reporter.clock()
        if step.action == ZERO_HOST or step.action == ZERO_DEVICE:
            if zeros:
                self.fill_zeros(block, self.size)
            self.set_plain_side(block, step.action == ZERO_DEVICE)
        elif step.action == TO_HOST:
            self.side.copy_to_host(<size_t>block.ptr, <size_t>self.device.ptr, self.size)
            self.host = block
            self.count_copy(block, self.size, "device to host", began)
        elif step.action == TO_DEVICE or step.action == PUSH:
            if step.action == TO_DEVICE:
                self.side.copy_to_device(<size_t>block.ptr, <size_t>self.host.ptr, self.size)
            else:
                self.side.push(block, self.host, self.size, argument, device is None)
            self.device = block
            self.count_copy(block, self.size, "host to device", began)
        elif step.action == FILL_DEVICE:
            source, nbytes = argument
            if source.side is self.side:
                self.side.copy_within(<size_t>block.ptr, <size_t>source.device.ptr, nbytes)
            else:
                self.side.copy_from_peer(block, source.device, nbytes, source.side)
            self.device = block
            self.count_copy(block, nbytes, "device to device" if source.side is self.side else "device to peer", began)
        elif step.action == ADOPT_HOST:
            self.host = argument
        elif step.action == ADOPT_DEVICE:
            self.init_device_side()
            self.device = argument
        elif step.action == ZERO_PRIVATE or (step.action == TAKE_PRIVATE and private is None):
            self.clear_private(block, self.private_layout, step.action == ZERO_PRIVATE and zeros)
            if step.action == ZERO_PRIVATE and self.private_layout.plain_nbytes < self.size and self.plain_side() is not None:
                # What lies behind the part is zeros, too, and `mark_zero` leaves what was there.
                self.fill_zeros(self.plain_side(), self.size)
            self.private_side = block
        elif step.action == TO_PRIVATE:
            stream = self.side.stream() if self.private_layout.on_device else 0
            self.private_layout.from_plain(<size_t>block.ptr, <size_t>self.plain_side().ptr, stream)
            self.private_side = block
            self.count_reorder(block, f"plain to {self.private_layout.name}", began)
        elif step.action == TO_PLAIN:
            if self.plain_side() is None and self.private_layout.plain_nbytes < self.size:
                self.fill_zeros(block, self.size)
            stream = self.side.stream() if self.private_layout.on_device else 0
            self.private_layout.to_plain(<size_t>block.ptr, <size_t>private.ptr, stream)
            self.set_plain_side(block, self.private_layout.on_device)
            self.count_reorder(block, f"{self.private_layout.name} to plain", began)
        elif step.action == REFUSE and self.head == RECYCLED:
            blob, _, part = self._name.rpartition(" ")
            keep = "" if blob.endswith("]") else f"with keep=['{blob}'], or "       # `keep` does not apply to parameters
            raise RecycledError(f"the {part} of blob '{blob}' is gone: after net.release() run forward first; in a net with a plan "
                                f"the memory is reused: make the net {keep}without a plan")
        elif step.action == REFUSE:
            remedy = "write through mutable_cpu_data first" if call == ASYNC_GPU_PUSH else "write through mutable_gpu_data first"
            raise self.config_error(CALL_NAMES[call], f"has nothing to do in state {HEADS[<int>self.head]}; {remedy}")
        return self.set_head(step.head, CALL_NAMES[call])

    cdef Buffer block_for(self, int action):
        """Return the block of the side that `action` writes, a new one if there is none; None if it writes none."""
        cdef Layout layout = self.private_layout
        if action in (ZERO_PRIVATE, TO_PRIVATE, TAKE_PRIVATE):
            return self.new_private(layout) if self.private_side is None else self.private_side
        if action in (ZERO_DEVICE, TO_DEVICE, PUSH, FILL_DEVICE) or action == TO_PLAIN and layout.on_device:
            if self.device is None:
                self.init_device_side()
                return self.new_block(self.place, self.size)
            return self.device
        if action in (ZERO_HOST, TO_HOST, TO_PLAIN):
            return self.new_block(registry.host_place, self.size) if self.host is None else self.host
        return None

    cdef Buffer new_block(self, place, size_t nbytes):
        """Allocate a block for a side, from the pool of the plan if there is one."""
        pooled = self.pool is not None and place == self.pool.place     # page-locked memory has a cache of its own
        return Buffer(self.pool if pooled else registry.allocator(place), nbytes, self._name)

    cdef int fill_zeros(self, Buffer block, size_t nbytes) except -1:
        """Fill the first bytes of a block with zeros, where it is: Caffe's blobs are zeros until they are written."""
        if block.place.on_host:
            with nogil:
                memset(block.ptr, 0, nbytes)
        else:
            self.side.zero(<size_t>block.ptr, nbytes)

    cdef int set_head(self, SyncedHead head, str why) except -1:
        """Set the head, and report the change as an event; `why` is the name of the call."""
        cdef SyncedHead before = self.head
        self.head = head
        if _reporter.recording and head != before:
            _reporter.event("head", self.place, <size_t><void*>self, self.size, self._name,
                            f"{HEADS[<int>before]} -> {HEADS[<int>head]} by {why}")

    cdef int count_copy(self, Buffer target, size_t nbytes, str direction, long long began) except -1:  # `began`: `clock`
        self.copies += 1
        self.bytes_copied += nbytes
        if _reporter.recording:
            _reporter.event("copy", target.place, <size_t>target.ptr, nbytes, self._name, direction, _reporter.clock() - began)

    cdef int init_device_side(self) except -1:
        """Set `gpu` and `side`, its DeviceSide, at the first use of the device side, which stays on this GPU."""
        if self.side is None:
            self._place = self.place
            self.side = registry.device_side(self._place)
            self.gpu = self._place.device

    cdef config_error(self, str call, str message):     # returns the error, to be raised
        return ConfigError(f"SyncedMemory.{call} {message}", field=self._name or None)

    # ---- memory and values from elsewhere

    def set_cpu_data(self, source):
        """Use the memory of `source` as the host side; the Buffer keeps `source` alive, which owns it.

        Parameters
        ----------
        source : object with the buffer protocol
            Contiguous, writable, exactly `size` bytes.

        Raises
        ------
        ConfigError
            If `source` does not meet these conditions.
        """
        self.execute_locked(SET_CPU_DATA, wrap_array(source, self.size, "SyncedMemory.set_cpu_data", self._name))

    def set_cpu_copy(self, source):
        """Use the memory of `source`, which has the values of the device side, as the host side: both are valid then.

        Raises
        ------
        ConfigError
            As `set_cpu_data`, and if the device side is not valid.
        """
        self.execute_locked(SET_CPU_COPY, wrap_array(source, self.size, "SyncedMemory.set_cpu_copy", self._name))

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
                registry.device_side(place).check_peer_access(self._name, None)
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

    # ---- the end of the memory, and what else refers to it

    cpdef bint recycle(self) except -1:
        """Free all sides after the last use of their values, unless a view refers to one; reading and writing raise until `renew`.

        Returns
        -------
        bool
            Whether they were freed.
        """
        with device_lock:
            if is_shared(<PyObject*>self.host) or is_shared(<PyObject*>self.device):
                return False
            self.host = self.device = self.private_side = self.private_layout = None
            self.set_head(RECYCLED, "recycle")
        return True

    cpdef renew(self):
        """Make the memory usable after `recycle`, for a caller that overwrites all of it."""
        if self.head == RECYCLED:
            self.set_head(UNINITIALIZED, "renew")

    def drop_host(self):
        """Free the host side if only a device side is valid, so that a later copy goes to new memory; for `Blob.take_pushed`."""
        with device_lock:
            if self.head in (HEAD_AT_GPU, HEAD_AT_GPU_PRIVATE, SYNCED_GPU_PRIVATE):
                self.host = None

    cdef bint has_external_view(self) noexcept:
        """Whether a view refers to the host side, so that it may be read or written at any time."""
        return is_shared(<PyObject*>self.host)

    def blocks_on_device(self):
        """Return the list of its blocks on the device, which a recorded CUDA graph keeps alive."""
        return [block for block in (self.device, self.private_block_on_device()) if block is not None]

    # ---- the private side, as pointers for `Blob.data_in_layout` and its like, and as Buffers

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
            self.prepare_private(OVERWRITE_PRIVATE_DATA if layout.plain_nbytes >= self.size else MUTABLE_PRIVATE_DATA, layout)
        return self.private_side.ptr

    cdef bint ready(self, int call, Layout layout) noexcept nogil:
        """Return whether `call`, always the one for the host, needs no action for the private side in `layout`."""
        if self.private_layout is not layout or layout.on_device and self.gpu != current_gpu:
            return False
        return steps[call + TO_DEVICE_CALL * layout.on_device][<int>self.head].idle

    cdef int prepare_private(self, int call, Layout layout) except -1 with gil:
        """Do `call`, the one for the host, for the private side in `layout`, which may be on the host or the device."""
        cdef bint elsewhere = layout.on_device and current_gpu >= 0 and self.gpu != current_gpu
        with device_lock:
            if layout.plain_nbytes > self.size:
                raise self.config_error(CALL_NAMES[call], f"has {self.size} bytes, the layout needs {layout.plain_nbytes}")
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
                self.side.check_peer_access(self._name, self.private_side)
        return 0

    cdef int change_layout(self, int call, Layout layout) except -1:
        """Change the private side's layout: convert it directly if only this side is valid, else make it plain and free it."""
        cdef Buffer block
        cdef long long began
        cdef bint same = self.private_layout is not None and layout.on_device == self.private_layout.on_device
        if self.head in (HEAD_AT_PRIVATE, HEAD_AT_GPU_PRIVATE) and (same or call == OVERWRITE_PRIVATE_DATA):
            block = self.new_private(layout)
            began = _reporter.clock()
            if call == OVERWRITE_PRIVATE_DATA:
                self.clear_private(block, layout, False)
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

    cpdef int publish_private(self) except -1:
        """Update the plain side if it has a view, after a write to the private side: `Layer.finish_forward` and others call it."""
        if self.head in (HEAD_AT_PRIVATE, HEAD_AT_GPU_PRIVATE) and self.plain_has_view():
            with device_lock:
                self.make_plain_only("publish_private")
        return 0

    cdef int make_plain_only(self, str why) except -1:
        """Make the plain side on the private side's device the only valid one."""
        if self.head == HEAD_AT_PRIVATE or self.head == HEAD_AT_GPU_PRIVATE:
            self.execute(CPU_DATA if self.head == HEAD_AT_PRIVATE else GPU_DATA, None)
        if self.head == SYNCED_PRIVATE or self.head == SYNCED_GPU_PRIVATE:
            self.set_head(HEAD_AT_CPU if self.head == SYNCED_PRIVATE else HEAD_AT_GPU, why)
        return 0

    cpdef int drop_plain(self) except -1:
        """Free the plain side of a parameter, after forward, if the private side has the same values and it has no view."""
        with device_lock:
            if self.layout() is None or self.plain_side() is None:
                return 0
            if self.private_layout.dtype != BF16 and self.private_layout.plain_nbytes == self.size and not self.plain_has_view():
                self.set_plain_side(None, self.private_layout.on_device)
                self.set_head(HEAD_AT_GPU_PRIVATE if self.private_layout.on_device else HEAD_AT_PRIVATE, "drop_plain")
        return 0

    cdef int free_private(self) except -1:
        """Keep the values on the plain side only and free the private one: a reshape calls this, as its layout is for one shape."""
        with device_lock:
            self.make_plain_only("free_private")
            self.private_side = self.private_layout = None
        return 0

    cdef int free_scaled(self) except -1:
        """Free the private side if an engine computed it from the plain one (`Layout.scaled`): `Layer.release_memory` calls it."""
        return self.free_private() if self.private_layout is not None and self.private_layout.scaled else 0

    def exchange_private(self, other):
        """Swap private sides with another memory of the same layout, in place of a copy; these are then the only valid sides."""
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

    cpdef Layout layout(self):
        """Return the layout of the private side if that is valid and not scaled, else None: the order that a reader should use."""
        cdef bint valid = HEAD_AT_PRIVATE <= self.head <= SYNCED_GPU_PRIVATE
        return self.private_layout if valid and not self.private_layout.scaled else None

    cdef Buffer plain_side(self):
        """Return the plain side on the private side's device, or None."""
        return self.device if self.private_layout.on_device else self.host

    cdef void set_plain_side(self, Buffer block, bint on_device) noexcept:      # the caller sets the head
        if on_device:
            self.device = block
        else:
            self.host = block

    cdef bint plain_has_view(self) noexcept:
        """Whether a view refers to the plain side on the private side's device."""
        return is_shared(<PyObject*>self.device if self.private_layout.on_device else <PyObject*>self.host)

    cdef Buffer private_block_on_device(self):
        """Return the private side if it is on the device, else None."""
        return self.private_side if self.private_layout is not None and self.private_layout.on_device else None

    cdef Buffer new_private(self, Layout layout):   # its contents are undefined
        if layout.on_device:
            self.init_device_side()
        return self.new_block(self.place if layout.on_device else CPUPlace(), layout.nbytes)

    cdef int clear_private(self, Buffer block, Layout layout, bint whole) except -1:
        """Fill a private block with zeros if `whole`, or if it has padding in this layout, which must be zero."""
        cdef size_t as_plain = layout.nbytes * (2 if layout.dtype == BF16 else 1)       # BF16 is for float32 arrays
        if whole or as_plain > layout.plain_nbytes and not layout.on_device:
            self.fill_zeros(block, layout.nbytes)

    cdef int count_reorder(self, Buffer target, str direction, long long began) except -1:
        self.reorders += 1
        if _reporter.recording:
            _reporter.event("reorder", target.place, <size_t>target.ptr, target.nbytes, self._name, direction,
                            _reporter.clock() - began)

    # ---- properties

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
        """bool: whether there is a host side that was allocated here, not foreign memory (Caffe's own_cpu_data_)."""
        return self.host is not None and self.host.allocator is not None

    @property
    def own_gpu_data(self):
        """bool: whether there is a device side that was allocated here."""
        return self.device is not None and self.device.allocator is not None

    def __repr__(self):
        return f"<SyncedMemory {self._name!r} {self.size:,} bytes, {HEADS[<int>self.head]}>"


cdef bint is_shared(PyObject* block) noexcept:
    """Return whether a view refers to a Buffer (or None), or it is foreign memory: it may be read or written at any time."""
    return block != <PyObject*>None and (Py_REFCNT(block) > 1 or (<Buffer>block).allocator is None)
