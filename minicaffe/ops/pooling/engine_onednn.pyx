"""Pooling by engine ONEDNN (ops/pooling/onednn.hpp)."""

from minicaffe.engines.onednn.library cimport OnednnLayout, why_no_image_layout
from minicaffe.engines.onednn.primitives cimport Array, Library, OnednnWorkspacePrimitive, WorkspacePrimitive, library, refuse
from minicaffe.ops.pooling.operation cimport AVE, MAX, Pooling, PoolShape

from minicaffe.engines.table import ONEDNN

cdef extern from "minicaffe/ops/pooling/onednn.hpp" namespace "mc::onednn" nogil:
    void make_pool(WorkspacePrimitive& made, const Library*, const PoolShape&, bint max, const Array& x, int threads) except +refuse


def refuses(Pooling op):
    if op.method not in (MAX, AVE) or op.mask_shown:
        return "STOCHASTIC pooling, and pooling with a mask as second top"
    return why_no_image_layout(op.layout, (op.shape.images, op.shape.channels))


def make(Pooling op):
    cdef OnednnWorkspacePrimitive made = OnednnWorkspacePrimitive()
    make_pool(made.steps, library(), op.shape, op.method == MAX, (<OnednnLayout> op.layout).array, op.threads)
    made.set_layouts()
    return made


ONEDNN.computes(Pooling, make, refuses)
