"""Gradients of parameters before backward adds to them."""

from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context, settle
from minicaffe.engines.layouts cimport diff_layout, stored
from minicaffe.kernels.types cimport item_size
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.states cimport RECYCLED
from minicaffe.memory.zeros cimport mark_zero

from minicaffe.memory.synced import device_lock


cdef extern from "minicaffe/ops/update/caffe.hpp" namespace "mc" nogil:
    void zero_all(const Context&, int n, void** at, const long long* nbytes)


cdef int clear_gradients(list params) except -1:
    """Set the diffs of parameters to zero."""
    cdef Blob blob
    cdef Context on = context()
    cdef Layout layout
    cdef vector[void*] at           # on a device, for one launch
    cdef vector[long long] nbytes
    with device_lock:
        for blob in params:
            if blob.diff_memory.head == RECYCLED:
                blob.diff_memory.renew()
            elif on.stream == NULL:
                blob.fill_diff_on(on, 0)
            elif blob.count and not mark_zero(blob.diff_memory, blob.count * item_size(blob.dtype), True):
                layout = diff_layout(on, [blob])
                at.push_back(blob.mutable_diff_in_layout(on, layout))
                nbytes.push_back(stored(layout, blob) * item_size(blob.dtype))
        zero_all(on, <int> at.size(), at.data(), nbytes.data())
        settle(on)
