"""StripLayer: parts of a blob along one axis, and the whole."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.kernels.types cimport item_size
from minicaffe.layer cimport DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.engines.channels_last cimport find_strides
from minicaffe.engines.layouts cimport element, concat_layouts
from minicaffe.loops.strided.caffe cimport copy_strided


cdef class StripLayer(DeviceLayer):
    """Parts of equal rows lie side by side in a whole: Concat joins the parts, Slice takes them apart.

    A single part is the whole: it shares data and diff.
    """

    backward_reads_bottoms = backward_reads_tops = False
    refuses_in_place = True

    cdef int copy_parts(self, const Context& on, list parts, Blob whole, bint join, bint diff, list wanted) except -1:
        """Copy parts into the whole (`join`) or out of it: data, or gradients (`diff`); `wanted`: a bool for each, None: all."""
        cdef list layouts = [None] * (len(parts) + 1)       # an engine's of each part and, last, of the whole; None: plain
        if self.axis == 1 and whole.num_axes == 4:
            layouts = concat_layouts(on, parts, whole, parts if join and wanted is None else [whole], diff)
        cdef Layout layout = layouts[len(parts)]
        cdef int dtype = element(layout, whole)
        cdef long long[32] strides, whole_strides
        find_strides(layout, whole, whole_strides)
        cdef char* there
        if join and wanted is not None:
            there = <char*> (whole.mutable_diff_in_layout(on, layout) if diff else whole.mutable_data_in_layout(on, layout))
        elif join:
            there = <char*> (whole.overwrite_diff_in_layout(on, layout) if diff else whole.overwrite_data_in_layout(on, layout))
        else:
            there = <char*> <void*> (whole.diff_in_layout(on, layout) if diff else whole.data_in_layout(on, layout))
        cdef void* here
        cdef Blob part
        cdef int i
        for i in range(len(parts)):
            part, layout = parts[i], layouts[i]
            if wanted is None or wanted[i]:
                find_strides(layout, part, strides)
                if join:
                    here = <void*> (part.diff_in_layout(on, layout) if diff else part.data_in_layout(on, layout))
                    with nogil:
                        copy_strided(on, dtype, dtype, part.num_axes, part.dims, here, strides, there, whole_strides)
                else:
                    here = part.overwrite_diff_in_layout(on, layout) if diff else part.overwrite_data_in_layout(on, layout)
                    with nogil:
                        copy_strided(on, dtype, dtype, part.num_axes, part.dims, there, whole_strides, here, strides)
            there += part.dims[self.axis] * whole_strides[self.axis] * item_size(dtype)
