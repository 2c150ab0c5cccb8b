"""The inner product by engine ONEDNN, in bf16 only (ops/inner_product/onednn.hpp)."""

from libc.stdint cimport int64_t

from minicaffe.ops.inner_product.operation cimport InnerProduct
from minicaffe.engines.onednn.primitives cimport Library, OnednnWeightsPrimitive, Weighted, library, refuse  # no-cython-lint

from minicaffe.engines.engine import get_precision
from minicaffe.engines.table import ONEDNN

cdef extern from "minicaffe/ops/inner_product/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnInner "mc::onednn::Inner"(Weighted):
        void make(const Library*, int64_t rows, int64_t inputs, int64_t outputs, int threads) except +refuse

cdef enum:
    FEW = 128           # rows, up to which to round the weights in each step takes longer than bf16 saves (measured)


def refuses(InnerProduct op):  # engines/table.py: return why the engine cannot compute it, or None
    if get_precision() != "bf16":
        return "an inner product in float32: only those in bf16 are computed"
    return "an inner product with transpose: true" if op.transpose else None


def slower(InnerProduct op):  # engines/table.py: return why a later engine takes less time, or None
    if op.learned and op.m <= FEW:
        return (f"an inner product of {op.m} rows, for up to {FEW} of which rounding the weights in each step "
                "takes longer than bf16 saves")


cdef class OnednnInnerProduct(OnednnWeightsPrimitive):
    cdef OnednnInner inner      # the steps in C++, which the methods of the base class run

    def __cinit__(self, InnerProduct op):
        self.inner.make(library(), op.m, op.k, op.n, op.threads)
        self.bind_primitives(&self.inner)


ONEDNN.computes(InnerProduct, OnednnInnerProduct, refuses, slower)
