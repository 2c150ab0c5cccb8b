"""Tensor: a typed array with one memory, made to be held by a slot of a workspace (Caffe2 ``core/tensor.h``).

It has no shape until the first `resize` and no type until the first mutable access, which may also change the type in place:
memory is taken then, and taken again only when it is too small. Different from Caffe2: a Tensor has no context of one device, as
its memory is a SyncedMemory with both sides and copies made on access; and a tensor that shares memory gets memory of its own
when it grows or changes its type, where Caffe2's would write what the others show. What a view shows stays alive with it.
"""

import math
import weakref

import numpy as np

from minicaffe.addons.caffe2.serialization import DTYPES, register_serializer
from minicaffe.blob import NUMPY_TYPES, Blob, numpy_view
from minicaffe.device.strided import DeviceArray
from minicaffe.errors import ConfigError, DataError, ShapeError, WrongTypeError, check_type, shown
from minicaffe.memory.buffer import Buffer, wrap
from minicaffe.memory.copy import copy as copy_bytes
from minicaffe.memory.copy import packed_array
from minicaffe.memory.place import CPUPlace
from minicaffe.memory.registry import registry
from minicaffe.memory.sizes import check_bytes
from minicaffe.memory.states import SyncedHead
from minicaffe.memory.synced import SyncedMemory
from minicaffe.shape import MAX_COUNT, checked_shape


class Storage:
    """The memory that tensors share, and whether its owner is outside."""

    def __init__(self, memory, external=False):
        self.memory, self.external = memory, external
        self.users = weakref.WeakSet()


class Tensor:
    """An array of any shape and type, made without either.

    Parameters
    ----------
    shape : sequence of int, optional
        Without it the tensor has no shape yet, and `size` -1.
    dtype : type, optional
        Of the elements: what ``numpy.dtype`` takes, in the machine's byte order and without objects; a slot holds objects.
    name : str
        What memory reports call it.
    """

    def __init__(self, shape=None, dtype=None, name=""):
        self.name = name
        self._shape = None if shape is None else _shape_of([shape])
        self._type = self._storage = None
        if dtype is not None:
            self._type = element_type(dtype)
            if shape is not None:
                self._ensure_storage(self._type)

    # ---- what it is

    @property
    def shape(self):
        """tuple of int: the sizes; ``()`` also before the first resize."""
        return self._shape or ()

    @property
    def ndim(self):
        """int: the number of axes."""
        return len(self.shape)

    @property
    def size(self):
        """int: the number of elements; -1 before the first resize."""
        return -1 if self._shape is None else math.prod(self._shape)

    @property
    def dtype(self):
        """numpy.dtype: of the elements; None before there is a type."""
        return self._type

    @property
    def itemsize(self):
        """int: bytes of an element; 0 without a type."""
        return 0 if self._type is None else self._type.itemsize

    @property
    def nbytes(self):
        """int: bytes of all elements; 0 before there are any."""
        return max(self.size, 0) * self.itemsize

    @property
    def capacity_nbytes(self):
        """int: bytes that a resize may ask for and keep the memory; 0 while there is none."""
        return 0 if self._storage is None else self._storage.memory.size

    @property
    def memory(self):
        """SyncedMemory: of the elements; None while there is none."""
        return None if self._storage is None else self._storage.memory

    @property
    def shares_data(self):
        """bool: does another tensor show the same memory?"""
        return self._storage is not None and len(self._storage.users) > 1

    def is_type(self, dtype):
        """Return whether the elements are of exactly this type."""
        try:
            return self._type == element_type(dtype)
        except WrongTypeError:
            return False

    def canonical_axis(self, axis):
        """Return `axis` counted from the front.

        Raises
        ------
        ShapeError
            Unless ``-ndim <= axis < ndim``.
        """
        if not -self.ndim <= axis < self.ndim:
            raise ShapeError(f"axis {axis} is out of range for {self}")
        return axis % self.ndim

    def dim(self, axis):
        """Return the size of an axis, which may be counted from the end."""
        return self.shape[self.canonical_axis(axis)]

    def size_from_dim(self, axis):
        """Return the product of the sizes from `axis` on; of no axes it is 1."""
        return math.prod(self.shape[self._cut(axis) :])

    def size_to_dim(self, axis):
        """Return the product of the sizes before `axis`."""
        return math.prod(self.shape[: self._cut(axis)])

    def _cut(self, axis):
        if not 0 <= axis <= self.ndim:
            raise ShapeError(f"axis {axis} must be 0 to the number of axes of {self}")
        return axis

    # ---- shape and memory

    def resize(self, *dims):
        """Set the shape, by integers or one sequence; memory that is large enough stays, with what it holds.

        Raises
        ------
        ShapeError
            For more than 32 axes, a negative size or more than 2**31 - 1 elements; the tensor stays as it was.
        """
        shape = _shape_of(dims)
        fits = math.prod(shape) * self.itemsize <= (self.nbytes if self.shares_data else self.capacity_nbytes)
        self._set_state(shape, self._type, self._storage if fits else None)

    def reshape(self, *dims):
        """Set a shape of as many elements as there are.

        Raises
        ------
        ShapeError
            If the counts differ.
        """
        shape = _shape_of(dims)
        if math.prod(shape) != self.size:
            raise ShapeError(f"{self} cannot be reshaped to {list(shape)}, of {math.prod(shape)} elements; resize it")
        self._set_state(shape, self._type, self._storage)

    def reserve(self, *dims):
        """Take memory for a larger shape, and keep shape and values: later resizes and `extend` up to there take none."""
        size, storage = math.prod(_shape_of(dims)), self._storage
        self._check_shaped("reserve")
        self._check_typed("reserve")
        if size * self.itemsize > self.capacity_nbytes:
            self._set_state(self._shape, self._type, self._grown(size) if storage else self._new_storage(self._type, size))

    def extend(self, num, growth_pct=0):
        """Add `num` to axis 0 and keep the values.

        Parameters
        ----------
        num : int
            At least 0; with 0 nothing happens.
        growth_pct : int
            Memory that is too small is replaced by that of axis 0 larger by so many per cent, or by `num` if that is more.
        """
        if self.ndim < 1:
            raise ShapeError(f"extend needs axis 0, which {self} does not have; resize it first")
        if not all(isinstance(number, (int, np.integer)) and number >= 0 for number in (num, growth_pct)):
            raise ShapeError(f"extend: num and growth_pct must be integers of at least 0, got {shown(num)} and {shown(growth_pct)}")
        if num == 0:
            return
        first, *rest = self._shape
        shape, storage = checked_shape((first + num, *rest), "a tensor"), self._storage
        size = math.prod(shape)
        if storage is not None and (self.shares_data or size * self.itemsize > storage.memory.size):
            rows = min(-(-first * (100 + growth_pct) // 100), MAX_COUNT // max(math.prod(rest), 1))
            storage = self._grown(max(rows, shape[0]) * math.prod(rest))
        self._set_state(shape, self._type, storage)

    def shrink(self, outer_dim):
        """Cut axis 0 to `outer_dim`; the memory stays.

        Raises
        ------
        ShapeError
            If that is larger than axis 0.
        """
        if self.ndim < 1 or outer_dim > self._shape[0]:
            raise ShapeError(f"shrink cannot make axis 0 of {self} {outer_dim}; extend and resize make it larger")
        self.resize(outer_dim, *self._shape[1:])

    def free_memory(self):
        """Free the memory; shape and type stay."""
        self._set_state(self._shape, self._type, None)

    def reset(self):
        """Remove shape, type and memory."""
        self._set_state(None, None, None)

    def swap(self, other):
        """Exchange shape, type and memory with another tensor; the names stay."""
        check_type(other, Tensor, "other", "a Tensor")
        own_state, other_state = (self._shape, self._type, self._storage), (other._shape, other._type, other._storage)
        self._set_state(*other_state)
        other._set_state(*own_state)

    # ---- the elements

    def data(self, dtype):
        """Return the elements as a read-only NumPy view (Caffe2 ``data<T>()``).

        Raises
        ------
        WrongTypeError
            If they are of another type.
        DataError
            If there are none yet: shape and memory come by `resize` and a mutable access.
        """
        self._check_elements(element_type(dtype))
        return self._view(False)

    def mutable_data(self, dtype):
        """Return the elements as a writable NumPy view, of type `dtype` from now on (Caffe2 ``mutable_data<T>()``).

        Of another type they have any values.

        Raises
        ------
        ShapeError
            Before the first resize, and for more bytes than the budget (memory/sizes.py).
        """
        self._ensure_storage(element_type(dtype))
        return self._view(True)

    def gpu_data(self, dtype):
        """As `data`, on the device, as a `DeviceArray`; the host copy stays valid."""
        self._check_elements(element_type(dtype))
        return self._device_array(self._storage.memory.gpu_data())

    def mutable_gpu_data(self, dtype):
        """As `mutable_data`, on the device, as a `DeviceArray`; the host copy becomes stale."""
        self._ensure_storage(element_type(dtype))
        return self._device_array(self._storage.memory.mutable_gpu_data())

    def raw_data(self):
        """Return the read-only Buffer of the host side: the bytes of whatever type, all `capacity_nbytes` of them."""
        self._check_elements(self._type)
        return self._storage.memory.cpu_data()

    def raw_mutable_data(self, dtype=None):
        """As `mutable_data`, as the Buffer of the host side; without a `dtype` of the type that there is."""
        if dtype is None:
            self._check_typed("raw_mutable_data")
        self._ensure_storage(self._type if dtype is None else element_type(dtype))
        return self._storage.memory.mutable_cpu_data()

    def __array__(self, dtype=None, copy=None):
        self._check_elements(self._type)
        return np.array(self._view(False), dtype=dtype, copy=copy is not False)

    # ---- values and memory of others

    def share_data(self, other):
        """Show the memory of another tensor of as many elements, and take its type; both see what either writes.

        Sharing ends when one of them grows or changes its type: that one gets memory of its own.

        Raises
        ------
        ShapeError
            If the counts differ.
        DataError
            If the other has no elements yet.
        """
        check_type(other, Tensor, "other", "a Tensor")
        if other.size != self.size:
            raise ShapeError(f"share_data: {self} and {other} must have one count; resize it first")
        other._check_elements(other._type)
        self._set_state(self._shape, other._type, other._storage)

    def share_external(self, source):
        """Show memory with an owner outside, kept alive and never freed, of as many elements; take its type.

        Parameters
        ----------
        source : object with the buffer protocol or ``__cuda_array_interface__``
            C-contiguous, writable, in the machine's byte order.

        Raises
        ------
        ShapeError, WrongTypeError, ConfigError
            If `source` does not meet this.
        WrongDeviceError
            If it is memory of another GPU.
        """
        self._check_shaped("share_external")
        array = _array_of(source, "share_external", False)
        on_device, kind = isinstance(array, DeviceArray), element_type(array.dtype)
        if array.size != self.size:
            raise ShapeError(f"share_external: {self} takes {self.size} elements, got {array.size}; resize it first")
        if array.readonly if on_device else not (array.flags.c_contiguous and array.flags.writeable):
            raise ConfigError("share_external needs an array that is C-contiguous and may be written; copy_from takes any")
        memory = SyncedMemory(array.size * kind.itemsize, self.name)
        if on_device and array.size:
            memory.set_gpu_data(array.address, array)
        elif not on_device:
            memory.set_cpu_data(wrap(array.ctypes.data, array.nbytes, CPUPlace(), array))  # NumPy exports no dates as a buffer
        self._set_state(self._shape, kind, Storage(memory, external=True))

    def copy_from(self, source, stream=None):
        """Take shape, type and values of another tensor, of the data of a blob, or of an array.

        If it fails, shape and type stay as they were.

        Parameters
        ----------
        source : Tensor, Blob, object with ``__cuda_array_interface__``, or what ``numpy.asarray`` takes
            Of any shape, which becomes the tensor's.
        stream : minicaffe.cuda.Stream, optional
            Queue a copy to the device on this stream and return; wait for the stream before using the tensor. Without it values
            of the host are copied on the host, and those that only a GPU has to the present GPU.
        """
        if isinstance(source, Tensor):
            source._check_elements(source._type)
            shape, kind, values = source._shape, source._type, source._storage
            if values is self._storage:
                self._set_state(shape, kind, values)
                return
            values = values.memory
        elif isinstance(source, Blob):
            if not (source.num_axes or source.count):
                raise ShapeError(f"copy_from: {source} has no shape yet")
            shape, kind, values = source.shape, NUMPY_TYPES[source.dtype], source.data_memory
        else:
            values = _array_of(source, "copy_from", True)
            shape = checked_shape(values.shape, "a tensor")
            kind = element_type(values.dtype if isinstance(values, DeviceArray) else values.dtype.newbyteorder("="))
        before = self._shape, self._type, self._storage
        try:
            self.resize(shape)
            self._ensure_storage(kind)
            if isinstance(values, np.ndarray) and stream is None:
                self._view(True)[...] = values
            elif self.nbytes:
                _copy_start(self.memory, values, self.nbytes, stream)
        except BaseException:
            self._set_state(*before)
            raise

    # ---- inside

    def _set_state(self, shape, kind, storage):
        """Change shape, type and memory together."""
        if self._storage is not None:
            self._storage.users.discard(self)
        if storage is not None:
            storage.users.add(self)
        self._shape, self._type, self._storage = shape, kind, storage

    def _ensure_storage(self, kind):
        """Have memory for elements of `kind`: what there is, if it is large enough and only this tensor's, else new memory."""
        self._check_shaped("mutable access")
        storage = self._storage
        if storage is not None and kind == self._type:
            return
        fits = (storage is not None and not storage.external and not self.shares_data
                and self.size * kind.itemsize <= storage.memory.size)
        self._set_state(self._shape, kind, storage if fits else self._new_storage(kind, self.size))

    def _new_storage(self, kind, size):
        """Make a `Storage` for `size` elements; its memory is taken at the first access."""
        check_bytes(size * kind.itemsize, f"tensor '{self.name}' of {size} elements")
        return Storage(SyncedMemory(size * kind.itemsize, self.name))

    def _grown(self, size):
        """Make a `Storage` for `size` elements that begins with the present ones."""
        storage = self._new_storage(self._type, size)
        if self.nbytes:
            _copy_start(storage.memory, self.memory, self.nbytes)
        return storage

    def _check_shaped(self, what):
        if self._shape is None:
            raise ShapeError(f"{what}: {self} has no shape yet; call resize first")

    def _check_typed(self, what):
        if self._type is None:
            raise WrongTypeError(f"{what}: {self} has no type yet, so its bytes are not known; call mutable_data(dtype) first")

    def _check_elements(self, kind):
        """Raise unless there are elements of `kind`, None for those of a tensor without a type."""
        if self._storage is None and (self._type is None or kind == self._type):
            raise DataError(f"{self} has no elements yet; call resize, then mutable_data(dtype)")
        if kind != self._type:
            raise WrongTypeError(f"{self} was asked for {kind.name}; mutable_data({kind.name}) makes it one")

    def _view(self, writable):
        memory = self._storage.memory
        return numpy_view(self._shape, self._type, memory.mutable_cpu_data() if writable else memory.cpu_data())

    def _device_array(self, buffer):
        return DeviceArray(buffer.address, self._shape, self._type, buffer, readonly=buffer.readonly)

    def __repr__(self):
        shape = "without a shape" if self._shape is None else "".join(f"{n} " for n in self._shape) + f"({self.size})"
        return f"<Tensor '{self.name}' {shape} {'of no type' if self._type is None else self._type.name}>"

    def __reduce__(self):
        raise WrongTypeError("a tensor cannot be copied or pickled: it is a place, not a value; other.copy_from(tensor) copies it")


def element_type(dtype):
    """Return the numpy.dtype of elements that `dtype` means.

    Raises WrongTypeError if it is not a type, is of another byte order or without bytes, or has axes or objects inside.
    """
    try:
        found = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise WrongTypeError(f"{dtype!r} is not a type of elements; give what numpy.dtype takes")
    if found.hasobject or found.subdtype or not found.itemsize or not found.isnative:
        raise WrongTypeError(f"{found} cannot be a type of elements: they have some bytes, in the machine's order, and no axes or "
                             "objects inside; convert the array (astype), or put the object itself into a slot")
    return found


def _shape_of(dims):
    return checked_shape(dims[0] if len(dims) == 1 and not isinstance(dims[0], (int, np.integer)) else dims, "a tensor")


def _array_of(source, what, copies):
    """Return `source` as a DeviceArray or a NumPy array; only if it `copies` need a NumPy array not show the memory of `source`."""
    if hasattr(source, "__cuda_array_interface__"):
        return packed_array(source, what)
    try:
        return np.asarray(source if copies or isinstance(source, np.ndarray) else memoryview(source))
    except (TypeError, ValueError) as error:
        raise WrongTypeError(f"{what} takes an array, got {type(source).__name__}: {error}") from None


def _copy_start(target, source, nbytes, stream=None):
    """Copy the first `nbytes` from another memory, on the device if they are current only there, or from an array."""
    if stream is not None or isinstance(source, DeviceArray):
        if isinstance(source, np.ndarray):
            source = np.ascontiguousarray(source, source.dtype.newbyteorder("="))
        elif isinstance(source, SyncedMemory):
            source = source.gpu_data() if source.head == SyncedHead.HEAD_AT_GPU else source.cpu_data()
        elif source.address == target.gpu_data().address:
            return
        elif abs(source.address - target.gpu_data().address) < nbytes:  # a part of the target: a device copies nothing onto itself
            between = Buffer(registry.allocator(target.place), nbytes, "copy")
            copy_bytes(between, source, nbytes, stream)
            source = between
        copy_bytes(target.mutable_gpu_data(), source, nbytes, stream)
    elif source.head == SyncedHead.HEAD_AT_GPU:
        if source is not target:
            target.copy_on_device(source, nbytes)
    else:
        np.ndarray(nbytes, np.uint8, buffer=target.mutable_cpu_data())[:] = np.ndarray(nbytes, np.uint8, buffer=source.cpu_data())


def _to_stored(tensor):
    """Return an array, or without elements a list: the name of the type and the shape, None for what is missing."""
    if tensor.memory is not None:
        return tensor.data(tensor.dtype)
    return [tensor.dtype and tensor.dtype.str, None if tensor.size < 0 else list(tensor.shape)]


def _from_stored(stored):
    tensor = Tensor()
    if isinstance(stored, np.ndarray):
        tensor.copy_from(stored)
        return tensor
    name, shape = stored
    tensor._type = None if name is None else element_type(DTYPES[name])
    if shape is not None:
        tensor.resize(shape)
    return tensor


register_serializer(Tensor, _to_stored, _from_stored, "Tensor")
