"""BatchNorm by engine CUDNN (ops/batch_norm/cudnn.hpp)."""

from minicaffe.ops.batch_norm.operation cimport BatchNorm, Standardize
from minicaffe.ops.engine cimport Blob, Context, Operation, Primitive, refuse
from minicaffe.ops.lanes.caffe cimport Channels

from minicaffe.ops.engine import Refusal
from minicaffe.ops.engines import CUDNN

cdef extern from "minicaffe/ops/batch_norm/cudnn.hpp" namespace "mc::cuda" nogil:
    void cudnn_standardize_forward(const Context&, int dtype, const Channels&, double eps, const void* x, const void* ones,
                                   const void* zeros, void* y, void* mean, void* unbiased, void* factor, void* unused) except +refuse
    void cudnn_standardize_backward(const Context&, int dtype, const Channels&, double eps, const void* x, const void* ones,
                                    const void* dy, const void* mean, const void* factor, void* dx, void* unused) except +refuse


def refuses(BatchNorm op):
    if op.given or op.in_place:
        return "BatchNorm with given statistics" if op.given else "BatchNorm in place"
    return "BatchNorm with the statistics of all processes' batches" if op.group is not None else None


cdef class CudnnBatchNorm(Primitive):
    cdef Blob ones, zeros   # what cuDNN scales and shifts by

    def __cinit__(self, BatchNorm op):
        self.ones, self.zeros = Blob((op.shape.channels,), op.dtype, "ones"), Blob((op.shape.channels,), op.dtype, "zeros")
        self.ones.data[...] = 1
        self.zeros.data[...] = 0

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        op.sums.reshape_to((2 * op.shape.channels,))
        with nogil:     # `sums` takes what is not used
            cudnn_standardize_forward(on, op.dtype, op.shape, op.eps, x.data_on(on), self.ones.data_on(on), self.zeros.data_on(on),
                                      y.mutable_data_on(on), op.mean.mutable_data_on(on), op.variance.mutable_data_on(on),
                                      op.factor.mutable_data_on(on), op.sums.mutable_data_on(on))
        op.unbiased, op.carried = 1, None       # cuDNN's variance is that of a sample already
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1:
        cdef Standardize op = operation
        if op.carried is not None:
            raise Refusal("what engine CAFFE computed forward with the layers behind it")
        op.sums.reshape_to((2 * op.shape.channels,))
        with nogil:     # `sums` takes what is not used
            cudnn_standardize_backward(on, op.dtype, op.shape, op.eps, x.data_on(on), self.ones.data_on(on), y.diff_on(on),
                                       op.mean.data_on(on), op.factor.data_on(on), x.mutable_diff_on(on),
                                       op.sums.mutable_data_on(on))
        return 0


CUDNN.computes(BatchNorm, CudnnBatchNorm, refuses)
