"""Local response normalisation: what a layer asks for, and what engines CAFFE (ops/lrn/caffe.hpp), CUDNN (ops/lrn/cudnn.hpp)
and ONEDNN (ops/lrn/onednn.hpp) answer.
"""

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.device.context cimport Context
from minicaffe.onednn.library cimport Array, Library, PrivateLayout, library
from minicaffe.ops.engine cimport Operation, Primitive

from minicaffe.errors import DependencyError
from minicaffe.ops.engine import Refusal, offer

cdef extern from "minicaffe/ops/lrn/caffe.hpp" namespace "mc" nogil:
    long long lrn_scratch(const Context&, const LrnShape&)
    void lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y, void* scale)
    void lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* scale, const void* dy,
                      void* dx, void* scratch)

cdef extern from "minicaffe/ops/lrn/cudnn.hpp" namespace "mc::cuda" nogil:
    const char* cudnn_reason(const Context&)
    bint cudnn_lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y)
    bint cudnn_lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* dy, void* dx)

cdef extern from "minicaffe/ops/lrn/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnLrn "mc::onednn::Lrn":
        void make(const Library*, const LrnShape&, const Array& image, int threads) except +
        size_t workspace()
        void forward(const void* x, void* y, void* workspace) except +
        void backward(const void* x, const void* dy, const void* workspace, void* dx) except +


cdef class LRN(Operation):
    """``y = x s^-beta`` with ``s = k + alpha sum x^2`` over a window; x and y have the same shape, seen as groups of rows."""

    cdef int forward(self, const Context& on, Blob x, Blob y) except -1:
        """y from x"""
        self.ran = self.primitive(on)
        return self.ran.forward(on, self, x, y)

    cdef int backward(self, const Context& on, Blob x, Blob y) except -1:
        """dx from dy"""
        return self.ran.backward(on, self, x, y)


cdef class LRNPrimitive(Primitive):
    """Engine CAFFE; other engines override what they do otherwise."""

    def __cinit__(self):
        self.engine = "CAFFE"

    cdef int forward(self, const Context& on, LRN op, Blob x, Blob y) except -1:
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef void* scale = NULL
        if on.stream != NULL:
            if op.scale is None:
                op.scale = Blob((0,), op.dtype, "scale")
            op.scale.reshape_like(x)
            scale = op.scale.mutable_data_on(on)
        with nogil:
            lrn_forward(on, op.dtype, op.shape, from_, to, scale)
        op.scaled = on.stream != NULL
        return 0

    cdef int backward(self, const Context& on, LRN op, Blob x, Blob y) except -1:
        if on.stream != NULL and not op.scaled:     # another engine, or the CPU, went forward
            LRNPrimitive.forward(self, on, op, x, y)
        cdef const void* from_ = x.data_on(on)
        cdef const void* to = y.data_on(on) if on.stream != NULL else NULL
        cdef const void* scale = op.scale.data_on(on) if on.stream != NULL else NULL
        cdef const void* dy = y.diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef void* scratch = op.scratch(on, lrn_scratch(on, op.shape))
        with nogil:
            lrn_backward(on, op.dtype, op.shape, from_, to, scale, dy, dx, scratch)
        return 0


cdef class CudnnLRN(LRNPrimitive):
    """Engine CUDNN: across channels."""

    def __cinit__(self):
        self.engine = "CUDNN"

    cdef int forward(self, const Context& on, LRN op, Blob x, Blob y) except -1:
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef bint done
        with nogil:
            done = cudnn_lrn_forward(on, op.dtype, op.shape, from_, to)
        if done:
            op.scaled = False
            return 0
        op.refusals["CUDNN"] = (<bytes> cudnn_reason(on)).decode()
        return LRNPrimitive.forward(self, on, op, x, y)

    cdef int backward(self, const Context& on, LRN op, Blob x, Blob y) except -1:
        cdef bint done = False
        cdef const void* from_
        cdef const void* to
        cdef const void* dy
        cdef void* dx
        if not op.scaled:
            from_, to, dy, dx = x.data_on(on), y.data_on(on), y.diff_on(on), x.mutable_diff_on(on)
            with nogil:
                done = cudnn_lrn_backward(on, op.dtype, op.shape, from_, to, dy, dx)
            if not done:
                op.refusals["CUDNN"] = (<bytes> cudnn_reason(on)).decode()
        return 0 if done else LRNPrimitive.backward(self, on, op, x, y)


cdef class OnednnLRN(LRNPrimitive):
    """Engine ONEDNN: across channels, where the image is in one of its layouts."""

    cdef OnednnLrn lrn
    cdef PrivateLayout layout   # for which `lrn` was made
    cdef str trouble            # why oneDNN does not compute it for that layout; "": it does
    cdef Blob workspace         # what forward keeps for backward
    cdef bint computed          # the last forward pass was oneDNN's

    def __cinit__(self):
        self.engine = "ONEDNN"

    cdef bint ready(self, const Context& on, LRN op, Blob x) except -1:
        """Whether oneDNN computes for the layout in which x is now."""
        layout = x.layout_of_data()
        if not isinstance(layout, PrivateLayout) or layout.dims != x.shape or x.num_axes != 4 or op.shape.half_columns or (
                op.shape.groups, op.shape.rows) != (x.dims[0], x.dims[1]):
            return False
        if layout is not self.layout:
            self.layout, self.trouble = layout, ""
            try:
                self.lrn.make(library(), op.shape, self.layout.array, on.threads.count)
                self.workspace = Blob(((self.lrn.workspace() + 3) // 4,), FLOAT, "LRN workspace")
            except RuntimeError as error:
                self.trouble = str(error)
                op.refused("ONEDNN", self.trouble)
        return not self.trouble

    cdef int forward(self, const Context& on, LRN op, Blob x, Blob y) except -1:
        self.computed = self.ready(on, op, x)
        if not self.computed:
            return LRNPrimitive.forward(self, on, op, x, y)
        cdef void* workspace = self.workspace.mutable_data_on(on)
        cdef const void* from_ = x.data_in(on, self.layout)
        cdef void* to = y.overwrite_data_in(on, self.layout)
        with nogil:
            self.lrn.forward(from_, to, workspace)
        return y.wrote_data()

    cdef int backward(self, const Context& on, LRN op, Blob x, Blob y) except -1:
        if not self.computed:
            return LRNPrimitive.backward(self, on, op, x, y)
        cdef const void* workspace = self.workspace.data_on(on)
        cdef const void* from_ = x.data_in(on, self.layout)
        cdef const void* dy = y.diff_in(on, self.layout)
        cdef void* dx = x.overwrite_diff_in(on, self.layout)
        with nogil:
            self.lrn.backward(from_, dy, workspace, dx)
        return x.wrote_diff()


def _ask_onednn(LRN operation):
    if operation.dtype != FLOAT:
        raise Refusal("float64 data: oneDNN computes float32 only")
    try:
        library()
    except DependencyError as error:
        raise Refusal(str(error)) from None
    return OnednnLRN()


_caffe, _cudnn = LRNPrimitive(), CudnnLRN()     # have no state of their own
offer(LRN, "CAFFE", lambda operation: _caffe)
offer(LRN, "CUDNN", lambda operation: _cudnn)
offer(LRN, "ONEDNN", _ask_onednn)
