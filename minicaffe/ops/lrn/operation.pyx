"""Local response normalisation: what a layer asks for, and what engines CAFFE (ops/lrn/caffe.hpp) and CUDNN (ops/lrn/cudnn.hpp)
answer.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive

from minicaffe.ops.engine import offer

cdef extern from "minicaffe/ops/lrn/caffe.hpp" namespace "mc" nogil:
    long long lrn_scratch(const Context&, const LrnShape&)
    void lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y, void* scale)
    void lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* scale, const void* dy,
                      void* dx, void* scratch)

cdef extern from "minicaffe/ops/lrn/cudnn.hpp" namespace "mc::cuda" nogil:
    const char* cudnn_reason(const Context&)
    bint cudnn_lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y)
    bint cudnn_lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* dy, void* dx)


cdef class LRN(Operation):
    """``y = x s^-beta`` with ``s = k + alpha sum x^2`` over a window; x and y have the same shape, seen as groups of rows."""

    cdef int forward(self, const Context& on, Blob x, Blob y) except -1:
        """y from x"""
        return (<LRNPrimitive> self.primitive(on)).forward(on, self, x, y)

    cdef int backward(self, const Context& on, Blob x, Blob y) except -1:
        """dx from dy"""
        return (<LRNPrimitive> self.primitive(on)).backward(on, self, x, y)


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


_caffe, _cudnn = LRNPrimitive(), CudnnLRN()     # have no state of their own
offer(LRN, "CAFFE", lambda operation: _caffe)
offer(LRN, "CUDNN", lambda operation: _cudnn)
