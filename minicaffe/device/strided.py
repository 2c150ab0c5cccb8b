"""Arrays in strides on a device: views without copies, and how a kernel finds their elements (THC's tensors and OffsetInfo).

`DeviceArray` describes where an array lies; slices and transposes of it share its memory. `cuda.elementwise` passes a `Walk` to
a kernel: axes that all operands step through evenly are joined (THC's collapseDims), and the result is packed as
``mc::OffsetInfo`` (loops/strided/kernel.hpp), specialised for contiguous data and for 1, 2 and 3 axes. Nothing here starts
a driver.
"""

import abc
import ctypes
import math
import operator
import types

import numpy as np

from minicaffe.errors import ShapeError, WrongTypeError, int_of, shown

CONTIGUOUS, ANY = -2, -1  # THC's numbers for them
MAX_AXES = 8  # kMaxStridedAxes of loops/strided/kernel.hpp
MOST = 2**31 - 1  # the largest index and offset that are computed in 32 bits


class DeviceArray:
    """An array on a device, for kernels and other libraries: CuPy, PyTorch and Numba accept it without conversion.

    Indices (integers, slices, ``None``, ``...``) and transposition give views of the same memory, which lives as long as one
    of its views. Its values cannot be read here: use ``blob.cpu_data`` or ``cupy.asarray(array)``.

    Attributes
    ----------
    address : int
        Of the element ``[0, ..., 0]`` on the device.
    shape, strides : tuple of int
        Strides are in bytes and may be negative.
    dtype : numpy.dtype
    readonly : bool
        Whether kernels of `cuda.elementwise` refuse it as an output.
    base : object
        The object that keeps the memory alive: a `Buffer`, for that of a blob.
    """

    __iter__ = None  # otherwise Python iterates over the indices 0, 1, ...

    def __init__(self, address, shape, dtype, owner, strides=None, readonly=False):
        self.address, self.shape, self.dtype, self.readonly = address, _integers(shape), np.dtype(dtype), readonly
        self.strides = c_strides(self.shape, self.dtype.itemsize) if strides is None else _integers(strides)
        self.base = owner
        if len(self.strides) != self.ndim or min(self.shape, default=0) < 0:
            raise ShapeError(f"an array cannot have the shape {self.shape} and the strides {self.strides}; sizes are at least 0, "
                             "and each axis has one stride")

    @property
    def ndim(self):
        """int: the number of axes."""
        return len(self.shape)

    @property
    def size(self):
        """int: the number of elements."""
        return math.prod(self.shape)

    @property
    def is_packed(self):
        """bool: whether the elements are contiguous in C order."""
        return self._shadow().flags.c_contiguous

    @property
    def __cuda_array_interface__(self):
        packed = self.strides == c_strides(self.shape, self.dtype.itemsize)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, self.readonly), "version": 3,
                "strides": None if packed else self.strides}

    def _shadow(self):
        """Return a NumPy array of the same addresses, whose elements must not be accessed: NumPy computes the views."""
        # At address 0, where an array without elements may be, NumPy would allocate memory, so any other address is used.
        interface = {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address or 1, True), "version": 3,
                     "strides": self.strides}
        try:
            return np.asarray(types.SimpleNamespace(__array_interface__=interface))
        except (ValueError, OverflowError) as error:
            raise ShapeError(f"no memory holds an array of shape {self.shape} and strides {self.strides}: {error}") from None

    def _view(self, select, refusal):
        """Return the view ``select(shadow)``; raise ShapeError with `refusal` and NumPy's reason if there is none."""
        try:
            view = select(self._shadow())
        except (IndexError, TypeError, ValueError) as error:
            raise ShapeError(f"{refusal}: {error}") from None
        return DeviceArray(self.address and view.ctypes.data, view.shape, self.dtype, self.base, view.strides, self.readonly)

    def __getitem__(self, key):
        key = tuple(map(_index, key if isinstance(key, tuple) else (key,)))
        # With ... NumPy returns a view even if each axis has an index; without it would read the element.
        return self._view(lambda shadow: shadow[key if Ellipsis in key else (*key, Ellipsis)],
                          f"an array of shape {self.shape} has no such view")

    def transpose(self, *axes):
        """Return the array with its axes in another order, reversed by default (``numpy.ndarray.transpose``).

        Raises ShapeError unless each axis is named once.
        """
        return self._view(lambda shadow: shadow.transpose(*axes), f"transpose needs each of {self.ndim} axes once, got {axes}")

    @property
    def T(self):
        """DeviceArray: with the axes reversed."""
        return self.transpose()

    def broadcast_to(self, shape):
        """Return the array repeated to `shape` by strides of 0, to be read only. Raises ShapeError where NumPy's rules have none.
        """
        shape = _integers(shape)
        missing = len(shape) - self.ndim
        if missing < 0 or any(have not in (1, want) for have, want in zip(self.shape, shape[missing:])):
            raise ShapeError(f"shape {self.shape} cannot be broadcast to {shape}")
        own = [0 if have == 1 else stride for have, stride in zip(self.shape, self.strides)]
        return DeviceArray(self.address, shape, self.dtype, self.base, [0] * missing + own, self.readonly)

    def bounds(self):
        """Return the address of the lowest byte, and of the byte after the highest. The array must have elements."""
        reach = [(n - 1) * stride for n, stride in zip(self.shape, self.strides)]
        return self.address + sum(r for r in reach if r < 0), self.address + self.dtype.itemsize + sum(r for r in reach if r > 0)

    def may_overlap_itself(self):
        """Whether two indices may mean the same byte (THC's maybeOverlappingIndices); exact for slices and transposes."""
        reach = self.dtype.itemsize - 1
        for stride, size in sorted((abs(s), n) for s, n in zip(self.strides, self.shape) if n > 1):
            if stride <= reach:
                return True
            reach += stride * (size - 1)
        return False

    def overlaps(self, other):
        """Whether it shares a byte with `other`. Both have elements."""
        try:
            return np.shares_memory(self._shadow(), other._shadow(), max_work=100_000)
        except RuntimeError:  # TooHardError
            return True

    def __array__(self, dtype=None, copy=None):
        raise WrongTypeError("a DeviceArray has no values on the host; take them from blob.cpu_data, tensor.data(dtype) or "
                             "memory.copy(array, device_array)")

    def __repr__(self):
        return (f"<DeviceArray {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype.name} at {self.address:#x}, strides "
                f"{self.strides}{', read-only' if self.readonly else ''}>")


def _integers(numbers):
    try:
        return tuple(map(operator.index, numbers))
    except TypeError:
        raise ShapeError(f"sizes and strides must be integers, got {shown(numbers)}") from None


def _index(k):
    if type(k) in (slice, int) or k is None or k is Ellipsis:
        return k
    try:
        return int_of(k, "an index")
    except WrongTypeError:
        raise WrongTypeError(f"a DeviceArray takes integers, slices, None and ... as indices, got {shown(k)}; copy it to the host "
                             "to pick elements by lists or masks") from None


def c_strides(shape, itemsize):
    """Return the strides in bytes of an array without gaps whose last axis is the fastest."""
    strides = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= size
    return tuple(strides[::-1])


class HasDeviceArray(abc.ABC):  # noqa: B024 (classes are registered here, they derive nothing)
    """Any object that holds an array on the device, `gpu_data` to be read and `mutable_gpu_data` to be written; Blob is one."""


def device_array(value, name):
    """Return an object with ``__cuda_array_interface__`` as a DeviceArray, which keeps `value` alive.

    Raises WrongTypeError for an array with a mask, and for one whose elements do not lie at multiples of their size. Names `name`.
    """
    if isinstance(value, DeviceArray):
        return value
    interface = value.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise WrongTypeError(f"{name} has a mask, which kernels ignore; fill the masked elements first")
    address, readonly = interface["data"]
    array = DeviceArray(address or 0, interface["shape"], interface["typestr"], value, interface.get("strides"), bool(readonly))
    if array.size and any(number % array.dtype.itemsize for number in (address, *array.strides)):
        raise WrongTypeError(f"{name}: address {address:#x} and strides {array.strides} must be multiples of the "
                             f"{array.dtype.itemsize} bytes of an element; copy it")
    return array


class Walk:
    """How a kernel computes the offsets of element i in several arrays of one shape.

    Parameters
    ----------
    arrays : sequence of DeviceArray
        Of one shape with at least one element.

    Attributes
    ----------
    count : int
    axes : list of (int, tuple of int)
        Size, and stride in elements in each array; the last moves fastest.
    kind : int
        `CONTIGUOUS` if the index is the offset in every array; the number of axes; `ANY` for 4 to 8, which share a kernel.
    narrow : bool
        Whether indices and offsets are computed in 32 bits.
    """

    def __init__(self, arrays):
        steps = zip(*[[stride // a.dtype.itemsize for stride in a.strides] for a in arrays])
        self.count, self.axes = arrays[0].size, join_axes(zip(arrays[0].shape, steps))
        number = len(self.axes)
        if not number or number == 1 and set(self.axes[0][1]) == {1}:
            self.kind = CONTIGUOUS
        else:
            self.kind = ANY if 3 < number <= MAX_AXES else number
        reach = [sum((size - 1) * abs(step) for (size, _), step in zip(self.axes, column))
                 for column in zip(*[steps for _, steps in self.axes])]
        self.narrow = max([self.count, *reach]) <= MOST

    @property
    def index(self):
        """str: the C++ type that indices and offsets are computed in."""
        return "unsigned" if self.narrow else "unsigned long long"

    def pack(self):
        """Return ``mc::OffsetInfo<index, arrays, kind>`` as ctypes bytes, for a kernel argument by value."""
        empty = (MAX_AXES if self.kind == ANY else len(self.axes)) - len(self.axes)
        padding = [0] * empty
        dividers = [divider(size) if self.narrow else (size,) for size, _ in self.axes]
        numbers = [len(self.axes)]
        for part in zip(*dividers):
            numbers += [*part, *padding]
        for _, steps in self.axes:
            numbers += steps
        numbers += padding * len(self.axes[0][1])
        bits = 32 if self.narrow else 64
        packed = np.array([n % 2**bits for n in numbers], f"u{bits // 8}").tobytes()
        return (ctypes.c_char * len(packed)).from_buffer_copy(packed)


def join_axes(axes):
    """Drop axes of size 1, sort by the strides in the last array, and join neighbours that all arrays step through evenly.

    The order of the elements does not matter to an element-wise operation. THC's collapseDims; `Strides::collapse` of
    loops/strided/caffe.hpp does it for operations in C++.
    """
    found = []
    axes = [axis for axis in axes if axis[0] != 1]
    for size, steps in sorted(axes, key=lambda axis: [abs(s) for s in axis[1][::-1]], reverse=True):
        if found and all(outer == inner * size for outer, inner in zip(found[-1][1], steps)):
            size *= found.pop()[0]
        found.append((size, steps))
    return found


def divider(d):
    """Return divisor, magic number and shift of ``mc::IntDivider<unsigned>`` (the proof is in kernels/divider.hpp)."""
    shift = (d - 1).bit_length()
    return d, 2**32 * (2**shift - d) // d + 1, shift
