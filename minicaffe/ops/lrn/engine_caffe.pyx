"""Local response normalisation by engine CAFFE (ops/lrn/caffe.hpp)."""

from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive
from minicaffe.engines.layouts cimport data_layout, element, of_images
from minicaffe.ops.lrn.operation cimport LRN, LrnShape

from minicaffe.engines.table import CAFFE

cdef extern from "minicaffe/ops/lrn/caffe.hpp" namespace "mc" nogil:
    long long lrn_scratch(const Context&, const LrnShape&)
    void lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y, void* scale)
    void lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* scale, const void* dy,
                      void* dx, void* scratch)


cdef class CaffeLRN(Primitive):
    cdef Blob scale     # s, kept on a device
    cdef Layout layout  # of all blobs in the last forward
    cdef LrnShape shape  # ... in which the window is along the rows where channels are last

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef LRN op = operation
        cdef void* scale = NULL
        self.layout, self.shape = None, op.shape
        if on.stream != NULL:
            self.layout = of_images(data_layout(on, [bottom], True), bottom) if not op.shape.half_columns else None
            if self.layout is not None:
                self.shape.groups, self.shape.rows, self.shape.width = op.shape.groups * op.shape.width, 1, op.shape.rows
                self.shape.half_rows, self.shape.half_columns = 0, min(op.shape.half_rows, op.shape.rows)
            if self.scale is None:
                self.scale = Blob((0,), op.dtype, "scale")
            self.scale.reshape_like(bottom)
            scale = self.scale.mutable_data_on(on)
        cdef int dtype = element(self.layout, bottom)
        with nogil:
            lrn_forward(on, dtype, self.shape, bottom.data_in_layout(on, self.layout),
                        top.overwrite_data_in_layout(on, self.layout), scale)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef LRN op = operation
        cdef void* scratch = op.scratch(on, lrn_scratch(on, op.shape))
        cdef int dtype = element(self.layout, bottom)
        with nogil:
            lrn_backward(on, dtype, self.shape, bottom.data_in_layout(on, self.layout),
                         top.data_in_layout(on, self.layout) if on.stream != NULL else NULL,
                         self.scale.data_on(on) if on.stream != NULL else NULL, top.diff_in_layout(on, self.layout),
                         bottom.overwrite_diff_in_layout(on, self.layout), scratch)


CAFFE.computes(LRN, CaffeLRN)
