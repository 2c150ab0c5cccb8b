"""Layout: how an engine arranges an array in memory of its own, such as channels in blocks of 16.

A SyncedMemory holds one private block in such a layout beside its plain sides (memory/synced.pyx). Plain is what Caffe says:
row-major, last axis fastest; everyone who does not ask for a layout gets that.
"""

from minicaffe.kernels.types cimport FLOAT

from minicaffe.errors import Error


cdef class Layout:
    """An arrangement of one shape, a value: equal layouts mean equal bytes (abstract; its engine derives from it).

    Parameters
    ----------
    nbytes : int
        Bytes of a block in this layout, its padding included.
    plain_nbytes : int
        Bytes of the same array in plain order.
    name : str
        What events call it.
    dims : tuple of int, optional
        The shape of the array.
    lanes : int
        Of how many channels, axis 1, elements are neighbours, in blocks of which zeros fill the last; 0: not of channels.
    dtype : int
        The type of its elements, a number of kernels/types.hpp; it may be another than the plain array's.
    scaled : bool
        Its elements are the plain array's, each times something: who computes with the array as it is cannot take them.
    on_device : bool
        Of memory of a device, where blocks in it have no padding.
    """

    def __init__(self, size_t nbytes, size_t plain_nbytes, str name, tuple dims=None, int lanes=0, int dtype=FLOAT,
                 bint scaled=False, bint on_device=False):
        self.nbytes = nbytes
        self.plain_nbytes = plain_nbytes
        self.name = name
        self.dims = dims
        self.lanes = lanes
        self.dtype = dtype
        self.scaled = scaled
        self.on_device = on_device

    cpdef to_plain(self, size_t plain, size_t private, size_t stream=0):
        """Write the array at address `private` to address `plain`; on a device in order with `stream`, an address of a `CudaStream`."""
        raise Error(f"{type(self).__name__} must override to_plain")

    cpdef from_plain(self, size_t private, size_t plain, size_t stream=0):
        """Write the plain array at address `plain` to address `private`, all `nbytes` of it: padding is zero."""
        raise Error(f"{type(self).__name__} must override from_plain")

    cpdef bint from_layout(self, size_t private, Layout source, size_t other) except -1:
        """Write the array at address `other`, in layout `source`, to address `private`; False: only by way of plain order."""
        return False

    def with_shape(self, shape):
        """Return the layout that this one is of arrays of `shape`, which has another number of channels, axis 1, or None.

        It is one in which arrays are joined along the channels by joining their rows, images, as in plain order.
        """
        return None

    def __repr__(self):
        return f"<Layout {self.name}, {self.nbytes:,} bytes>"
