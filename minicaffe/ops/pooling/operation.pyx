"""Pooling: what a layer asks for, and what engines CAFFE (ops/pooling/caffe.hpp), CUDNN (ops/pooling/cudnn.hpp)
and ONEDNN (ops/pooling/onednn.hpp) answer."""

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.onednn.library cimport Array, Library, PrivateLayout, layout_of, library
from minicaffe.ops.engine cimport Operation, Primitive

from minicaffe.errors import DependencyError
from minicaffe.ops.engine import Refusal, offer

cdef extern from "minicaffe/ops/pooling/caffe.hpp" namespace "mc" nogil:
    long long pool_scratch(const Context&, const PoolShape&)
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

cdef extern from "minicaffe/ops/pooling/cudnn.hpp" namespace "mc::cuda" nogil:
    const char* cudnn_reason(const Context&)
    bint cudnn_mean_forward(const Context&, int, const PoolShape&, long long images, long long channels, const void* x, void* y)
    bint cudnn_mean_backward(const Context&, int, const PoolShape&, long long images, long long channels, const void* x,
                             const void* y, const void* dy, void* dx)

cdef extern from "minicaffe/ops/pooling/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnPool "mc::onednn::Pool":
        Array x, y
        void make(const Library*, const PoolShape&, long long images, long long channels, bint max, const Array& image,
                  int threads) except +
        size_t workspace()
        void forward(const void* x, void* y, void* workspace) except +
        void backward(const void* dy, const void* workspace, void* dx) except +


cdef class Pooling(Operation):
    """x (images, channels, height, width), y (images, channels, out_height, out_width); `mask`, of y's shape, is written by forward
    and read by backward where `method` is MAX or draws, else None.
    """

    cdef int forward(self, const Context& on, Blob x, Blob y, Blob mask) except -1:
        """y and the mask from x"""
        self.ran = self.primitive(on)
        return self.ran.forward(on, self, x, y, mask)

    cdef int backward(self, const Context& on, Blob x, Blob y, Blob mask) except -1:
        """dx from dy"""
        return self.ran.backward(on, self, x, y, mask)


cdef class PoolingPrimitive(Primitive):
    """Engine CAFFE; other engines override what they do otherwise."""

    def __cinit__(self):
        self.engine = "CAFFE"

    cdef int forward(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1:
        cdef long long planes = op.images * op.channels
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef void* where = mask.mutable_data_on(on) if mask is not None else NULL
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape))
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

    cdef int backward(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1:
        cdef long long planes = op.images * op.channels
        cdef const void* dy = y.diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef const void* where = mask.data_on(on) if mask is not None else NULL
        cdef void* scratch = op.scratch(on, pool_scratch(on, op.shape))
        with nogil:
            if op.method == AVE:
                mean_backward(on, op.dtype, op.shape, planes, dy, dx, scratch)
            else:
                mask_backward(on, op.dtype, op.shape, planes, dy, where, dx)
        return 0


cdef class CudnnPooling(PoolingPrimitive):
    """Engine CUDNN: AVE pooling."""

    def __cinit__(self):
        self.engine = "CUDNN"

    cdef int forward(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1:
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef bint done
        with nogil:
            done = cudnn_mean_forward(on, op.dtype, op.shape, op.images, op.channels, from_, to)
        if done:
            return 0
        op.refusals["CUDNN"] = (<bytes> cudnn_reason(on)).decode()
        return PoolingPrimitive.forward(self, on, op, x, y, mask)

    cdef int backward(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1:
        cdef const void* from_ = x.data_on(on)     # not read by AVE pooling, but cuDNN wants to see them
        cdef const void* to = y.data_on(on)
        cdef const void* dy = y.diff_on(on)
        cdef void* dx = x.mutable_diff_on(on)
        cdef bint done
        with nogil:
            done = cudnn_mean_backward(on, op.dtype, op.shape, op.images, op.channels, from_, to, dy, dx)
        if done:
            return 0
        op.refusals["CUDNN"] = (<bytes> cudnn_reason(on)).decode()
        return PoolingPrimitive.backward(self, on, op, x, y, mask)


cdef class OnednnPooling(PoolingPrimitive):
    """Engine ONEDNN, where the image is in one of its layouts; engine CAFFE is as fast where it is plain."""

    cdef OnednnPool pool
    cdef PrivateLayout x        # for which `pool` was made
    cdef Layout y
    cdef str trouble            # why oneDNN does not compute it for that layout; "": it does
    cdef Blob workspace         # what forward keeps for backward
    cdef bint computed          # the last forward pass was oneDNN's

    def __cinit__(self):
        self.engine = "ONEDNN"

    cdef bint ready(self, const Context& on, Pooling op, Blob x) except -1:
        """Whether oneDNN computes for the layout in which x is now."""
        layout = x.layout_of_data()
        if not isinstance(layout, PrivateLayout) or layout.dims != (op.images, op.channels, op.shape.height, op.shape.width):
            return False
        if layout is not self.x:
            self.x, self.trouble = layout, ""
            try:
                self.pool.make(library(), op.shape, op.images, op.channels, op.method == MAX, self.x.array, on.threads.count)
                self.y = layout_of(self.pool.y, (op.images, op.channels, op.shape.out_height, op.shape.out_width))
                self.workspace = Blob(((self.pool.workspace() + 3) // 4,), FLOAT, "pooling workspace")
            except RuntimeError as error:
                self.trouble = str(error)
                op.refused("ONEDNN", self.trouble)
        return not self.trouble

    cdef int forward(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1:
        self.computed = self.ready(on, op, x)
        if not self.computed:
            return PoolingPrimitive.forward(self, on, op, x, y, mask)
        cdef void* workspace = self.workspace.mutable_data_on(on) if self.workspace.count else NULL
        cdef const void* from_ = x.data_in(on, self.x)
        cdef void* to = y.overwrite_data_in(on, self.y)
        with nogil:
            self.pool.forward(from_, to, workspace)
        return y.wrote_data()

    cdef int backward(self, const Context& on, Pooling op, Blob x, Blob y, Blob mask) except -1:
        if not self.computed:
            return PoolingPrimitive.backward(self, on, op, x, y, mask)
        cdef const void* workspace = self.workspace.data_on(on) if self.workspace.count else NULL
        cdef const void* dy = y.diff_in(on, self.y)
        cdef void* dx = x.overwrite_diff_in(on, self.x)
        with nogil:
            self.pool.backward(dy, workspace, dx)
        return x.wrote_diff()


_caffe, _cudnn = PoolingPrimitive(), CudnnPooling()     # have no state of their own


def _ask_cudnn(Pooling operation):
    if operation.method != AVE:
        raise Refusal("pooling other than AVE (ops/pooling/cudnn.hpp says why)")
    return _cudnn


def _ask_onednn(Pooling operation):
    if operation.dtype != FLOAT:
        raise Refusal("float64 data: oneDNN computes float32 only")
    if operation.method not in (MAX, AVE) or operation.mask_shown:
        raise Refusal("STOCHASTIC pooling, and pooling with a mask as second top")
    try:
        library()
    except DependencyError as error:
        raise Refusal(str(error)) from None
    return OnednnPooling()


offer(Pooling, "CAFFE", lambda operation: _caffe)
offer(Pooling, "CUDNN", _ask_cudnn)
offer(Pooling, "ONEDNN", _ask_onednn)
