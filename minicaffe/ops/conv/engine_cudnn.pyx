"""Convolution by engine CUDNN (ops/conv/cudnn.hpp)."""

from minicaffe.kernels.types cimport item_size
from minicaffe.ops.broadcast.caffe cimport shift_by
from minicaffe.ops.conv.operation cimport Convolution, ConvShape, backward_bias
from minicaffe.ops.engine cimport Blob, Context, Operation, Primitive, refuse
from minicaffe.ops.lanes.caffe cimport Channels

from minicaffe.ops.engines import CUDNN

cdef extern from "minicaffe/ops/conv/cudnn.hpp" namespace "mc::cuda" nogil:
    enum CudnnProduct:
        kForward            # image, weights -> columns
        kBackwardData       # weights, columns -> image
        kBackwardWeights    # image, columns -> weights
    struct CudnnRoom:
        long long workspace, trial
    CudnnRoom cudnn_room(const Context&, int dtype, const ConvShape&, int product) except +refuse
    void cudnn_measure(const Context&, int dtype, const ConvShape&, int product, const void* a, const void* b, void* c,
                       void* trial, long long trial_bytes) except +refuse
    void cudnn_convolve(const Context&, int dtype, const ConvShape&, int product, const void* a, const void* b, void* c,
                        void* workspace) except +refuse


cdef class CudnnConvolution(Primitive):
    """The three products; the bias is added by kernels of engine CAFFE."""

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* w = weight.data_on(on)
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        self.across(on, op, op.transposed, from_, w, to)
        if b != NULL:
            with nogil:
                shift_by(on, op.dtype, Channels(op.images, op.outputs, op.plane), to, to, NULL, b)
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        return self.across(on, op, not op.transposed, y.diff_on(on), weight.data_on(on), x.mutable_diff_on(on))

    cdef int across(self, const Context& on, Convolution op, bint to_image, const void* from_, const void* w, void* to) except -1:
        """Columns from the image, or with `to_image` the image from columns."""
        if to_image:
            return self.product(on, op, kBackwardData, w, from_, to)
        return self.product(on, op, kForward, from_, w, to)

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* bottom
        cdef const void* top
        if weight is not None:
            bottom, top = x.data_on(on), y.diff_on(on)
            if op.transposed:
                bottom, top = top, bottom
            self.product(on, op, kBackwardWeights, bottom, top, weight.mutable_diff_on(on))
        return backward_bias(on, op, y, bias) if bias is not None else 0    # last: who refuses has added nothing

    cdef int product(self, const Context& on, Convolution op, CudnnProduct product, const void* a, const void* b, void* c) except -1:
        """Compute c from a and b. The first time, measure how."""
        cdef CudnnRoom room
        cdef Blob trial
        cdef void* memory
        cdef long long size = item_size(op.dtype)
        with nogil:
            room = cudnn_room(on, op.dtype, op.shape, product)
        if room.trial >= 0:
            trial = Blob((room.trial // size + 1,), op.dtype, "cuDNN trial")
            memory = trial.mutable_data_on(on)
            with nogil:
                cudnn_measure(on, op.dtype, op.shape, product, a, b, c, memory, room.trial)
                room = cudnn_room(on, op.dtype, op.shape, product)
        memory = op.scratch(on, (room.workspace + size - 1) // size)
        with nogil:
            cudnn_convolve(on, op.dtype, op.shape, product, a, b, c, memory)
        return 0


CUDNN.computes(Convolution, CudnnConvolution)
