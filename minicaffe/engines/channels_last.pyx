"""ChannelsLast: arrays on a device whose channels, axis 1 in Caffe's order, are neighbours: images NHWC, weights KRSC.

GPUs multiply matrices in this order; for NCHW cuDNN converts each time. In precision bf16 the elements are rounded to bf16. An
engine chooses the layout, and the following operations keep it (engines/layouts.pyx). Operations by channel see rows of channels.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, CudaStream
from minicaffe.device.threads cimport num_threads
from minicaffe.kernels.types cimport BF16, FLOAT, item_size
from minicaffe.memory.layout cimport Layout
from minicaffe.loops.strided.caffe cimport copy_strided

import math
from weakref import WeakValueDictionary

_layouts = WeakValueDictionary()    # (dims, dtype) -> the layout, so that equal ones are one object


cdef class ChannelsLast(Layout):
    """The layout of arrays of shape `dims`, (N, C, ...), with elements of `dtype`; BF16 for a float32 array rounded to bf16."""

    def __init__(self, tuple dims, int dtype):
        cdef long long images = dims[0], channels = dims[1], pixels = math.prod(dims[2:])
        cdef size_t count = images * channels * pixels
        name = f"channels last {'bf16 ' if dtype == BF16 else ''}{'x'.join(map(str, dims))}"
        super().__init__(count * item_size(dtype), count * item_size(FLOAT if dtype == BF16 else dtype),
                         name, dims, channels, dtype, False, True, True)
        self.sizes[:] = [images, channels, pixels]
        self.plain[:] = [channels * pixels, pixels, 1]
        self.last[:] = [channels * pixels, 1, channels]

    cdef int copy(self, bint back, size_t source, const long long* source_strides, size_t target, const long long* target_strides,
                  size_t stream) except -1:
        """Copy a whole array to this order, or `back` to plain order, on `stream`, a CudaStream; strides are `plain` or `last`."""
        cdef Context on
        cdef int plain_type = FLOAT if self.dtype == BF16 else self.dtype
        on.threads, on.stream = num_threads(), <CudaStream*> stream
        with nogil:
            copy_strided(on, self.dtype if back else plain_type, plain_type if back else self.dtype, 3, self.sizes,
                         <const void*> source, source_strides, <void*> target, target_strides)
        return 0

    cpdef to_plain(self, size_t plain, size_t private, size_t stream=0):    # overrides, described at Layout (memory/layout.pyx)
        self.copy(True, private, self.last, plain, self.plain, stream)

    cpdef from_plain(self, size_t private, size_t plain, size_t stream=0):
        self.copy(False, plain, self.plain, private, self.last, stream)

    def with_shape(self, shape):
        if self.dtype == BF16 and shape[1] % 2:     # parts of rows would not begin at words of 4 bytes
            return None
        return channels_last(tuple(shape), self.dtype)


cdef Layout channels_last(tuple dims, int dtype):
    """Return the one layout of arrays of shape `dims`, (images, channels, ...), and type `dtype`; None if it is the plain order."""
    if len(dims) < 2 or dtype != BF16 and (dims[1] == 1 or math.prod(dims[2:]) <= 1):
        return None
    layout = _layouts.get((dims, dtype))
    if layout is None:
        layout = _layouts[dims, dtype] = ChannelsLast(dims, dtype)
    return layout


cdef int find_strides(Layout layout, Blob blob, long long* strides) except -1:
    """Store in `strides` that of each axis of a blob, in elements: channels last, or plain."""
    cdef int axis
    for axis in range(blob.num_axes):
        strides[axis] = blob.count_range(axis + 1, blob.num_axes)
    if layout is not None and layout.channels_last:
        strides[1] = 1
        for axis in range(2, blob.num_axes):
            strides[axis] *= blob.dims[1]
    return 0
