"""Pooling by engine CAFFE (ops/pooling/caffe.hpp)."""

from minicaffe.memory.layout cimport Layout
from minicaffe.ops.channels_last cimport channels_last
from minicaffe.ops.engine cimport Blob, Context, Operation, Primitive
from minicaffe.ops.layouts cimport data_layout
from minicaffe.ops.pooling.operation cimport AVE, MAX, STOCHASTIC, Pooling, PoolShape

from minicaffe.ops.engines import CAFFE

cdef extern from "minicaffe/ops/pooling/caffe.hpp" namespace "mc" nogil:
    long long pool_scratch(const Context&, const PoolShape&, bint backward)
    void max_forward "mc::pool_forward<mc::MaxOf>"(
        const Context&, int, const PoolShape&, long long, const void*, void*, void*, void*)
    void mean_forward "mc::pool_forward<mc::MeanOf>"(
        const Context&, int, const PoolShape&, long long, const void*, void*, void*, void*)
    void stochastic_mean_forward "mc::pool_outputs<mc::StochasticMean>"(
        const Context&, int, const PoolShape&, long long, const void*, void*, void*)
    void stochastic_forward(const Context&, int, const PoolShape&, long long, unsigned long long, unsigned long long, const void*,
                            void*, void*)
    void mask_backward(const Context&, int, const PoolShape&, long long, const void*, const void*, void*)
    void max_forward_channels_last "mc::pool_forward_channels_last<mc::MaxOf>"(
        const Context&, int, const PoolShape&, long long images, long long channels, const void*, void*, void*)
    void mean_forward_channels_last "mc::pool_forward_channels_last<mc::MeanOf>"(
        const Context&, int, const PoolShape&, long long images, long long channels, const void*, void*, void*)
    void pool_backward_channels_last(
        const Context&, int, const PoolShape&, long long images, long long channels, const void*, const void*, void*)
    void mean_backward(const Context&, int, const PoolShape&, long long, const void*, void*, void*)


cdef class CaffePooling(Primitive):
    cdef Layout layout      # private layout of x in the most recent forward, on a device; None: plain

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob mask, Blob q) except -1:
        cdef Pooling op = operation
        cdef long long planes = op.images * op.channels
        self.layout = data_layout(on, [x], True) if on.stream != NULL and op.method != STOCHASTIC else None
        if self.layout is not None and self.layout.dims == x.shape:
            return self.forward_channels_last(on, op, x, y, mask)
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef void* where = mask.mutable_data_on(on) if mask is not None else NULL
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape, False))
        with nogil:
            if op.method == MAX:
                max_forward(on, op.dtype, op.shape, planes, from_, to, where, scratch)
            elif op.method == AVE:
                mean_forward(on, op.dtype, op.shape, planes, from_, to, NULL, scratch)
            elif op.drawn:
                stochastic_forward(on, op.dtype, op.shape, planes, op.seed, op.start, from_, to, where)
            else:
                stochastic_mean_forward(on, op.dtype, op.shape, planes, from_, to, NULL)
        return 0

    cdef int forward_channels_last(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1:
        """Compute forward in the private layout with channels last (NHWC); top and mask get the same order."""
        cdef const void* from_ = x.data_in_layout(on, self.layout)
        cdef void* to = y.overwrite_data_in_layout(on, channels_last(y.shape, self.layout.dtype))
        cdef void* where = mask.overwrite_data_in_layout(on, channels_last(mask.shape, mask.dtype)) if mask is not None else NULL
        cdef int dtype = self.layout.dtype
        with nogil:
            if op.method == MAX:
                max_forward_channels_last(on, dtype, op.shape, op.images, op.channels, from_, to, where)
            else:
                mean_forward_channels_last(on, dtype, op.shape, op.images, op.channels, from_, to, where)
        return 0

    cdef int backward_channels_last(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1:
        cdef const void* dy = y.diff_in_layout(on, channels_last(y.shape, self.layout.dtype))
        cdef const void* where = mask.data_in_layout(on, channels_last(mask.shape, mask.dtype)) if op.method == MAX else NULL
        cdef void* dx = x.overwrite_diff_in_layout(on, self.layout)
        cdef int dtype = self.layout.dtype
        with nogil:
            pool_backward_channels_last(on, dtype, op.shape, op.images, op.channels, dy, where, dx)
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob mask, Blob q) except -1:
        cdef Pooling op = operation
        cdef long long planes = op.images * op.channels
        if self.layout is not None and self.layout.dims == x.shape:
            return self.backward_channels_last(on, op, x, y, mask)
        cdef const void* dy = y.diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape, True) if op.method == AVE else 0)
        with nogil:
            if op.method == AVE:
                mean_backward(on, op.dtype, op.shape, planes, dy, dx, scratch)
            else:
                mask_backward(on, op.dtype, op.shape, planes, dy, mask.data_on(on) if mask is not None else NULL, dx)


CAFFE.computes(Pooling, CaffePooling)
