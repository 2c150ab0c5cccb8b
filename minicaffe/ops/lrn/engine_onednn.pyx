"""Local response normalisation by engine ONEDNN (ops/lrn/onednn.hpp)."""

from minicaffe.engines.onednn.library cimport OnednnLayout, why_no_image_layout
from minicaffe.ops.lrn.operation cimport LRN, LrnShape
from minicaffe.engines.onednn.primitives cimport Array, Library, OnednnWorkspacePrimitive, WorkspacePrimitive, library, refuse

from minicaffe.engines.table import ONEDNN

cdef extern from "minicaffe/ops/lrn/onednn.hpp" namespace "mc::onednn" nogil:
    void make_lrn(WorkspacePrimitive& made, const Library*, const LrnShape&, const Array& x, int threads) except +refuse


def refuses(LRN op):  # engines/table.py: return why the engine cannot compute it, or None
    return "LRN within a channel" if op.shape.half_columns else why_no_image_layout(op.layout, (op.shape.groups, op.shape.rows))


def make(LRN op):  # engines/table.py: return the primitive; `refuses` has checked that the layout is oneDNN's
    cdef OnednnWorkspacePrimitive made = OnednnWorkspacePrimitive()
    make_lrn(made.steps, library(), op.shape, (<OnednnLayout> op.layout).array, op.threads)
    made.set_layouts()
    return made


ONEDNN.computes(LRN, make, refuses)
