"""Convolution and its transpose, deconvolution: what a layer asks for, and what engines CAFFE, CUDNN and ONEDNN answer.

Engine CAFFE is ops/conv/caffe.hpp, CUDNN ops/conv/cudnn.hpp, ONEDNN ops/conv/onednn.hpp. The first two
know three products of an image side and a column side: the bottom of a convolution is the image, the top of a deconvolution.
"""

from libc.stdint cimport int64_t

from minicaffe.blob cimport FLOAT, Blob
from minicaffe.kernels.types cimport item_size
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.synced cimport UNINITIALIZED
from minicaffe.onednn.library cimport Array, Library, layout_of, library
from minicaffe.ops.engine cimport Operation, Primitive, refuse
from minicaffe.ops.gemm.blas cimport Blas, blas
from minicaffe.ops.lanes.caffe cimport Channels

import numpy as np

from minicaffe.ops.engine import Refusal, get_precision, offer, preferred

cdef extern from "minicaffe/ops/conv/caffe.hpp" namespace "mc" nogil:
    long long conv_scratch(const Context&, int dtype, const ConvShape& shape)
    void conv_forward(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* x, const void* weight,
                      const void* bias, void* y, void* scratch)
    void conv_backward_data(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* dy,
                            const void* weight, const void* bias, void* dx, void* scratch)
    void conv_backward_weights(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* x,
                               const void* dy, void* dweight, void* scratch)
    void conv_backward_bias(const Context&, int dtype, long long images, long long channels, long long plane, const void* dy,
                            void* dbias)

cdef extern from "minicaffe/ops/broadcast/caffe.hpp" nogil:
    void add_bias "mc::broadcast1<mc::ShiftBy>"(
        const Context&, int, const Channels&, const void* x, void* y, void* kept, const void* bias)

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

cdef extern from "minicaffe/ops/conv/onednn.hpp" namespace "mc::onednn" nogil:
    bint pays(const ConvShape&)
    cppclass OnednnConv "mc::onednn::Conv":
        Array x, w, y, dx, dy, weights_x, weights_dy, gradient
        void make(const Library*, const ConvShape&, int threads, bint bf16) except +refuse
        void forward(const void* x, const void* w, const void* b, void* y) except +refuse
        bint fuse(bint affine, int64_t slopes) except +refuse
        void forward_fused(const void* x, const void* w, const void* b, void* y, const float* scale, const float* shift,
                           const float* slopes) except +refuse
        void make_backward_data() except +refuse
        size_t data_scratch()
        void backward_data(const void* w, const void* dy, void* dx, void* scratch) except +refuse
        void make_backward_weights() except +refuse
        size_t weights_scratch()
        bint overwrites()
        void backward_weights(const void* x, const void* dy, bint overwrite, float* dw, float* db, float* scratch) except +refuse
        int axes()
        int weight_axes()
        const int64_t* x_dims()
        const int64_t* w_dims()
        const int64_t* y_dims()


cdef class Convolution(Operation):
    """Images (images, channels, ...), weights (outputs, channels / groups, kernel...), columns (images, outputs, ...).

    x is the bottom, y the top: the image and the columns, or the other way round if `transposed`.
    """

    takes_epilogue = True

    cdef int describe_shape(self, long long images, long long channels, long long outputs, long long groups, const Window& window,
                            long long plane) except -1:
        """Set the shape: of image side and column side, and the pixels of a plane of the top."""
        self.shape.set(images, channels, outputs, groups, window)
        self.images, self.outputs, self.plane = images, channels if self.transposed else outputs, plane
        return self.changed()


cdef int backward_bias(const Context& on, Convolution op, Blob y, Blob bias) except -1:
    with nogil:
        conv_backward_bias(on, op.dtype, op.images, op.outputs, op.plane, y.diff_on(on), bias.mutable_diff_on(on))


cdef class CaffeConvolution(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* w = weight.data_on(on)
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        with nogil:
            if op.transposed:
                conv_backward_data(on, library[0], op.dtype, op.shape, from_, w, b, to, scratch)
            else:
                conv_forward(on, library[0], op.dtype, op.shape, from_, w, b, to, scratch)
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* w = weight.data_on(on)
        cdef const void* from_ = y.diff_on(on)
        cdef void* to = x.mutable_diff_on(on)
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        with nogil:
            if op.transposed:
                conv_forward(on, library[0], op.dtype, op.shape, from_, w, NULL, to, scratch)
            else:
                conv_backward_data(on, library[0], op.dtype, op.shape, from_, w, NULL, to, scratch)
        return 0

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* bottom
        cdef const void* top
        cdef void* gradient
        cdef void* scratch
        cdef const Blas* library = blas()
        if bias is not None:
            backward_bias(on, op, y, bias)
        if weight is not None:
            bottom, top, gradient = x.data_on(on), y.diff_on(on), weight.mutable_diff_on(on)
            scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
            if op.transposed:
                bottom, top = top, bottom
            with nogil:
                conv_backward_weights(on, library[0], op.dtype, op.shape, bottom, top, gradient, scratch)
        return 0


cdef class CudnnConvolution(Primitive):
    """The three products; the bias is added by kernels of engine CAFFE."""

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* w = weight.data_on(on)
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        if op.transposed:
            self.product(on, op, kBackwardData, w, from_, to)
        else:
            self.product(on, op, kForward, from_, w, to)
        if b != NULL:
            with nogil:
                add_bias(on, op.dtype, Channels(op.images, op.outputs, op.plane), to, to, NULL, b)
        return 0

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef const void* w = weight.data_on(on)
        cdef const void* from_ = y.diff_on(on)
        cdef void* to = x.mutable_diff_on(on)
        if op.transposed:
            return self.product(on, op, kForward, from_, w, to)
        return self.product(on, op, kBackwardData, w, from_, to)

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


cdef class OnednnConvolution(Primitive):
    """The gradient of the weights is in the layout of the weights, so that the solver's update can compute there."""

    cdef OnednnConv conv
    cdef Layout x, w, y                     # of forward; None: plain
    cdef Layout dx, dy                      # of the image's gradient
    cdef Layout weights_x, weights_dy, dw
    cdef bint data_made, params_made        # the primitives of the gradients, at their first use

    def __cinit__(self, Convolution op):
        if op.transposed:
            raise Refusal("Deconvolution: only convolutions have a primitive")
        if op.shape.window.num_axes > 3:
            raise Refusal("more than 3 spatial axes")
        self.fuses = True
        bf16 = get_precision() == "bf16"
        if not preferred() and not bf16 and not pays(op.shape):
            raise Refusal("channels that do not fill blocks of 16; MINICAFFE_ENGINE=onednn computes them all the same")
        self.conv.make(library(), op.shape, op.threads, bf16)
        self.x, self.w, self.y = self.layout(0, self.conv.x), self.layout(1, self.conv.w), self.layout(2, self.conv.y)

    cdef Layout layout(self, int which, const Array& array):
        """The layout of an array that has the shape of x (0), the weights (1) or y (2)."""
        cdef const int64_t* dims = self.conv.x_dims() if which == 0 else self.conv.w_dims() if which == 1 else self.conv.y_dims()
        return layout_of(array, tuple([dims[i] for i in range(self.conv.weight_axes() if which == 1 else self.conv.axes())]))

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef const void* w = weight.data_in(on, self.w)
        cdef object kept = weight.data_memory.private_side      # a net of another thread may want it in another layout
        cdef const void* from_ = x.data_in(on, self.x)
        cdef void* to = y.overwrite_data_in(on, self.y)
        if operation.epilogue is None or not self.finish(on, operation, from_, w, b, to):
            with nogil:
                self.conv.forward(from_, w, b, to)

    cdef bint finish(self, const Context& on, Operation operation, const void* x, const void* w, const void* b, void* y) except -1:
        """Forward with the epilogue, which is taken; false if oneDNN has none."""
        epilogue = operation.epilogue
        cdef const float[::1] scale, shift, slopes
        cdef bint affine = epilogue.scale is not None
        cdef int64_t count = 0 if epilogue.slopes is None else epilogue.slopes.size
        self.fuses = self.conv.fuse(affine, count)
        if not self.fuses:
            return False
        if affine:
            scale, shift = epilogue.scale.astype(np.float32), epilogue.shift.astype(np.float32)
        if count:
            slopes = epilogue.slopes
        with nogil:
            self.conv.forward_fused(x, w, b, y, &scale[0] if affine else NULL, &shift[0] if affine else NULL,
                                    &slopes[0] if count else NULL)
        operation.epilogue = None
        return True

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        if not self.data_made:
            self.conv.make_backward_data()
            self.dx, self.dy = self.layout(0, self.conv.dx), self.layout(2, self.conv.dy)
            self.data_made = True
        cdef const void* w = weight.data_in(on, self.w)
        cdef object kept = weight.data_memory.private_side
        cdef void* scratch = operation.scratch(on, (self.conv.data_scratch() + 3) // 4)
        with nogil:
            self.conv.backward_data(w, y.diff_in(on, self.dy), x.overwrite_diff_in(on, self.dx), scratch)

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        if weight is None:
            return backward_bias(on, operation, y, bias)
        if not self.params_made:
            self.conv.make_backward_weights()
            self.weights_x, self.weights_dy = self.layout(0, self.conv.weights_x), self.layout(2, self.conv.weights_dy)
            self.dw = self.layout(1, self.conv.gradient)
            self.params_made = True
        cdef bint overwrite = self.conv.overwrites() and weight.diff_memory.head == UNINITIALIZED   # nothing to add to
        cdef float* dw = <float*> (weight.overwrite_diff_in(on, self.dw) if overwrite else weight.mutable_diff_in(on, self.dw))
        cdef float* scratch = <float*> operation.scratch(on, self.conv.weights_scratch() // 4)
        with nogil:
            self.conv.backward_weights(x.data_in(on, self.weights_x), y.diff_in(on, self.weights_dy), overwrite, dw,
                                       <float*> (bias.mutable_diff_on(on) if bias is not None else NULL), scratch)


offer(Convolution, "CAFFE", CaffeConvolution)
offer(Convolution, "CUDNN", CudnnConvolution)
offer(Convolution, "ONEDNN", OnednnConvolution)
