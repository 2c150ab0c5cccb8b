"""The operation of pooling, and engines CAFFE and PLAIN (ops/pooling/caffe.hpp and plain.hpp)."""

from minicaffe.engines.channels_last cimport channels_last
from minicaffe.engines.engine cimport Context, Layout, Primitive
from minicaffe.engines.layouts cimport data_layout, element, of_images

from minicaffe.engines.table import CAFFE, PLAIN

cdef extern from "minicaffe/ops/pooling/caffe.hpp" nogil:
    long long pool_scratch "mc::pool_scratch"(const Context&, const PoolShape&, bint backward)
    void pool_forward "MC_TYPED(mc::pool_forward)"(int dtype, const Context&, const PoolShape&, const void* x, void* y, void* mask,
                                                   void* scratch)
    void pool_backward "MC_TYPED(mc::pool_backward)"(int dtype, const Context&, const PoolShape&, const void* dy, const void* mask,
                                                     void* dx, void* scratch)
    void stochastic_forward "MC_TYPED(mc::stochastic_forward)"(
        int dtype, const Context&, const PoolShape&, unsigned long long seed, unsigned long long start, const void* x, void* y,
        void* mask)
    void pool_forward_channels_last "mc::pool_forward_channels_last"(const Context&, int, const PoolShape&, const void* x, void* y,
                                                                     void* mask)
    void pool_backward_channels_last "mc::pool_backward_channels_last"(const Context&, int, const PoolShape&, const void* dy,
                                                                       const void* mask, void* dx)

cdef extern from "minicaffe/ops/pooling/plain.hpp" nogil:
    void plain_forward "MC_PLAIN(mc::plain::pool_forward)"(int dtype, const Context&, const PoolShape&, const void* x, void* y,
                                                           void* mask)
    void plain_backward "MC_PLAIN(mc::plain::pool_backward)"(int dtype, const Context&, const PoolShape&, const void* dy,
                                                             const void* mask, void* dx)


cdef class Pooling(Operation):
    """x (images, channels, height, width), y (images, channels, out_height, out_width). Layer Pooling sets `mask`, of y's shape,
    before each pass: forward writes it and backward reads it if `method` is MAX or draws, else it is None.
    """

    def __cinit__(self, *_):
        self.saves_for_backward = self.depends_on_layout = True     # for Operation: backward needs data of forward


cdef class CaffePooling(Primitive):
    """Engine CAFFE; or, if it is `plain`, engine PLAIN. Its methods override Primitive's, which `Operation` calls."""

    cdef Layout bottom_layout, top_layout, mask_layout  # in the most recent forward: with channels last, on a device; None: plain

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Pooling op = operation
        cdef Blob mask = op.mask
        self.bottom_layout = of_images(data_layout(on, [bottom], True), bottom) if op.method != STOCHASTIC else None
        self.top_layout = channels_last(top.shape, self.bottom_layout.dtype) if self.bottom_layout is not None else None
        self.mask_layout = channels_last(mask.shape, mask.dtype) if self.bottom_layout is not None and mask is not None else None
        cdef int dtype = element(self.bottom_layout, bottom)    # of the elements as stored: some layouts are of BF16
        cdef const void* from_ = bottom.data_in_layout(on, self.bottom_layout)
        cdef void* to = top.overwrite_data_in_layout(on, self.top_layout)
        cdef void* where = mask.overwrite_data_in_layout(on, self.mask_layout) if mask is not None else NULL
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape, False))
        cdef bint last = self.bottom_layout is not None     # channels are last
        with nogil:
            if self.plain:
                plain_forward(dtype, on, op.shape, from_, to, where)
            elif last:
                pool_forward_channels_last(on, dtype, op.shape, from_, to, where)
            elif op.method == STOCHASTIC:
                stochastic_forward(dtype, on, op.shape, op.seed, op.start, from_, to, where)
            else:
                pool_forward(dtype, on, op.shape, from_, to, where, scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Pooling op = operation
        cdef Blob mask = op.mask
        cdef int dtype = element(self.bottom_layout, bottom)
        cdef const void* dy = top.diff_in_layout(on, self.top_layout)
        cdef const void* where = mask.data_in_layout(on, self.mask_layout) if mask is not None else NULL
        cdef void* dx = bottom.overwrite_diff_in_layout(on, self.bottom_layout)
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape, True) if mask is None else 0)    # of AVE only
        cdef bint last = self.bottom_layout is not None
        with nogil:
            if self.plain:
                plain_backward(dtype, on, op.shape, dy, where, dx)
            elif last:
                pool_backward_channels_last(on, dtype, op.shape, dy, where, dx)
            else:
                pool_backward(dtype, on, op.shape, dy, where, dx, scratch)


def refuses_stochastic(Pooling op):
    """Return why engine PLAIN does not compute `op`, or None (engines/table.py)."""
    return "STOCHASTIC pooling" if op.method == STOCHASTIC else None


CAFFE.computes(Pooling, CaffePooling)
PLAIN.computes(Pooling, CaffePooling, refuses_stochastic)
