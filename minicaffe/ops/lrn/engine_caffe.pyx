"""Local response normalisation by engine CAFFE (ops/lrn/caffe.hpp)."""

from minicaffe.ops.engine cimport Blob, Context, Operation, Primitive
from minicaffe.ops.lrn.operation cimport LRN, LrnShape

from minicaffe.ops.engines import CAFFE

cdef extern from "minicaffe/ops/lrn/caffe.hpp" namespace "mc" nogil:
    long long lrn_scratch(const Context&, const LrnShape&)
    void lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y, void* scale)
    void lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* scale, const void* dy,
                      void* dx, void* scratch)


cdef class CaffeLRN(Primitive):
    cdef Blob scale     # s, kept on a device

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef LRN op = operation
        cdef void* scale = NULL
        if on.stream != NULL:
            if self.scale is None:
                self.scale = Blob((0,), op.dtype, "scale")
            self.scale.reshape_like(x)
            scale = self.scale.mutable_data_on(on)
        with nogil:
            lrn_forward(on, op.dtype, op.shape, x.data_on(on), y.mutable_data_on(on), scale)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef LRN op = operation
        cdef void* scratch = op.scratch(on, lrn_scratch(on, op.shape))
        with nogil:
            lrn_backward(on, op.dtype, op.shape, x.data_on(on), y.data_on(on) if on.stream != NULL else NULL,
                         self.scale.data_on(on) if on.stream != NULL else NULL, y.diff_on(on), x.mutable_diff_on(on), scratch)


CAFFE.computes(LRN, CaffeLRN)
