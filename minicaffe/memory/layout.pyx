"""Layout: an engine's own order of an array in memory, such as channels in blocks of 16.

A SyncedMemory holds one private block in such a layout beside its plain sides (memory/synced.pyx). Plain is Caffe's order,
row-major with the last axis fastest, and the default of every access.
"""

from minicaffe.kernels.types cimport FLOAT

from minicaffe.errors import Error


cdef class Layout:
    """The order of the elements of one shape in memory (abstract; an engine derives its layouts). Equal layouts mean equal bytes.

    Parameters
    ----------
    nbytes : int
        Bytes of a block in this layout, its padding included.
    plain_nbytes : int
        Bytes of the same array in plain order.
    name : str
        Its name in events.
    dims : tuple of int, optional
        The shape of the array.
    lanes : int
        Number of channels (axis 1) in a block of adjacent elements; zeros fill the last block. 0: channels are not in blocks.
    dtype : int
        The type of its elements, a number of kernels/types.hpp; it may differ from the plain array's.
    scaled : bool
        Whether its elements are those of the plain array times factors, or others computed from these, which other operations
        cannot use.
    on_device : bool
        Whether the memory is on a device. Such a layout has no padding.
    channels_last : bool
        Whether all channels of a pixel are one block (NHWC).
    """

    def __init__(self, size_t nbytes, size_t plain_nbytes, str name, tuple dims=None, int lanes=0, int dtype=FLOAT,
                 bint scaled=False, bint on_device=False, bint channels_last=False):
        self.nbytes = nbytes
        self.plain_nbytes = plain_nbytes
        self.name = name
        self.dims = dims
        self.lanes = lanes
        self.dtype = dtype
        self.scaled = scaled
        self.on_device = on_device
        self.channels_last = channels_last

    cpdef to_plain(self, size_t plain, size_t private, size_t stream=0):
        """Convert the array at address `private` to address `plain`; on a device on `stream`, the address of a `CudaStream`."""
        raise Error(f"{type(self).__name__} must override to_plain")

    cpdef from_plain(self, size_t private, size_t plain, size_t stream=0):
        """Convert the plain array at address `plain` to address `private`, and write all `nbytes` there: padding is zero."""
        raise Error(f"{type(self).__name__} must override from_plain")

    cpdef bint from_layout(self, size_t private, Layout source, size_t other) except -1:
        """Convert the array at address `other`, in layout `source`, to address `private`; False: unsupported, nothing is done."""
        return False

    def with_shape(self, shape):
        """Return the same kind of layout for arrays of `shape`, which has another number of channels (axis 1); None if impossible.

        Arrays in such layouts can be concatenated along the channels image by image, as in plain order.
        """
        return None

    def __repr__(self):
        return f"<Layout {self.name}, {self.nbytes:,} bytes>"
