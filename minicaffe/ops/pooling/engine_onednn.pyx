"""Pooling by engine ONEDNN (ops/pooling/onednn.hpp)."""

from minicaffe.onednn.library cimport OnednnLayout, why_no_image_layout
from minicaffe.ops.onednn cimport Array, WorkspacePrimitive, Library, OnednnWorkspacePrimitive, library, refuse  # no-cython-lint
from minicaffe.ops.pooling.operation cimport AVE, MAX, Pooling, PoolShape

from minicaffe.ops.engines import ONEDNN

cdef extern from "minicaffe/ops/pooling/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnPool "mc::onednn::Pool"(WorkspacePrimitive):
        void make(const Library*, const PoolShape&, long long images, long long channels, bint max, const Array& image,
                  int threads) except +refuse


def refuses(Pooling op):
    if op.method not in (MAX, AVE) or op.mask_shown:
        return "STOCHASTIC pooling, and pooling with a mask as second top"
    return why_no_image_layout(op.layout, (op.images, op.channels))


cdef class OnednnPooling(OnednnWorkspacePrimitive):
    cdef OnednnPool pool

    def __cinit__(self, Pooling op):
        self.pool.make(library(), op.shape, op.images, op.channels, op.method == MAX, (<OnednnLayout> op.layout).array, op.threads)
        self.bind_primitives(&self.pool)


ONEDNN.computes(Pooling, OnednnPooling, refuses)
