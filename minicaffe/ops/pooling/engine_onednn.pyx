"""Pooling by engine ONEDNN (ops/pooling/onednn.hpp)."""

from minicaffe.onednn.library cimport Array, Library, OnednnLayout, layout_of, library, not_images
from minicaffe.ops.engine cimport Blob, Context, Layout, Operation, Primitive, refuse
from minicaffe.ops.pooling.operation cimport AVE, MAX, Pooling, PoolShape

from minicaffe.ops.engines import ONEDNN

cdef extern from "minicaffe/ops/pooling/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnPool "mc::onednn::Pool":
        Array x, y
        void make(const Library*, const PoolShape&, long long images, long long channels, bint max, const Array& image,
                  int threads) except +refuse
        size_t workspace()
        size_t forward_scratch()
        void forward(const void* x, void* y, void* workspace, void* scratch) except +refuse
        void make_backward() except +refuse
        size_t backward_scratch()
        void backward(const void* dy, const void* workspace, void* dx, void* scratch) except +refuse


def refuses(Pooling op):
    if op.method not in (MAX, AVE) or op.mask_shown:
        return "STOCHASTIC pooling, and pooling with a mask as second top"
    return not_images(op.layout, (op.images, op.channels))


cdef class OnednnPooling(Primitive):
    cdef OnednnPool pool
    cdef OnednnLayout x
    cdef Layout y
    cdef long long workspace    # numbers that forward keeps for backward

    def __cinit__(self, Pooling op):
        self.x = op.layout
        self.pool.make(library(), op.shape, op.images, op.channels, op.method == MAX, self.x.array, op.threads)
        self.y = layout_of(self.pool.y)
        self.workspace = (self.pool.workspace() + 3) // 4

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob mask, Blob q) except -1:
        cdef Blob kept = operation.keep((self.workspace,))
        cdef void* scratch = operation.scratch(on, (self.pool.forward_scratch() + 3) // 4)
        with nogil:
            self.pool.forward(x.data_in(on, self.x), y.overwrite_data_in(on, self.y),
                              kept.mutable_data_on(on) if self.workspace else NULL, scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob mask, Blob q) except -1:
        self.pool.make_backward()
        cdef void* scratch = operation.scratch(on, (self.pool.backward_scratch() + 3) // 4)
        with nogil:
            self.pool.backward(y.diff_in(on, self.y), operation.kept.data_on(on) if self.workspace else NULL,
                               x.overwrite_diff_in(on, self.x), scratch)


ONEDNN.computes(Pooling, OnednnPooling, refuses)
