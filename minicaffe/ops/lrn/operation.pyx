"""The operation of local response normalisation, and engines CAFFE and PLAIN (ops/lrn/caffe.hpp and plain.hpp)."""

from minicaffe.engines.engine cimport Blob, Context, Layout, Primitive
from minicaffe.engines.layouts cimport data_layout, element, of_images

from minicaffe.engines.table import CAFFE, PLAIN

cdef extern from "minicaffe/ops/lrn/caffe.hpp" namespace "mc" nogil:
    long long lrn_scratch(const Context&, const LrnShape&)
    void lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y, void* scale)
    void lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* scale, const void* dy,
                      void* dx, void* scratch)

cdef extern from "minicaffe/ops/lrn/plain.hpp" nogil:
    void plain_forward "MC_PLAIN(mc::plain::lrn_forward)"(int dtype, const Context&, const LrnShape&, const void* x, void* y)
    void plain_backward "MC_PLAIN(mc::plain::lrn_backward)"(int dtype, const Context&, const LrnShape&, const void* x,
                                                            const void* dy, void* dx)


cdef class LRN(Operation):
    """``y = x s^-beta`` with ``s = k + alpha sum x^2`` over a window; x and y have one shape, as groups of rows (kernel.hpp)."""

    def __cinit__(self, *_):
        self.saves_for_backward = self.depends_on_layout = True     # for Operation: backward needs data of forward


cdef class CaffeLRN(Primitive):
    """Engine CAFFE; or, if it is `plain`, engine PLAIN. Its methods override Primitive's, which `Operation` calls."""

    cdef Blob scale     # s, kept on a device for backward
    cdef Layout layout  # of all blobs in the last forward: channels last, or None (plain)
    cdef LrnShape shape  # the operation's shape in this layout: with channels last a row is a pixel's channels

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef LRN op = operation
        cdef void* scale = NULL
        self.layout, self.shape = None, op.shape
        if on.stream != NULL:       # in the bottom's layout if that has channels last (of_images)
            self.layout = of_images(data_layout(on, [bottom], True), bottom) if not op.shape.half_columns else None
            if self.layout is not None:
                self.shape.groups, self.shape.rows, self.shape.width = op.shape.groups * op.shape.width, 1, op.shape.rows
                self.shape.half_rows, self.shape.half_columns = 0, min(op.shape.half_rows, op.shape.rows)
            if self.scale is None:
                self.scale = Blob((0,), op.dtype, "scale")
            self.scale.reshape_like(bottom)
            scale = self.scale.mutable_data_on(on)
        cdef int dtype = element(self.layout, bottom)
        cdef const void* x = bottom.data_in_layout(on, self.layout)
        cdef void* y = top.overwrite_data_in_layout(on, self.layout)
        with nogil:
            if self.plain:
                plain_forward(dtype, on, op.shape, x, y)
            else:
                lrn_forward(on, dtype, self.shape, x, y, scale)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef LRN op = operation
        cdef void* scratch = op.scratch(on, lrn_scratch(on, op.shape))
        cdef int dtype = element(self.layout, bottom)
        cdef const void* x = bottom.data_in_layout(on, self.layout)
        cdef const void* y = top.data_in_layout(on, self.layout) if on.stream != NULL else NULL
        cdef const void* scale = self.scale.data_on(on) if on.stream != NULL else NULL
        cdef const void* dy = top.diff_in_layout(on, self.layout)
        cdef void* dx = bottom.overwrite_diff_in_layout(on, self.layout)
        with nogil:
            if self.plain:
                plain_backward(dtype, on, op.shape, x, dy, dx)
            else:
                lrn_backward(on, dtype, self.shape, x, y, scale, dy, dx, scratch)


CAFFE.computes(LRN, CaffeLRN)
PLAIN.computes(LRN, CaffeLRN)
