"""Convolution and its transpose, deconvolution: what a layer asks for, and what engines CAFFE and CUDNN answer.

Engine CAFFE is ops/conv/caffe.hpp, engine CUDNN ops/conv/cudnn.hpp. Both know three products of an image side and a column side: the
bottom of a convolution is the image, the top of a deconvolution.
"""

from minicaffe.blob cimport DOUBLE, Blob
from minicaffe.device.context cimport Context
from minicaffe.ops.engine cimport Operation, Primitive
from minicaffe.ops.gemm.blas cimport Blas, blas

from minicaffe.ops.engine import offer

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
        const Context&, int, long long, long long, long long, const void* x, void* y, void* kept, const void* bias)

cdef extern from "minicaffe/ops/conv/cudnn.hpp" namespace "mc::cuda" nogil:
    const int kEngineCudnn
    const char* cudnn_reason(const Context&)
    enum CudnnProduct:
        kForward            # image, weights -> columns
        kBackwardData       # weights, columns -> image
        kBackwardWeights    # image, columns -> weights
    struct CudnnRoom:
        long long workspace, trial
    CudnnRoom cudnn_room(const Context&, int engine, int dtype, const ConvShape&, int product)
    void cudnn_measure(const Context&, int engine, int dtype, const ConvShape&, int product, const void* a, const void* b,
                       void* c, void* trial, long long trial_bytes)
    bint cudnn_convolve(const Context&, int engine, int dtype, const ConvShape&, int product, const void* a, const void* b,
                        void* c, void* workspace)


cdef class Convolution(Operation):
    """Images (images, channels, ...), weights (outputs, channels / groups, kernel...), columns (images, outputs, ...).

    x is the bottom, y the top: the image and the columns, or the other way round if `transposed`.
    """

    cdef int describe_shape(self, long long images, long long channels, long long outputs, long long groups, const Window& window,
                            long long plane) except -1:
        """Set the shape: of image side and column side, and the pixels of a plane of the top."""
        self.shape.set(images, channels, outputs, groups, window)
        self.images, self.outputs, self.plane = images, channels if self.transposed else outputs, plane
        return self.changed()

    cdef int forward(self, const Context& on, Blob x, Blob weight, Blob bias, Blob y) except -1:
        """y = W * x + bias, which may be None"""
        return (<ConvolutionPrimitive> self.primitive(on)).forward(on, self, x, weight, bias, y)

    cdef int backward_data(self, const Context& on, Blob y, Blob weight, Blob x) except -1:
        """dx from dy"""
        return (<ConvolutionPrimitive> self.primitive(on)).backward_data(on, self, y, weight, x)

    cdef int backward_weights(self, const Context& on, Blob x, Blob y, Blob weight) except -1:
        """dW += the product of x and dy"""
        return (<ConvolutionPrimitive> self.primitive(on)).backward_weights(on, self, x, y, weight)

    cdef int backward_bias(self, const Context& on, Blob y, Blob bias) except -1:
        """dbias += the sums of dy"""
        return (<ConvolutionPrimitive> self.primitive(on)).backward_bias(on, self, y, bias)


cdef class ConvolutionPrimitive(Primitive):
    """Engine CAFFE; other engines override what they do otherwise."""

    def __cinit__(self):
        self.engine = "CAFFE"

    cdef int forward(self, const Context& on, Convolution op, Blob x, Blob weight, Blob bias, Blob y) except -1:
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

    cdef int backward_data(self, const Context& on, Convolution op, Blob y, Blob weight, Blob x) except -1:
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

    cdef int backward_weights(self, const Context& on, Convolution op, Blob x, Blob y, Blob weight) except -1:
        cdef const void* bottom = x.data_on(on)
        cdef const void* top = y.diff_on(on)
        cdef void* gradient = weight.mutable_diff_on(on)
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        if op.transposed:
            bottom, top = top, bottom
        with nogil:
            conv_backward_weights(on, library[0], op.dtype, op.shape, bottom, top, gradient, scratch)
        return 0

    cdef int backward_bias(self, const Context& on, Convolution op, Blob y, Blob bias) except -1:
        cdef const void* top = y.diff_on(on)
        cdef void* gradient = bias.mutable_diff_on(on)
        with nogil:
            conv_backward_bias(on, op.dtype, op.images, op.outputs, op.plane, top, gradient)
        return 0


cdef class CudnnConvolution(ConvolutionPrimitive):
    """Engine CUDNN: the three products; engine CAFFE computes one that cuDNN refuses, and the bias."""

    def __cinit__(self):
        self.engine = "CUDNN"

    cdef int forward(self, const Context& on, Convolution op, Blob x, Blob weight, Blob bias, Blob y) except -1:
        cdef const void* w = weight.data_on(on)
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef const void* from_ = x.data_on(on)
        cdef void* to = y.mutable_data_on(on)
        cdef bint done = (self.product(on, op, kBackwardData, w, from_, to) if op.transposed else
                          self.product(on, op, kForward, from_, w, to))
        if not done:
            return ConvolutionPrimitive.forward(self, on, op, x, weight, bias, y)
        if b != NULL:
            with nogil:
                add_bias(on, op.dtype, op.images, op.outputs, op.plane, to, to, NULL, b)
        return 0

    cdef int backward_data(self, const Context& on, Convolution op, Blob y, Blob weight, Blob x) except -1:
        cdef const void* w = weight.data_on(on)
        cdef const void* from_ = y.diff_on(on)
        cdef void* to = x.mutable_diff_on(on)
        cdef bint done = (self.product(on, op, kForward, from_, w, to) if op.transposed else
                          self.product(on, op, kBackwardData, w, from_, to))
        return 0 if done else ConvolutionPrimitive.backward_data(self, on, op, y, weight, x)

    cdef int backward_weights(self, const Context& on, Convolution op, Blob x, Blob y, Blob weight) except -1:
        cdef const void* bottom = x.data_on(on)
        cdef const void* top = y.diff_on(on)
        cdef void* gradient = weight.mutable_diff_on(on)
        cdef bint done = (self.product(on, op, kBackwardWeights, top, bottom, gradient) if op.transposed else
                          self.product(on, op, kBackwardWeights, bottom, top, gradient))
        return 0 if done else ConvolutionPrimitive.backward_weights(self, on, op, x, y, weight)

    cdef bint product(self, const Context& on, Convolution op, CudnnProduct product, const void* a, const void* b, void* c) except -1:
        """Compute c from a and b; false if cuDNN refuses. The first time, measure how."""
        cdef CudnnRoom room
        cdef Blob trial
        cdef void* memory
        cdef long long size = 8 if op.dtype == DOUBLE else 4
        with nogil:
            room = cudnn_room(on, kEngineCudnn, op.dtype, op.shape, product)
        if room.trial >= 0:
            trial = Blob((room.trial // size + 1,), op.dtype, "cuDNN trial")
            memory = trial.mutable_data_on(on)
            with nogil:
                cudnn_measure(on, kEngineCudnn, op.dtype, op.shape, product, a, b, c, memory, room.trial)
                room = cudnn_room(on, kEngineCudnn, op.dtype, op.shape, product)
        if room.workspace < 0:
            op.refusals["CUDNN"] = (<bytes> cudnn_reason(on)).decode()
            return False
        memory = op.scratch(on, (room.workspace + size - 1) // size)
        with nogil:
            return cudnn_convolve(on, kEngineCudnn, op.dtype, op.shape, product, a, b, c, memory)


_caffe = ConvolutionPrimitive()     # has no state of its own
_cudnn = CudnnConvolution()
offer(Convolution, "CAFFE", lambda operation: _caffe)
offer(Convolution, "CUDNN", lambda operation: _cudnn)
