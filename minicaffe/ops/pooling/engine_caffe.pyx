"""Pooling by engine CAFFE (ops/pooling/caffe.hpp)."""

from minicaffe.memory.layout cimport Layout
from minicaffe.engines.channels_last cimport channels_last
from minicaffe.engines.engine cimport Blob, Context, Operation, Primitive
from minicaffe.engines.layouts cimport data_layout, element, of_images
from minicaffe.ops.pooling.operation cimport STOCHASTIC, Pooling, PoolShape

from minicaffe.engines.table import CAFFE

cdef extern from "minicaffe/ops/pooling/caffe.hpp" namespace "mc" nogil:
    long long pool_scratch(const Context&, const PoolShape&, bint backward)
    void pool_forward(const Context&, int, const PoolShape&, const void* x, void* y, void* mask, void* scratch)
    void pool_backward(const Context&, int, const PoolShape&, const void* dy, const void* mask, void* dx, void* scratch)
    void stochastic_forward(const Context&, int, const PoolShape&, unsigned long long seed, unsigned long long start,
                            const void* x, void* y, void* mask)
    void pool_forward_channels_last(const Context&, int, const PoolShape&, const void* x, void* y, void* mask)
    void pool_backward_channels_last(const Context&, int, const PoolShape&, const void* dy, const void* mask, void* dx)


cdef class CaffePooling(Primitive):
    cdef Layout x, y, mask      # in the most recent forward: with channels last, on a device; None: plain

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob mask, Blob q) except -1:
        cdef Pooling op = operation
        self.x = of_images(data_layout(on, [x], True), x) if op.method != STOCHASTIC and x.num_axes == 4 else None
        self.y = channels_last(y.shape, self.x.dtype) if self.x is not None else None
        self.mask = channels_last(mask.shape, mask.dtype) if self.x is not None and mask is not None else None
        cdef int dtype = element(self.x, x)
        cdef const void* from_ = x.data_in_layout(on, self.x)
        cdef void* to = y.overwrite_data_in_layout(on, self.y)
        cdef void* where = mask.overwrite_data_in_layout(on, self.mask) if mask is not None else NULL
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape, False))
        cdef bint last = self.x is not None
        with nogil:
            if last:
                pool_forward_channels_last(on, dtype, op.shape, from_, to, where)
            elif op.method == STOCHASTIC:
                stochastic_forward(on, dtype, op.shape, op.seed, op.start, from_, to, where)
            else:
                pool_forward(on, dtype, op.shape, from_, to, where, scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob mask, Blob q) except -1:
        cdef Pooling op = operation
        cdef int dtype = element(self.x, x)
        cdef const void* dy = y.diff_in_layout(on, self.y)
        cdef const void* where = mask.data_in_layout(on, self.mask) if mask is not None else NULL
        cdef void* dx = x.overwrite_diff_in_layout(on, self.x)
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape, True) if mask is None else 0)
        cdef bint last = self.x is not None
        with nogil:
            if last:
                pool_backward_channels_last(on, dtype, op.shape, dy, where, dx)
            else:
                pool_backward(on, dtype, op.shape, dy, where, dx, scratch)


CAFFE.computes(Pooling, CaffePooling)
