"""Local response normalisation: what a layer asks for, and what engines CAFFE (ops/lrn/caffe.hpp), CUDNN (ops/lrn/cudnn.hpp)
and ONEDNN (ops/lrn/onednn.hpp) answer.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.onednn.library cimport Array, Library, PrivateLayout, library
from minicaffe.ops.engine cimport Operation, Primitive, refuse
from minicaffe.ops.layouts cimport blocked

from minicaffe.ops.engine import Refusal, offer

cdef extern from "minicaffe/ops/lrn/caffe.hpp" namespace "mc" nogil:
    long long lrn_scratch(const Context&, const LrnShape&)
    void lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y, void* scale)
    void lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* scale, const void* dy,
                      void* dx, void* scratch)

cdef extern from "minicaffe/ops/lrn/cudnn.hpp" namespace "mc::cuda" nogil:
    void cudnn_lrn_forward(const Context&, int, const LrnShape&, const void* x, void* y) except +refuse
    void cudnn_lrn_backward(const Context&, int, const LrnShape&, const void* x, const void* y, const void* dy,
                            void* dx) except +refuse

cdef extern from "minicaffe/ops/lrn/onednn.hpp" namespace "mc::onednn" nogil:
    cppclass OnednnLrn "mc::onednn::Lrn":
        void make(const Library*, const LrnShape&, const Array& image, int threads) except +refuse
        size_t workspace()
        size_t forward_scratch()
        void forward(const void* x, void* y, void* workspace, void* scratch) except +refuse
        void make_backward() except +refuse
        size_t backward_scratch()
        void backward(const void* x, const void* dy, const void* workspace, void* dx, void* scratch) except +refuse


cdef class LRN(Operation):
    """``y = x s^-beta`` with ``s = k + alpha sum x^2`` over a window; x and y have the same shape, seen as groups of rows."""

    def __cinit__(self, *_):
        self.keeps = self.by_layout = True


cdef class CaffeLRN(Primitive):
    cdef Blob scale     # s, kept on a device

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef LRN op = operation
        cdef void* scale = NULL
        if on.stream != NULL:
            if self.scale is None:
                self.scale = Blob((0,), op.dtype, "scale")
            self.scale.reshape_like(x)
            scale = self.scale.mutable_data_on(on)
        with nogil:
            lrn_forward(on, op.dtype, op.shape, x.data_on(on), y.mutable_data_on(on), scale)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef LRN op = operation
        cdef void* scratch = op.scratch(on, lrn_scratch(on, op.shape))
        with nogil:
            lrn_backward(on, op.dtype, op.shape, x.data_on(on), y.data_on(on) if on.stream != NULL else NULL,
                         self.scale.data_on(on) if on.stream != NULL else NULL, y.diff_on(on), x.mutable_diff_on(on), scratch)


cdef class CudnnLRN(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef LRN op = operation
        with nogil:
            cudnn_lrn_forward(on, op.dtype, op.shape, x.data_on(on), y.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef LRN op = operation
        with nogil:
            cudnn_lrn_backward(on, op.dtype, op.shape, x.data_on(on), y.data_on(on), y.diff_on(on), x.mutable_diff_on(on))


cdef class OnednnLRN(Primitive):
    cdef OnednnLrn lrn
    cdef PrivateLayout layout

    def __cinit__(self, LRN op):
        if op.shape.half_columns:
            raise Refusal("LRN within a channel")
        self.layout = blocked(op.layout, (op.shape.groups, op.shape.rows))
        self.lrn.make(library(), op.shape, self.layout.array, op.threads)

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Blob kept = operation.keep(((self.lrn.workspace() + 3) // 4,))
        cdef void* scratch = operation.scratch(on, (self.lrn.forward_scratch() + 3) // 4)
        with nogil:
            self.lrn.forward(x.data_in(on, self.layout), y.overwrite_data_in(on, self.layout), kept.mutable_data_on(on), scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        self.lrn.make_backward()
        cdef void* scratch = operation.scratch(on, (self.lrn.backward_scratch() + 3) // 4)
        with nogil:
            self.lrn.backward(x.data_in(on, self.layout), y.diff_in(on, self.layout), operation.kept.data_on(on),
                              x.overwrite_diff_in(on, self.layout), scratch)


offer(LRN, "CAFFE", CaffeLRN)
offer(LRN, "CUDNN", CudnnLRN)
offer(LRN, "ONEDNN", OnednnLRN)
