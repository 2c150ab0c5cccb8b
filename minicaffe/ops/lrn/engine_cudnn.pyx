"""Local response normalisation by engine CUDNN (ops/lrn/cudnn.hpp)."""

from minicaffe.engines.engine cimport Blob, Context, Operation, Primitive, refuse
from minicaffe.ops.lrn.operation cimport LRN, LrnShape

from minicaffe.engines.table import CUDNN

cdef extern from "minicaffe/ops/lrn/cudnn.hpp" namespace "mc::cuda" nogil:
    void cudnn_lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y) except +refuse
    void cudnn_lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* dy,
                            void* dx) except +refuse


cdef class CudnnLRN(Primitive):     # in plain order; cuDNN refuses some sizes, and within a channel, in the first forward
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef LRN op = operation
        with nogil:
            cudnn_lrn_forward(on, op.dtype, op.shape, bottom.data_on(on), top.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef LRN op = operation
        with nogil:
            cudnn_lrn_backward(on, op.dtype, op.shape, bottom.data_on(on), top.data_on(on), top.diff_on(on),
                               bottom.mutable_diff_on(on))


def refuses(LRN op):  # engines/table.py: return why the engine cannot compute it, or None
    return "LRN of a bottom whose channels are last" if op.layout is not None else None


CUDNN.computes(LRN, CudnnLRN, refuses)
