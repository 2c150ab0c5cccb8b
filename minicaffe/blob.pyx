"""Blob: an N-dimensional array with two equally sized memories, `data` and `diff` (Caffe blob.hpp, blob.cpp).

Memory is allocated on first access, and replaced only if a reshape needs more than the capacity. Different from Caffe: what
aborted there raises here, a NumPy view keeps its memory alive after the blob grew or was deleted, and a blob of a running net keeps
shape and memory until its thread changes them (docs/threads.md).
"""

import numpy as np

from minicaffe.blob_arithmetic cimport check_arithmetic, scale, subtract, total
from minicaffe.device.context cimport Context, context, on_device, settle
from minicaffe.kernels.types cimport item_size, kTypes, numpy_name
from minicaffe.loops.strided.caffe cimport fill_typed
from minicaffe.memory.buffer cimport Buffer, this_thread
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.states cimport HEAD_AT_CPU
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.memory.zeros cimport claim_lazy_zeros, mark_zero
from minicaffe.shape cimport Shaped, checked_count

from minicaffe.device.strided import DeviceArray, HasDeviceArray
from minicaffe.errors import BusyError, ShapeError, WrongTypeError, check_message, check_type, float_of, int_of, shown
from minicaffe.memory.sizes import check_bytes
from minicaffe.memory.copy import packed_array
from minicaffe.proto.binary_writer import bytes_of
from minicaffe.proto.stored import StoredBlob, parse_blob
from minicaffe.shape import checked_shape

NUMPY_TYPES = tuple(np.dtype(numpy_name(dtype).decode()) for dtype in range(kTypes))   # by Dtype


cdef class Blob(Shaped):
    """An array of `shape` with data and diff.

    Parameters
    ----------
    shape : sequence of int
        Sizes of 0 to 32 axes, each at least 0; ``()`` is a scalar of count 1. The product is at most 2**31 - 1. Without a
        shape a blob has no axes and count 0, as in Caffe, until it is reshaped.
    dtype : Dtype
        FLOAT (the default), DOUBLE or INT.
    name : str
        What memory reports call it.
    """

    def __cinit__(self, shape=None, dtype=FLOAT, name=""):
        self.dtype = checked_dtype(dtype)
        self.name = name if type(name) is str else check_type(name, str, "name", "a str")
        self.data_memory = _memory(self, 0, "data")
        self.diff_memory = _memory(self, 0, "diff")
        if shape is not None:
            self.reshape_to(shape)

    def __repr__(self):
        return f"<Blob '{self.name}' {self.shape_string()} {NUMPY_TYPES[self.dtype].name}>"

    # ---- shape

    def reshape(self, *dims):
        """Set the shape: integers (pycaffe Blob.reshape; none make a scalar), one sequence of them or a BlobShape message."""
        self.reshape_to(dims[0] if len(dims) == 1 and not isinstance(dims[0], (int, np.integer)) else dims)

    def reshape_to(self, shape):
        """Set the shape; contents are kept as long as the count does not exceed the capacity.

        Raises
        ------
        ShapeError
            For more than 32 axes, a negative size, more than 2**31 - 1 elements, or more bytes than the budget
            (memory/sizes.py); the blob stays as it was.
        """
        cdef long long dims[32]
        cdef int axis
        shape = checked_shape(shape)
        for axis in range(len(shape)):
            dims[axis] = shape[axis]
        self.resize(dims, len(shape))

    cdef int resize(self, const long long* dims, int num_axes) except -1:
        """As `reshape_to`, for compiled code that has checked `num_axes`, the length of `dims`."""
        cdef long long count = checked_count(dims, num_axes)
        if self.has_dims(dims, num_axes) and (num_axes or self.count):
            return 0
        cdef SyncedMemory data = self.data_memory, diff = self.diff_memory
        cdef size_t size = count * item_size(self.dtype)
        if size > data.size or size > diff.size:
            check_bytes(size, (f"blob '{self.name}'" if self.name else "a blob") +
                        f" of shape {[dims[i] for i in range(num_axes)]}")
        if size > data.size:    # each by itself: either may be shared with a smaller or larger blob
            data = _memory(self, size, "data")
        if size > diff.size:
            diff = _memory(self, size, "diff")
        self.check_idle()
        if data.private_side is not None or diff.private_side is not None:     # in layouts of the old shape
            data.free_private()
            diff.free_private()
            self.check_idle()
        # No other thread runs from here on, so that every reader finds a shape and memories that fit each other.
        self.set_dims(dims, num_axes, count)
        self.stamp += 1
        self.replace_memories(data, diff)

    @property
    def capacity(self):
        """int: how many elements a reshape can have without new memory."""
        return min(self.data_memory.size, self.diff_memory.size) // item_size(self.dtype)

    cpdef reshape_like(self, other):
        """Take the shape of another Blob, or none if nothing gave it one."""
        cdef Blob blob = checked_blob(other, "other")
        cdef long long[32] dims = blob.dims    # a copy, as another thread may reshape it
        if blob.num_axes or blob.count:
            self.resize(dims, blob.num_axes)
        elif self.num_axes or self.count:
            self.check_idle()
            self.set_dims(NULL, 0, 0)
            self.stamp += 1

    def data_at(self, *index):
        """Return one value of the data, given by indices as for `offset` (Caffe ``data_at``)."""
        return _at(self, self.data_memory, self.offset(*index))

    def diff_at(self, *index):
        """Return one value of the gradient, given by indices as for `offset` (Caffe ``diff_at``)."""
        return _at(self, self.diff_memory, self.offset(*index))

    # ---- memory

    cdef void begin_use(self, unsigned long long thread) noexcept:
        """Forbid all threads but `thread` to change shape or memories until `end_use`: it has pointers to them (net/lock.pyx)."""
        self.user = thread if self.uses == 0 or self.user == thread else 0
        self.uses += 1

    cdef void end_use(self) noexcept:       # one for each `begin_use`
        self.uses -= 1

    cdef int check_idle(self) except -1:
        """Raise BusyError if another thread uses the blob (`begin_use`); called before a change of shape or memories."""
        if self.uses and self.user != this_thread():
            raise BusyError(f"{f'blob {self.name!r}' if self.name else 'a blob'} cannot get another shape or memory now: another "
                            "thread computes with it; change it inside `with net.lock:`, or give each thread a net of its own")

    cdef void replace_memories(self, SyncedMemory data, SyncedMemory diff) noexcept:
        """Replace both memories; the old ones are freed when the new ones are in place, as freeing may release the GIL."""
        _old_data, _old_diff = self.data_memory, self.diff_memory
        self.data_memory, self.diff_memory = data, diff

    def release(self, bint gone=False):
        """Free data and diff, which take memory of the present size on first access; views that were taken before keep the old one.

        Parameters
        ----------
        gone : bool
            True: reading the data raises RecycledError until a layer writes them. False: they are zeros. The diff is zeros in both
            cases: only backward, or the caller, writes it.
        """
        cdef size_t size = self.count * item_size(self.dtype)
        self.check_idle()
        self.replace_memories(_memory(self, size, "data"), _memory(self, size, "diff"))
        self.stamp += 1
        if gone:
            self.data_memory.recycle()

    # ---- pointers, for layers. `on.stream` is NULL on the CPU; the SyncedMemory copies to that side what is not valid there. An
    # engine's Layout orders the elements in a private side; None is plain. `overwrite_`: the old contents are lost (blob.pxd)

    cdef const void* cpu_data_ptr(self) except? NULL nogil:    # to read on the host; Caffe's cpu_data()
        return self.data_memory.cpu_data_ptr()

    cdef void* mutable_cpu_data_ptr(self) except? NULL nogil:    # to read and write; the device's is stale then
        return self.data_memory.mutable_cpu_data_ptr()

    cdef const void* cpu_diff_ptr(self) except? NULL nogil:    # the gradient, as `cpu_data_ptr`
        return self.diff_memory.cpu_data_ptr()

    cdef void* mutable_cpu_diff_ptr(self) except? NULL nogil:
        return self.diff_memory.mutable_cpu_data_ptr()

    cdef const void* data_on(self, const Context& on) except? NULL nogil:    # to read where `on` computes
        return self.data_memory.cpu_data_ptr() if on.stream == NULL else self.data_memory.gpu_data_ptr()

    cdef void* mutable_data_on(self, const Context& on) except? NULL nogil:    # to read and write; the other side is stale then
        return self.data_memory.mutable_cpu_data_ptr() if on.stream == NULL else self.data_memory.mutable_gpu_data_ptr()

    cdef const void* diff_on(self, const Context& on) except? NULL nogil:    # the gradient, as `data_on`
        return self.diff_memory.cpu_data_ptr() if on.stream == NULL else self.diff_memory.gpu_data_ptr()

    cdef void* mutable_diff_on(self, const Context& on) except? NULL nogil:
        return self.diff_memory.mutable_cpu_data_ptr() if on.stream == NULL else self.diff_memory.mutable_gpu_data_ptr()

    cdef const void* data_in_layout(self, const Context& on, Layout layout) except? NULL nogil:    # to read in `layout`
        return self.data_on(on) if layout is None else self.data_memory.private_data_ptr(layout)

    cdef void* mutable_data_in_layout(self, const Context& on, Layout layout) except? NULL nogil:    # to read and write
        return self.mutable_data_on(on) if layout is None else self.data_memory.mutable_private_data_ptr(layout)

    cdef void* overwrite_data_in_layout(self, const Context& on, Layout layout) except? NULL nogil:    # to write all of it
        return self.mutable_data_on(on) if layout is None else self.data_memory.overwrite_private_data_ptr(layout)

    cdef int wrote_data(self) except -1:    # ends a write in a layout: updates a plain view, if there is one
        return self.data_memory.publish_private()

    cdef const void* diff_in_layout(self, const Context& on, Layout layout) except? NULL nogil:    # as of the data
        return self.diff_on(on) if layout is None else self.diff_memory.private_data_ptr(layout)

    cdef void* mutable_diff_in_layout(self, const Context& on, Layout layout) except? NULL nogil:
        return self.mutable_diff_on(on) if layout is None else self.diff_memory.mutable_private_data_ptr(layout)

    cdef void* overwrite_diff_in_layout(self, const Context& on, Layout layout) except? NULL nogil:
        return self.mutable_diff_on(on) if layout is None else self.diff_memory.overwrite_private_data_ptr(layout)

    cdef void* gradient_on(self, const Context& on, Layout layout, bint* add) except? NULL:
        """Return the address for a parameter's gradient; *add, an output: add to it; False: overwrite all, it is unset zeros."""
        add[0] = (self.diff_memory.size != <size_t> (self.count * item_size(self.dtype))
                  or not claim_lazy_zeros(self.diff_memory, on.stream != NULL, layout))
        return self.mutable_diff_in_layout(on, layout) if add[0] else self.overwrite_diff_in_layout(on, layout)

    cdef int wrote_diff(self) except -1:    # as `wrote_data`
        return self.diff_memory.publish_private()

    def layout_of_data(self):
        """Return the Layout in which an engine keeps the data now, None for plain order."""
        return self.data_memory.layout()

    def layout_of_diff(self):
        """Return the Layout in which an engine keeps the gradient now, None for plain order (inspection, gradient exchange)."""
        return self.diff_memory.layout()

    cdef int fill_data_on(self, const Context& on, double value) except -1:    # where `on` computes
        check_arithmetic(self.dtype)        # raises for INT
        if self.count:
            fill_typed(on, self.dtype, self.count, value, self.mutable_data_on(on))

    cdef int fill_diff_on(self, const Context& on, double value) except -1:    # on the CPU zeros are only marked, if possible
        check_arithmetic(self.dtype)
        if self.count == 0 or value == 0 and on.stream == NULL and mark_zero(self.diff_memory, self.count * item_size(self.dtype)):
            return 0        # zeros are written at the next access, or never if that overwrites them
        cdef Layout layout = self.diff_memory.layout() if value == 0 and on.stream != NULL else None
        if layout is None or not layout.on_device or layout.dtype != self.dtype:
            layout = None       # plain order; zeros on a device stay in its layout
        fill_typed(on, self.dtype, self.count, value, self.mutable_diff_in_layout(on, layout))

    def fill_diff(self, value):
        """Set the gradient to `value` where the present mode computes, on the CPU or the device."""
        cdef double number = float_of(value, "value")
        cdef Context on = context()
        self.begin_use(this_thread())
        try:
            self.fill_diff_on(on, number)
            settle(on)      # raises the error of a launch
        finally:
            self.end_use()

    # ---- views, for programs

    @property
    def data(self):
        """The values as a writable NumPy view; takes mutable CPU access, as in pycaffe: the device's values then count as old."""
        return _view(self, self.data_memory, True)

    @property
    def diff(self):
        """The gradient as a writable NumPy view; takes mutable CPU access, as in pycaffe."""
        return _view(self, self.diff_memory, True)

    @property
    def cpu_data(self):
        """The values as a read-only NumPy view; the device copy stays valid."""
        return _view(self, self.data_memory, False)

    @property
    def cpu_diff(self):
        """The gradient as a read-only NumPy view; the device copy stays valid."""
        return _view(self, self.diff_memory, False)

    @property
    def mutable_cpu_data(self):
        """The values as a writable NumPy view, as `data`; the device copy becomes stale."""
        return _view(self, self.data_memory, True)

    @property
    def mutable_cpu_diff(self):
        """The gradient as a writable NumPy view, as `diff`; the device copy becomes stale."""
        return _view(self, self.diff_memory, True)

    @property
    def gpu_data(self):
        """The values on the device to read, as a `DeviceArray`; the host copy stays valid."""
        return _device_array(self, self.data_memory, False)

    @property
    def gpu_diff(self):
        """The gradient on the device to read, as a `DeviceArray`; the host copy stays valid."""
        return _device_array(self, self.diff_memory, False)

    @property
    def mutable_gpu_data(self):
        """The values on the device to write, as a `DeviceArray`; the host copy becomes stale."""
        return _device_array(self, self.data_memory, True)

    @property
    def mutable_gpu_diff(self):
        """The gradient on the device to write, as a `DeviceArray`; the host copy becomes stale."""
        return _device_array(self, self.diff_memory, True)

    @property
    def _gpu_data_ptr(self):
        """The device address of the values, to write (pycaffe). It does not keep the memory alive; `mutable_gpu_data` does."""
        return self.mutable_gpu_data.address

    @property
    def _gpu_diff_ptr(self):
        """The address of the gradient on the device, to write (pycaffe)."""
        return self.mutable_gpu_diff.address

    @property
    def gpu_shape(self):
        """The shape as int32 on the device to read, as a `DeviceArray`; copied there at the first use (Caffe ``gpu_shape``)."""
        cdef SyncedMemory memory = self.shape_memory
        if memory is None or self.shape_stamp != self.stamp or memory.place != self.data_memory.place:
            shape, stamp = self.shape, self.stamp
            memory = _memory(self, 4 * len(shape), "shape", self.data_memory.place)
            memory.set_cpu_data(np.array(shape, np.int32))
            self.shape_memory, self.shape_stamp = memory, stamp
        buffer = memory.gpu_data()
        return DeviceArray(buffer.address, (memory.size // 4,), NUMPY_TYPES[INT], buffer, readonly=True)

    @property
    def __cuda_array_interface__(self):
        """dict: lets CuPy, PyTorch and Numba use the values on the device in place, so it takes mutable GPU access."""
        return self.mutable_gpu_data.__cuda_array_interface__

    # ---- memory and values from elsewhere

    def set_cpu_data(self, source):
        """Use the memory of `source`, a C-contiguous, writable array of the blob's type and count, as data, without a copy."""
        source = np.asarray(source)
        flags = source.flags
        if source.dtype != NUMPY_TYPES[self.dtype] or source.size != self.count or not (flags.c_contiguous and flags.writeable):
            raise ShapeError(f"set_cpu_data needs {self.count} contiguous, writable {NUMPY_TYPES[self.dtype].name} values, got "
                             f"{source.size} {'' if flags.c_contiguous else 'scattered '}{'' if flags.writeable else 'read-only '}"
                             f"of {source.dtype}")
        self.check_idle()
        self._fit_memory()
        cdef SyncedMemory memory = self.data_memory     # a reference, as another thread may replace it
        memory.set_cpu_data(source)

    def set_gpu_data(self, source, owner=None):
        """Use memory on the device as data, without a copy; it is kept alive and never freed.

        Parameters
        ----------
        source : object with ``__cuda_array_interface__``, or int
            C-contiguous, writable, of the blob's type and count; of an address nothing can be checked but its device.
        owner : object, optional
            Keeps the memory at an address alive.
        """
        if not isinstance(source, (int, np.integer)):
            array = packed_array(source, "set_gpu_data")
            if array.dtype != NUMPY_TYPES[self.dtype] or array.size != self.count or array.readonly:
                raise ShapeError(f"set_gpu_data needs {self.count} writable {NUMPY_TYPES[self.dtype].name} values, got "
                                 f"{array.size} {'read-only ' if array.readonly else ''}of {array.dtype}")
            if not array.size:      # mostly at address 0
                return
            source, owner = array.address, array
        self.check_idle()
        cdef SyncedMemory data = self.data_memory, diff = self.diff_memory
        self._fit_memory()
        cdef SyncedMemory memory = self.data_memory     # a reference, as in `set_cpu_data`
        try:
            memory.set_gpu_data(source, owner)
        except BaseException:       # memory of another GPU, or none: the values stay
            self.replace_memories(data, diff)
            raise

    def _fit_memory(self):
        """Take memory of exactly the count where it is larger, for data that come with memory of their own."""
        cdef size_t itemsize = item_size(self.dtype), size
        while self.data_memory.size != self.count * itemsize:
            size = self.count * itemsize
            data, diff = _memory(self, size, "data"), _memory(self, size, "diff")
            self.check_idle()
            if size == self.count * itemsize:   # another thread may have reshaped the blob
                self.stamp += 1
                self.replace_memories(data, diff)

    def take_pushed(self, source):
        """Copy the data of `source`, which `async_gpu_push` copies to the device, to this blob there; the host does not wait.

        `source` is a Blob of the same shape; it may be used for the next push as soon as the computing stream is past this
        copy. Its host side becomes that of this blob, without a copy; where this blob's memory is larger the blob has none
        afterwards.
        """
        cdef SyncedMemory memory = self.data_memory, pushed = checked_blob(source, "source").data_memory
        memory.copy_on_device(pushed, pushed.size)
        if memory.size == pushed.size:
            memory.set_cpu_copy(pushed.host)
        else:   # what it has may be of an earlier batch, and filled for a later one by now
            memory.drop_host()

    def async_gpu_push(self, stream):
        """Copy the data to the device on `stream` (minicaffe.cuda); the caller makes the computing stream wait for it."""
        self.data_memory.async_gpu_push(stream)

    cpdef share_data(self, other):
        """Use the data memory of another Blob, which must have the same count; the shapes may differ."""
        cdef Blob blob = checked_blob(other, "other")
        self._check_shareable(blob)
        if self.data_memory is not blob.data_memory:
            self.check_idle()
            self.stamp += 1
            self.replace_memories(blob.data_memory, self.diff_memory)

    cpdef share_diff(self, other):
        """Use the diff memory of another Blob, which must have the same count; the shapes may differ."""
        cdef Blob blob = checked_blob(other, "other")
        self._check_shareable(blob)
        if self.diff_memory is not blob.diff_memory:
            self.check_idle()
            self.stamp += 1
            self.replace_memories(self.data_memory, blob.diff_memory)

    def _check_shareable(self, Blob other not None):    # for share_data and share_diff
        if self.count != other.count or self.dtype != other.dtype:
            raise ShapeError(f"cannot share memory: {self.shape_string()} {NUMPY_TYPES[self.dtype].name} against "
                             f"{other.shape_string()} {NUMPY_TYPES[other.dtype].name}; count and type must agree")

    def copy_from(self, source, bint copy_diff=False, bint reshape=False):
        """Copy the data, or with `copy_diff` the diff, of a blob of the same shape and type (Caffe Blob::CopyFrom).

        In GPU mode the copy stays on the device, also from another GPU's; only what is current on the host alone is copied there.

        Raises
        ------
        ShapeError
            If the shapes differ, and `reshape` is false.
        WrongTypeError
            If the types differ, or `source` is not a Blob.
        """
        cdef Blob other = checked_blob(source, "source", "; to copy an array: blob.data[...] = array")
        if self.dtype != other.dtype:
            raise WrongTypeError(f"copy_from: the source is {NUMPY_TYPES[other.dtype].name}, this blob is "
                                 f"{NUMPY_TYPES[self.dtype].name}; convert it: blob.data[...] = source.cpu_data")
        if not self.same_shape(other):
            if not reshape:
                raise ShapeError(f"cannot copy {other.shape_string()} to {self.shape_string()}; pass reshape=True")
            self.reshape_like(other)
        cdef SyncedMemory target = self.diff_memory if copy_diff else self.data_memory
        cdef SyncedMemory origin = other.diff_memory if copy_diff else other.data_memory
        if target is origin or self.count == 0:
            return
        if on_device() and origin.head != HEAD_AT_CPU:
            target.copy_on_device(origin, self.count * item_size(self.dtype))
        else:
            _view(self, target, True)[...] = _view(other, origin, False)

    # ---- exchange

    def __array__(self, dtype=None, copy=None):    # for np.asarray(blob): a copy, unless copy=False
        return np.array(self.cpu_data, dtype=dtype, copy=copy is not False)

    def __dlpack__(self, **keywords):    # for from_dlpack of other frameworks: the host's data, without a copy
        return self.data.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return 1, 0  # kDLCPU, device 0: `__dlpack__` gives the host's side

    def to_proto(self, proto, bint write_diff=False):
        """Write shape and values to a BlobProto (float to `data`, double to `double_data`); legacy fields stay unset."""
        check_message(proto, "BlobProto", "proto")
        kind = np.float64 if self.dtype == DOUBLE else np.float32
        diff = self.cpu_diff.astype(kind, copy=False) if write_diff else None
        proto.ParseFromString(bytes_of(StoredBlob(self.shape, self.cpu_data.astype(kind, copy=False), diff)))
        return proto

    def from_proto(self, proto, bint reshape=True):
        """Take shape and values of a BlobProto, with legacy 4-D dimensions if it has them.

        Raises
        ------
        ShapeError
            If `reshape` is false and the shapes differ.
        DataError
            If the number of values is not the product of the shape, or no blob can have that shape.
        WrongTypeError
            If `proto` is not a BlobProto.
        """
        check_message(proto, "BlobProto", "proto")
        stored = parse_blob(proto.SerializeToString())
        if reshape:
            self.reshape_to(stored.shape)
        elif not self.shape_equals(stored.shape, stored.legacy):
            raise ShapeError(f"the stored shape is {list(stored.shape)}, the blob has {list(self.shape)}")
        self.data.reshape(-1)[:] = stored.data
        if stored.diff is not None:
            self.diff.reshape(-1)[:] = stored.diff

    # ---- arithmetic

    def update(self):
        """``data -= diff`` (Caffe Blob::Update)."""
        self.begin_use(this_thread())
        try:
            subtract(self.data_memory, self.diff_memory, self.dtype, self.count)
        finally:
            self.end_use()

    def asum_data(self):
        """Sum of absolute values of the data; 0 for memory that was never touched."""
        return total(self.data_memory, self.dtype, self.count, False)

    def asum_diff(self):
        """Sum of absolute values of the diff; 0 for memory that was never touched."""
        return total(self.diff_memory, self.dtype, self.count, False)

    def sumsq_data(self):
        """Sum of squares of the data; 0 for memory that was never touched."""
        return total(self.data_memory, self.dtype, self.count, True)

    def sumsq_diff(self):
        """Sum of squares of the diff; 0 for memory that was never touched."""
        return total(self.diff_memory, self.dtype, self.count, True)

    def scale_data(self, factor):
        """Multiply the data in place; nothing happens to memory that was never touched."""
        scale(self.data_memory, self.dtype, self.count, float_of(factor, "factor"))

    def scale_diff(self, factor):
        """Multiply the diff in place; nothing happens to memory that was never touched."""
        scale(self.diff_memory, self.dtype, self.count, float_of(factor, "factor"))


HasDeviceArray.register(Blob)


cdef Blob checked_blob(value, str what, str remedy=""):
    """Return a Blob that a caller gave; raise WrongTypeError if it is something else. `remedy` ends that message."""
    if not isinstance(value, Blob):
        raise WrongTypeError(f"{what} must be a Blob, got {shown(value)} ({type(value).__name__}){remedy}")
    return <Blob> value


cdef Dtype checked_dtype(value) except *:
    """Return the type of elements that a caller gave."""
    if not isinstance(value, int) or type(value) is bool:
        value = int_of(value, "dtype")
    if not 0 <= value < len(NUMPY_TYPES):
        raise WrongTypeError(f"dtype must be FLOAT, DOUBLE or INT of minicaffe.blob, got {shown(value)}")
    return <Dtype> <int> value


cpdef numpy_view(tuple shape, dtype, Buffer buffer):
    """Return the first elements of a block of host memory as a NumPy view, writable unless the Buffer is read-only."""
    try:
        view = np.ndarray(shape, dtype, buffer=None if 0 in shape else buffer)
    except ValueError as error:
        raise ShapeError(f"{list(shape)} has no elements, but NumPy has no array of that shape ({error}); make the other sizes "
                         "smaller") from None
    view.flags.writeable = not buffer.readonly  # of a view that shows no memory, too
    return view


cdef SyncedMemory _memory(Blob blob, size_t size, str part, place=None):
    """Make memory named after the blob and `part`, for reports; `place`: of its device side, None: the GPU of its first use."""
    return SyncedMemory(size, f"{blob.name} {part}".lstrip(), place)


cdef tuple _array_shape(Blob blob):
    """Return the shape for an array of the elements; (0,) for a blob without a shape, as an array without axes has one element."""
    return blob.shape if blob.num_axes or blob.count else (0,)


cdef _view(Blob blob, SyncedMemory memory, bint writable):      # on the host; `writable`: the device side becomes stale
    shape = _array_shape(blob)  # now, as another thread may change it while the memory is made ready
    return numpy_view(shape, NUMPY_TYPES[blob.dtype], memory.mutable_cpu_data() if writable else memory.cpu_data())


cdef _device_array(Blob blob, SyncedMemory memory, bint writable):      # `writable`: the host side becomes stale
    shape = _array_shape(blob)  # now, as in `_view`
    buffer = memory.mutable_gpu_data() if writable else memory.gpu_data()
    return DeviceArray(buffer.address, shape, NUMPY_TYPES[blob.dtype], buffer, readonly=not writable)


cdef _at(Blob blob, SyncedMemory memory, position):     # for data_at and diff_at; `position` in elements
    values = _view(blob, memory, False).reshape(-1)
    if position >= values.size:     # no index was given where there is no element, or another thread reshaped the blob
        raise ShapeError(f"a blob of shape {list(blob.shape)} has no element {position}")
    return values[position].item()
