"""Local response normalisation by engine ONEDNN (ops/lrn/onednn.hpp)."""

from minicaffe.onednn.library cimport Array, Library, OnednnLayout, library, not_images
from minicaffe.ops.engine cimport Blob, Context, Operation, Primitive, refuse
from minicaffe.ops.lrn.operation cimport LRN, LrnShape

from minicaffe.ops.engines import ONEDNN

cdef extern from "minicaffe/ops/lrn/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnLrn "mc::onednn::Lrn":
        void make(const Library*, const LrnShape&, const Array& image, int threads) except +refuse
        size_t workspace()
        size_t forward_scratch()
        void forward(const void* x, void* y, void* workspace, void* scratch) except +refuse
        void make_backward() except +refuse
        size_t backward_scratch()
        void backward(const void* x, const void* dy, const void* workspace, void* dx, void* scratch) except +refuse


def refuses(LRN op):
    return "LRN within a channel" if op.shape.half_columns else not_images(op.layout, (op.shape.groups, op.shape.rows))


cdef class OnednnLRN(Primitive):
    cdef OnednnLrn lrn
    cdef OnednnLayout layout

    def __cinit__(self, LRN op):
        self.layout = op.layout
        self.lrn.make(library(), op.shape, self.layout.array, op.threads)

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Blob kept = operation.keep(((self.lrn.workspace() + 3) // 4,))
        cdef void* scratch = operation.scratch(on, (self.lrn.forward_scratch() + 3) // 4)
        with nogil:
            self.lrn.forward(x.data_in(on, self.layout), y.overwrite_data_in(on, self.layout), kept.mutable_data_on(on), scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        self.lrn.make_backward()
        cdef void* scratch = operation.scratch(on, (self.lrn.backward_scratch() + 3) // 4)
        with nogil:
            self.lrn.backward(x.data_in(on, self.layout), y.diff_in(on, self.layout), operation.kept.data_on(on),
                              x.overwrite_diff_in(on, self.layout), scratch)


ONEDNN.computes(LRN, OnednnLRN, refuses)
