"""Split: one blob for several readers, whose gradients add up (Caffe split_layer.cpp)."""

from libcpp.vector cimport vector

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Context, DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.eltwise.caffe cimport weighted_sum
from minicaffe.engines.layouts cimport diff_layout, element, stored


cdef class SplitLayer(DeviceLayer):
    """Give one blob to several readers: the tops share its data, and backward adds their diffs in order.

    A net inserts it where several layers read a blob. No reader may work in place on a top, the others would read the result.
    """

    exact_num_bottom_blobs = 1
    min_top_blobs = 1
    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False
    cdef readonly list without_gradient     # tops whose readers pass none; None: no net has set it

    def leave_out(self, tops):
        """Add no diffs of these tops, whose readers give no gradient (net/build.py): a Flatten may have its own in that memory."""
        self.without_gradient = tops

    def flops(self, bottom, top):       # forward computes nothing
        return 0

    cpdef reshape(self, list bottom, list top):
        for blob in top:
            (<Blob?> blob).reshape_like(<Blob?> bottom[0])
            (<Blob?> blob).share_data(<Blob?> bottom[0])

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        return 0    # the tops are the bottom

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef vector[const void*] dy
        top = [blob for blob in top if blob not in self.without_gradient] or top if self.without_gradient else top
        cdef Layout layout = diff_layout(on, top, True)     # an engine's order of elements, if a top has one; None: plain
        cdef long long count = stored(layout, bottom[0])    # of elements, with padding
        cdef int dtype = element(layout, bottom[0])         # BF16 in some layouts, else the net's
        for blob in top:
            dy.push_back((<Blob> blob).diff_in_layout(on, layout))
        cdef void* dx = (<Blob> bottom[0]).overwrite_diff_in_layout(on, layout)
        with nogil:
            weighted_sum(on, dtype, count, <int> dy.size(), dy.data(), NULL, dx)    # NULL: all weights are 1
