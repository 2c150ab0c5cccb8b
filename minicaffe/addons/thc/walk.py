"""Offsets of the elements of arrays in any strides, in a kernel (THC's collapseDims, OffsetInfo); docs/elementwise.md explains it.

`cuda.elementwise` passes a `Walk` to a kernel: axes that all operands step through evenly are joined, and the result is packed as
``mc::OffsetInfo`` (loops/strided/kernel.hpp), specialised for contiguous data and for 1, 2 and 3 axes.
"""

import ctypes

import numpy as np

from minicaffe.device.strided import DeviceArray
from minicaffe.errors import ShapeError

CONTIGUOUS, ANY = -2, -1  # THC's numbers for them
MAX_AXES = 8  # kMaxStridedAxes of loops/strided/kernel.hpp
MOST = 2**31 - 1  # the largest index and offset that are computed in 32 bits


class Walk:
    """Computation of the offsets of element i in several arrays of one shape.

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
    narrow, index : bool, str
        Whether indices and offsets are computed in 32 bits, and their C++ type.
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
        self.index = "unsigned" if self.narrow else "unsigned long long"

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


def broadcast(array, shape):
    """Return a DeviceArray repeated to `shape` by strides of 0, to be read only. Raises ShapeError if NumPy would."""
    missing = len(shape) - array.ndim
    if missing < 0 or any(have not in (1, want) for have, want in zip(array.shape, shape[missing:])):
        raise ShapeError(f"shape {array.shape} cannot be broadcast to {shape}")
    axis_strides = [0 if have == 1 else stride for have, stride in zip(array.shape, array.strides)]
    return DeviceArray(array.address, shape, array.dtype, array.base, [0] * missing + axis_strides, array.readonly)


def may_overlap_itself(array):
    """Whether two indices may mean the same byte (THC's maybeOverlappingIndices); exact for slices and transposes."""
    reach = array.dtype.itemsize - 1
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def overlap(one, other):
    """Whether two arrays, which have elements, share a byte."""
    try:
        return np.shares_memory(one.shadow(), other.shadow(), max_work=100_000)
    except RuntimeError:  # TooHardError
        return True
