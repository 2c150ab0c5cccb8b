"""Local response normalisation by engine CUDNN (ops/lrn/cudnn.hpp)."""

from minicaffe.engines.engine cimport Blob, Context, Operation, Primitive, refuse
from minicaffe.ops.lrn.operation cimport LRN, LrnShape

from minicaffe.engines.table import CUDNN

cdef extern from "minicaffe/ops/lrn/cudnn.hpp" namespace "mc::cuda" nogil:
    void cudnn_lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y) except +refuse
    void cudnn_lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* dy,
                            void* dx) except +refuse


cdef class CudnnLRN(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef LRN op = operation
        with nogil:
            cudnn_lrn_forward(on, op.dtype, op.shape, x.data_on(on), y.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef LRN op = operation
        with nogil:
            cudnn_lrn_backward(on, op.dtype, op.shape, x.data_on(on), y.data_on(on), y.diff_on(on), x.mutable_diff_on(on))


def refuses(LRN op):
    return "LRN of a bottom whose channels are last" if op.layout is not None else None


CUDNN.computes(LRN, CudnnLRN, refuses)
