"""Pooling by engine ONEDNN, of a bottom in one of its layouts (ops/pooling/onednn.hpp)."""

from minicaffe.engines.onednn.library cimport OnednnLayout, why_no_image_layout
from minicaffe.engines.onednn.primitives cimport Array, Library, OnednnWorkspacePrimitive, WorkspacePrimitive, library, refuse
from minicaffe.ops.pooling.operation cimport AVE, MAX, Pooling, PoolShape

from minicaffe.engines.table import ONEDNN

cdef extern from "minicaffe/ops/pooling/onednn.hpp" namespace "mc::onednn" nogil:
    void make_pool(WorkspacePrimitive& made, const Library*, const PoolShape&, bint max, const Array& x, int threads) except +refuse


def refuses(Pooling op):  # engines/table.py: return why the engine cannot compute it, or None
    if op.method not in (MAX, AVE) or op.mask_shown:
        return "STOCHASTIC pooling, and pooling with a mask as second top"
    return why_no_image_layout(op.layout, (op.shape.images, op.shape.channels))


def make(Pooling op):  # engines/table.py: return the primitive; `refuses` has checked that the layout is oneDNN's
    cdef OnednnWorkspacePrimitive made = OnednnWorkspacePrimitive()
    make_pool(made.steps, library(), op.shape, op.method == MAX, (<OnednnLayout> op.layout).array, op.threads)
    made.set_layouts()
    return made


ONEDNN.computes(Pooling, make, refuses)
