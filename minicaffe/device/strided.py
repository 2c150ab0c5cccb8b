"""Arrays in strides on a device: views without copies (THC's tensors). Nothing here starts a driver."""

import abc
import math
import operator
import types

import numpy as np

from minicaffe.errors import ShapeError, WrongTypeError, int_of, shown


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
        return self.shadow().flags.c_contiguous

    @property
    def __cuda_array_interface__(self):
        packed = self.strides == c_strides(self.shape, self.dtype.itemsize)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, self.readonly), "version": 3,
                "strides": None if packed else self.strides}

    def shadow(self):
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
            view = select(self.shadow())
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

    def bounds(self):
        """Return the lowest and the end address of an array with elements, for the check that it lies within one allocation."""
        reach = [(n - 1) * stride for n, stride in zip(self.shape, self.strides)]
        return self.address + sum(r for r in reach if r < 0), self.address + self.dtype.itemsize + sum(r for r in reach if r > 0)

    def __array__(self, dtype=None, copy=None):
        raise WrongTypeError("a DeviceArray has no values on the host; take them from blob.cpu_data, tensor.data(dtype) or "
                             "memory.copy(array, device_array)")

    def __repr__(self):
        return (f"<DeviceArray {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype.name} at {self.address:#x}, strides "
                f"{self.strides}{', read-only' if self.readonly else ''}>")


def _integers(numbers):
    """Return sizes or strides of a caller as a tuple of int; raise ShapeError if one is not an integer."""
    try:
        return tuple(map(operator.index, numbers))
    except TypeError:
        raise ShapeError(f"sizes and strides must be integers, got {shown(numbers)}") from None


def _index(k):
    """Return an index for `DeviceArray.__getitem__` by which NumPy makes a view; raise WrongTypeError for other objects."""
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
    """Base of arguments of users' kernels that hold an array on the device, as `gpu_data` and `mutable_gpu_data`: of Blob."""


def device_array(value, name):
    """Return an object with ``__cuda_array_interface__`` as a DeviceArray, which keeps `value` alive.

    Raises WrongTypeError, naming `name`, for an ill-formed interface, a mask, and elements not at multiples of their size.
    """
    if isinstance(value, DeviceArray):
        return value
    interface = value.__cuda_array_interface__
    try:
        mask = interface.get("mask")
        address, readonly = interface["data"]
        array = DeviceArray(address or 0, interface["shape"], interface["typestr"], value, interface.get("strides"), bool(readonly))
    except ShapeError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WrongTypeError(f"{name} has no proper __cuda_array_interface__: {error!r}") from None
    if mask is not None:
        raise WrongTypeError(f"{name} has a mask, which kernels ignore; fill the masked elements first")
    if array.size and any(number % array.dtype.itemsize for number in (array.address, *array.strides)):
        raise WrongTypeError(f"{name}: address {array.address:#x} and strides {array.strides} must be multiples of the "
                             f"{array.dtype.itemsize} bytes of an element; copy it")
    return array
