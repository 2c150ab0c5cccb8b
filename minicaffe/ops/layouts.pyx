"""For operations that do the same to every element, whatever their order: they take the layout that their blobs are in.

Padding is zero in every layout, so such an operation must give zero for zeros, or clear the padding where it knows where that is.
"""

from minicaffe.kernels.types cimport BF16, item_size
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.ops.lanes.caffe cimport fill_padding

import math


cdef Layout data_layout(const Context& on, list blobs, bint bf16=False):
    """The first layout, other than plain, among those in which the blobs keep their data; None if there is none.

    Only who says `bf16`, and asks for the type of its elements (`element`), gets one of BF16.
    """
    return first(on, [(<Blob> blob).data_memory for blob in blobs], bf16)


cdef Layout diff_layout(const Context& on, list blobs, bint bf16=False):
    """The same of the gradients."""
    return first(on, [(<Blob> blob).diff_memory for blob in blobs], bf16)


cdef Layout first(const Context& on, list memories, bint bf16):
    cdef Layout layout
    for memory in memories:
        layout = (<SyncedMemory> memory).layout()
        if layout is not None and layout.on_device == (on.stream != NULL) and (bf16 or layout.dtype != BF16):
            return layout
    return None


cdef long long stored(Layout layout, Blob blob):
    """How many elements the blob has in this layout, its padding included."""
    return blob.count if layout is None else <long long> layout.nbytes // item_size(layout.dtype)


cdef int element(Layout layout, Blob blob):
    """The type of the blob's elements in this layout."""
    return blob.dtype if layout is None else layout.dtype


cdef Layout in_lanes(Layout layout):
    """`layout` if it is known where its padding is, otherwise None, plain."""
    return layout if layout is not None and layout.lanes else None


cdef int clear_padding(Layout layout, Blob blob, void* values) except -1:
    """Put zeros where `values`, in this layout or None, have no channel."""
    cdef Channels channels
    if layout is not None and not layout.on_device:
        channels.outer, channels.channels, channels.lanes = layout.dims[0], layout.dims[1], layout.lanes
        channels.inner = math.prod(layout.dims[2:])
        fill_padding(layout.dtype, channels, values)
    return 0


cdef Layout by_channels(Layout layout, Blob blob, const Channels& plain, Channels* found):
    """`layout` if it has the channels of `plain`, axis 1 of the blob, in lanes, otherwise None: plain; and in `found` the channels there."""
    found[0] = plain
    if (layout is None or not layout.lanes or plain.outer != blob.dims[0] or plain.channels != blob.dims[1]
            or layout.dims != blob.shape):
        return None
    if layout.on_device:    # the last axis
        found.outer, found.inner = plain.outer * plain.inner, 1
    else:
        found.lanes = layout.lanes
    return layout


cdef long long rows_of(Layout layout, Blob blob):
    """How many rows of channels the blob has in this layout, to join along axis 1: pixels where channels are last, else images."""
    return blob.count // blob.dims[1] if layout is not None and layout.on_device else blob.dims[0]


cdef list joined_layouts(const Context& on, list parts, Blob whole, list sources, bint diff):
    """The layouts of all parts, and of the whole last, to join the parts along the channels or to take the whole apart.

    They are one kind of layout, in which that is as in plain order, and that of the `sources`; if there is none for all, they are None,
    plain.
    """
    cdef Layout layout = diff_layout(on, sources, True) if diff else data_layout(on, sources, True)
    found = [layout.with_shape(blob.shape) if layout is not None else None for blob in [*parts, whole]]
    return found if None not in found else [None] * len(found)
