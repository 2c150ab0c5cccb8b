"""Local response normalisation by engine ONEDNN (ops/lrn/onednn.hpp)."""

from minicaffe.onednn.library cimport OnednnLayout, why_no_image_layout
from minicaffe.ops.lrn.operation cimport LRN, LrnShape
from minicaffe.ops.onednn cimport Array, WorkspacePrimitive, Library, OnednnWorkspacePrimitive, library, refuse  # no-cython-lint

from minicaffe.ops.engines import ONEDNN

cdef extern from "minicaffe/ops/lrn/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnLrn "mc::onednn::Lrn"(WorkspacePrimitive):
        void make(const Library*, const LrnShape&, const Array& image, int threads) except +refuse


def refuses(LRN op):
    return "LRN within a channel" if op.shape.half_columns else why_no_image_layout(op.layout, (op.shape.groups, op.shape.rows))


cdef class OnednnLRN(OnednnWorkspacePrimitive):
    cdef OnednnLrn lrn

    def __cinit__(self, LRN op):
        self.lrn.make(library(), op.shape, (<OnednnLayout> op.layout).array, op.threads)
        self.bind_primitives(&self.lrn)
        self.backward_reads_x = True


ONEDNN.computes(LRN, OnednnLRN, refuses)
