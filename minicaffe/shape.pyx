"""The sizes of an array, and Caffe's questions about them (Caffe blob.hpp): the base of Blob.

Row-major, last axis fastest, up to 32 axes.
"""

import numpy as np

from minicaffe.errors import ShapeError, int_of, shown

MAX_AXES = 32
MAX_COUNT = 2**31 - 1
cdef long long MAX_EXTENT = 2**63 - 1


cdef class Shaped:
    """An array of up to 32 axes, as far as its sizes are concerned; it gets them by `set_dims`."""

    cdef void set_dims(self, const long long* dims, int num_axes, long long count) noexcept:    # nothing is checked
        cdef int axis
        for axis in range(num_axes):
            self.dims[axis] = dims[axis]
        self.num_axes = num_axes
        self.count = count

    cdef bint has_dims(self, const long long* dims, int num_axes) noexcept:     # whether the shape is this one
        cdef int axis
        if self.num_axes != num_axes:
            return False
        for axis in range(num_axes):
            if self.dims[axis] != dims[axis]:
                return False
        return True

    cdef bint same_shape(self, Shaped other) noexcept:    # number of axes and each size
        return self.has_dims(other.dims, other.num_axes)

    @property
    def shape(self):
        """The sizes as a tuple of int."""
        return tuple([self.dims[axis] for axis in range(self.num_axes)])

    def shape_string(self):
        """Return the shape as Caffe logs it, ``64 1 28 28 (50176)``."""
        return "".join(f"{size} " for size in self.shape) + f"({self.count})"

    cdef long long dim(self, int axis) except? -1:      # the size; a negative axis counts from the last
        return self.dims[self.canonical_axis(axis)]

    cpdef int canonical_axis(self, axis) except -1:
        """Return `axis` counted from the front.

        Raises
        ------
        ShapeError
            Unless ``-num_axes <= axis < num_axes``.
        WrongTypeError
            If it is no int.
        """
        if type(axis) is not int:
            axis = int_of(axis, "axis")
        if not -self.num_axes <= axis < self.num_axes:
            raise ShapeError(f"axis {axis} is out of range for a blob with {self.num_axes} axes, shape {list(self.shape)}")
        return axis + self.num_axes if axis < 0 else axis

    cdef long long count_range(self, int start, int end) except? -1:    # `count_from` for compiled code
        cdef long long count = 1
        cdef int axis
        if not 0 <= start <= end <= self.num_axes:
            raise ShapeError(f"axes {start}..{end} are out of range for a blob with {self.num_axes} axes")
        for axis in range(start, end):
            count *= self.dims[axis]
        return count

    def count_from(self, start, end=None):
        """Return the product of the sizes of axes `start` to `end` - 1 (Caffe ``count(start, end)``)."""
        start, end = int_of(start, "start"), self.num_axes if end is None else int_of(end, "end")
        if not 0 <= start <= end <= self.num_axes:
            raise ShapeError(f"axes {shown(start)}..{shown(end)} are out of range for a blob with {self.num_axes} axes")
        return self.count_range(start, end)

    def legacy_shape(self, axis):
        """Return the size of axis -4..3 of a blob seen as 4-dimensional; missing axes have size 1, or 0 if it has no shape."""
        axis = int_of(axis, "axis")
        if self.num_axes > 4:
            raise ShapeError(f"num, channels, height and width need at most 4 axes, the blob has {self.num_axes}")
        if not -4 <= axis < 4:
            raise ShapeError(f"axis {axis} is out of range -4..3")
        if not -self.num_axes <= axis < self.num_axes:
            return 1 if self.num_axes or self.count else 0
        return self.dims[axis + self.num_axes if axis < 0 else axis]

    @property
    def num(self):
        """Size of axis 0 (legacy; at most 4 axes)."""
        return self.legacy_shape(0)

    @property
    def channels(self):
        """Size of axis 1 (legacy; at most 4 axes)."""
        return self.legacy_shape(1)

    @property
    def height(self):
        """Size of axis 2 (legacy; at most 4 axes)."""
        return self.legacy_shape(2)

    @property
    def width(self):
        """Size of axis 3 (legacy; at most 4 axes)."""
        return self.legacy_shape(3)

    def offset(self, *indices):
        """Return the position in memory of an element (Caffe ``offset``).

        Parameters
        ----------
        *indices : int, or one sequence of int
            Missing trailing ones are 0. Up to four integers on a blob with fewer axes are Caffe's n, c, h, w: an axis that
            the blob lacks has size 1.

        Raises
        ------
        ShapeError
            For too many indices, or one outside of its axis.
        """
        cdef long long position = 0
        shape = self.shape
        if len(indices) == 1 and np.ndim(indices[0]) == 1:
            indices = tuple(indices[0])
        elif self.num_axes < len(indices) <= 4:
            shape = tuple([self.legacy_shape(axis) for axis in range(4)])
        if len(indices) > len(shape):
            raise ShapeError(f"{len(indices)} indices for a blob with {self.num_axes} axes")
        for axis, size in enumerate(shape):
            position *= size
            if axis < len(indices):
                index = indices[axis]
                if not isinstance(index, (int, np.integer)):
                    raise ShapeError(f"indices must be integers, got {index!r} for axis {axis}")
                if not 0 <= index < size:
                    raise ShapeError(f"index {index} is out of range for axis {axis} of size {size}")
                position += index
        return position

    def shape_equals(self, shape, bint legacy=False):
        """Return whether a stored shape fits: exactly, or if `legacy` (four numbers, old files) aligned from the last axis."""
        shape = sizes_of(shape)
        if not legacy:
            return shape == self.shape
        return len(shape) == 4 and self.num_axes <= 4 and all(self.legacy_shape(axis) == shape[axis + 4] for axis in range(-4, 0))


def checked_shape(shape, str what="a blob"):
    """Return `shape`, a sequence of int or a BlobShape message, as a tuple if `what` may have it.

    Raises
    ------
    ShapeError
        For more than 32 axes, a negative size or more than 2**31 - 1 elements.
    """
    cdef long long dims[32]
    shape = sizes_of(shape)
    if len(shape) > MAX_AXES:
        raise ShapeError(f"{what} has at most {MAX_AXES} axes, got {len(shape)}")
    for axis, size in enumerate(shape):
        if not isinstance(size, (int, np.integer)):
            raise ShapeError(f"sizes must be integers, got {shown(size)}")
        if not 0 <= size <= MAX_COUNT:
            raise ShapeError(f"axis {axis} must have a size from 0 to 2^31 - 1, got {size} in {list(shape)}")
        dims[<int> axis] = size
    checked_count(dims, len(shape))
    return tuple(map(int, shape))


cdef tuple sizes_of(shape):     # the sizes, not checked, of a sequence or a BlobShape message
    try:
        return tuple(getattr(shape, "dim", shape))
    except TypeError:
        raise ShapeError(f"a shape is integers, a sequence of them or a BlobShape, got {shown(shape)}") from None


cdef long long checked_count(const long long* dims, int num_axes) except -1:
    """Return the product of the sizes; raise ShapeError if one is negative or the product is too large for Caffe's int."""
    cdef long long count = 1, extent = 1  # extent: sizes of 0 left out, as `count_range` multiplies some axes only
    cdef int axis
    for axis in range(num_axes):
        if dims[axis] < 0 or (dims[axis] and (count > MAX_COUNT // dims[axis] or extent > MAX_EXTENT // dims[axis])):
            raise ShapeError(f"{[dims[i] for i in range(num_axes)]} is negative or has more than 2^31 - 1 elements; "
                             "make the input, the batch or the layer smaller")
        count *= dims[axis]
        extent *= dims[axis] or 1
    return count
