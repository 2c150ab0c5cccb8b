"""StripLayer: along one axis a blob is rows of contiguous strips, one for each index before the axis."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.kernels.types cimport item_size
from minicaffe.layer cimport DeviceLayer
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.layouts cimport element, concat_layouts, concat_rows
from minicaffe.ops.strided.caffe cimport copy_strided


cdef class StripLayer(DeviceLayer):
    """Parts of equal rows lie side by side in a whole: Concat joins the parts, Slice takes them apart.

    A single part is the whole: it shares data and diff.
    """

    backward_reads_bottoms = backward_reads_tops = False
    flops_per_value = 0, 0
    refuses_in_place = True

    cdef int set_rows(self, list parts, Blob whole) except -1:
        """Find the number of rows; return whether there is one part only."""
        self.rows = whole.count_range(0, self.axis)
        return len(parts) == 1

    cdef int copy_parts(self, const Context& on, list parts, Blob whole, bint join, bint diff, list wanted) except -1:
        """Copy those parts that are wanted, None: all, into the whole, or with `join` false out of it."""
        cdef list layouts = [None] * (len(parts) + 1)
        if self.axis == 1 and whole.num_axes == 4:
            layouts = concat_layouts(on, parts, whole, parts if join and wanted is None else [whole], diff)
        cdef Layout layout = layouts[len(parts)]
        cdef int dtype = element(layout, whole)
        cdef long long rows = self.rows if layout is None else concat_rows(layout, whole)
        cdef long long[2] size = [rows, 0], stride = [0, 1], whole_stride = [whole.count // max(rows, 1), 1]
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
            size[1] = stride[0] = part.count // max(rows, 1)
            if wanted is None or wanted[i]:
                if join:
                    here = <void*> (part.diff_in_layout(on, layout) if diff else part.data_in_layout(on, layout))
                    with nogil:
                        copy_strided(on, dtype, dtype, 2, size, here, stride, there, whole_stride)
                else:
                    here = part.overwrite_diff_in_layout(on, layout) if diff else part.overwrite_data_in_layout(on, layout)
                    with nogil:
                        copy_strided(on, dtype, dtype, 2, size, there, whole_stride, here, stride)
            there += size[1] * item_size(dtype)
