"""What the elements of a `Tensor` may be: bytes of a numpy.dtype, or objects of a class (Caffe2 ``core/typeid.h``).

Caffe2 registers a type with its size, constructor and destructor; NumPy and Python know all three.
"""

import numpy as np

from minicaffe.errors import WrongTypeError


def element_type(dtype):
    """Return the type of elements that `dtype` means: a numpy.dtype, or a class of which objects are made.

    Raises WrongTypeError if it is no type, is of another byte order or without bytes, or has references to objects inside.
    """
    if isinstance(dtype, type) and dtype not in (bool, int, float, complex) and not issubclass(dtype, np.generic):
        return dtype
    try:
        found = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise WrongTypeError(f"{dtype!r} is no type of elements; give what numpy.dtype takes, or a class")
    if found.kind == "O":
        return object
    if found.hasobject or found.subdtype or not found.itemsize or not found.isnative:
        raise WrongTypeError(f"{found} cannot be a type of elements: they have some bytes, in the machine's order, and no axes or "
                             "objects inside; convert the array (astype), or use a class")
    return found


def bytes_type(dtype):
    """As `element_type`, of elements that are bytes."""
    kind = element_type(dtype)
    if not isinstance(kind, np.dtype):
        raise WrongTypeError(f"{kind.__name__} objects have no bytes to copy or to show to a device; use data and mutable_data")
    return kind


def same_type(kind, other):
    """Whether two types of elements are exactly the same."""
    return kind is other or (isinstance(kind, np.dtype) and isinstance(other, np.dtype) and kind == other)


def type_name(kind):
    """Return the name of a type of elements for errors."""
    return kind.name if isinstance(kind, np.dtype) else kind.__name__


def new_objects(kind, size, first=()):
    """Return an array of `size` references: to `first`, then to new objects."""
    items = np.empty(size, object)
    items[: len(first)] = first
    for index in range(len(first), size):
        items[index] = kind()
    return items
