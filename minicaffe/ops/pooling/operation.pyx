"""Pooling: what a layer asks for, and what engines CAFFE (ops/pooling/caffe.hpp) and ONEDNN (ops/pooling/onednn.hpp) answer."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.onednn.library cimport Array, Library, PrivateLayout, layout_of, library
from minicaffe.ops.engine cimport Operation, Primitive, refuse
from minicaffe.ops.layouts cimport blocked

from minicaffe.ops.engine import Refusal, offer

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
    void mean_backward(const Context&, int, const PoolShape&, long long, const void*, void*, void*)

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


cdef class Pooling(Operation):
    """x (images, channels, height, width), y (images, channels, out_height, out_width); `mask`, of y's shape, is written by forward
    and read by backward where `method` is MAX or draws, else None.
    """

    def __cinit__(self, *_):
        self.keeps = self.by_layout = True


cdef class CaffePooling(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob mask, Blob q) except -1:
        cdef Pooling op = operation
        cdef long long planes = op.images * op.channels
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

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob mask, Blob q) except -1:
        cdef Pooling op = operation
        cdef long long planes = op.images * op.channels
        cdef const void* dy = y.diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape, True) if op.method == AVE else 0)
        with nogil:
            if op.method == AVE:
                mean_backward(on, op.dtype, op.shape, planes, dy, dx, scratch)
            else:
                mask_backward(on, op.dtype, op.shape, planes, dy, mask.data_on(on) if mask is not None else NULL, dx)


cdef class OnednnPooling(Primitive):
    """Where the image is in one of oneDNN's layouts."""

    cdef OnednnPool pool
    cdef PrivateLayout x
    cdef Layout y
    cdef long long workspace    # numbers that forward keeps for backward

    def __cinit__(self, Pooling op):
        if op.method not in (MAX, AVE) or op.mask_shown:
            raise Refusal("STOCHASTIC pooling, and pooling with a mask as second top")
        self.x = blocked(op.layout, (op.images, op.channels))
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


offer(Pooling, "CAFFE", CaffePooling)
offer(Pooling, "ONEDNN", OnednnPooling)
