"""For layers and operations that can work in any layout, mostly element by element: they use the current layout of their blobs.

Padding is zero in every layout. So such an operation must map zero to zero, or clear the padding if its position is known.
Layout None is plain, Caffe's order. In a Context `on`, ``on.stream`` is NULL on the CPU.
"""

from minicaffe.kernels.types cimport BF16, item_size
from minicaffe.memory.synced cimport SyncedMemory

import math

cdef enum:
    CACHED = 1 << 15        # elements of a part that a cache of the CPU keeps

cdef extern from "minicaffe/loops/lanes/caffe.hpp" nogil:
    void fill_padding "mc::zero_padding"(int dtype, const Channels&, void* y)


cdef Layout data_layout(const Context& on, list blobs, bint bf16=False):
    """Return the first layout other than plain among those of the blobs' data, for forward; None if there is none.

    Layouts of BF16 are returned only if `bf16`: the caller must then use the type of the elements (`element`).
    """
    return first(on, [(<Blob> blob).data_memory for blob in blobs], bf16)


cdef Layout diff_layout(const Context& on, list blobs, bint bf16=False):
    """Return the first layout other than plain among those of the blobs' gradients, as `data_layout`; for backward."""
    return first(on, [(<Blob> blob).diff_memory for blob in blobs], bf16)


cdef Layout of_mode(const Context& on, Layout layout):
    """Return `layout` if it is for the CPU or the device as `on` is, else None: for backward, with the layout of a forward."""
    return layout if layout is not None and layout.on_device == (on.stream != NULL) else None


cdef Layout first(const Context& on, list memories, bint bf16):
    """Return the first layout of this mode among those of the memories, for `data_layout` and `diff_layout`."""
    cdef Layout layout
    for memory in memories:
        layout = of_mode(on, (<SyncedMemory> memory).layout())
        if layout is not None and (bf16 or layout.dtype != BF16):
            return layout
    return None


cdef long long stored(Layout layout, Blob blob):
    """Return the number of elements of the blob in this layout, including padding: the n of an element-wise loop."""
    return blob.count if layout is None else <long long> layout.nbytes // item_size(layout.dtype)


cdef int element(Layout layout, Blob blob):
    """Return the type of the blob's elements in this layout, a number of kernels/types.hpp, as which a loop must read them."""
    return blob.dtype if layout is None else layout.dtype


cdef Layout in_lanes(Layout layout):
    """Return `layout` if `zero_padding` can find its padding, else None: for functions that do not map 0 to 0."""
    return layout if layout is not None and layout.lanes else None


cdef int zero_padding(Layout layout, void* values) except -1:
    """Put zeros into the padding of `values`, in `layout`, after a function that does not map 0 to 0; a device has no padding."""
    cdef Channels channels
    if layout is not None and not layout.on_device:
        channels.outer, channels.channels, channels.lanes = layout.dims[0], layout.dims[1], layout.lanes
        channels.inner = math.prod(layout.dims[2:])
        fill_padding(layout.dtype, channels, values)
    return 0


cdef Layout by_channels(Layout layout, Blob blob, const Channels& plain, Channels* found):
    """Return `layout` if a loop over channels can work in it, else None; set `found` to outer x channels x inner as in memory.

    `plain` is that shape in plain order. Its channels must be axis 1; on a device also axes 0 and 1, axis 0, or all elements.
    """
    found[0] = plain
    if layout is None or not layout.lanes or layout.dims != blob.shape:
        return None
    cdef bint axis_1 = plain.outer == blob.dims[0] and plain.channels == blob.dims[1]
    if not layout.on_device:
        if not axis_1:
            return None
        found.lanes = layout.lanes
        while layout.channels_last and found.inner % 2 == 0 and found.inner * found.channels > CACHED:
            found.outer, found.inner = found.outer * 2, found.inner // 2    # loops read a pixel's channels 16 at a time
        return layout
    if axis_1:      # the last axis
        found.outer, found.inner = plain.outer * plain.inner, 1
    elif plain.outer == 1 and plain.channels == blob.dims[0] * blob.dims[1]:
        found.lanes = layout.lanes
    elif plain.inner % max(blob.count_range(1, blob.num_axes), 1):  # a part of an image, whose elements are in another order
        return None
    return layout


cdef Layout of_images(Layout layout, Blob blob):
    """Return `layout` if it has channels last and this shape, else None: images are one after another as in plain order."""
    return layout if layout is not None and layout.on_device and layout.dims == blob.shape else None


cdef list concat_layouts(const Context& on, list parts, Blob whole, list sources, bint diff):
    """Return the layouts of all parts, and of the whole last, for Concat and Slice along the channels.

    All are of one kind, that of the `sources`' data, or gradients if `diff`, with parts adjacent as in plain order, or None.
    """
    cdef Layout layout = diff_layout(on, sources, True) if diff else data_layout(on, sources, True)
    found = [layout.with_shape(blob.shape) if layout is not None else None for blob in [*parts, whole]]
    return found if None not in found else [None] * len(found)
