"""Convolution and its transpose, deconvolution: what a layer asks for, and what engines CAFFE, CUDNN, WINOGRAD and ONEDNN answer.

Each has its header: ops/conv/caffe.hpp, cudnn.hpp, winograd.hpp, onednn.hpp. CAFFE and CUDNN
know three products of an image side and a column side: the bottom of a convolution is the image, the top of a deconvolution.
"""

from libc.stdint cimport int64_t

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.device.threads cimport Threads
from minicaffe.kernels.types cimport FLOAT, item_size
from minicaffe.memory.layout cimport Layout
from minicaffe.onednn.library cimport Library, PrivateLayout, lanes_layout, library, scaled_layout
from minicaffe.ops.broadcast.caffe cimport shift_by
from minicaffe.ops.engine cimport Operation, Primitive, refuse
from minicaffe.ops.epilogue cimport ChannelEpilogue, Part
from minicaffe.ops.gemm.blas cimport Blas, blas
from minicaffe.ops.lanes.caffe cimport Channels
from minicaffe.ops.sums.caffe cimport channel_sums
from minicaffe.ops.weighted cimport OnednnWeighted, Weighted

from minicaffe.errors import DependencyError
from minicaffe.ops.engine import Refusal, get_exact, get_precision, offer, preferred

cdef extern from "minicaffe/ops/conv/caffe.hpp" namespace "mc" nogil:
    long long conv_scratch(const Context&, int dtype, const ConvShape& shape)
    void conv_forward(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* x, const void* weight,
                      const void* bias, void* y, void* scratch)
    void conv_backward_data(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* dy,
                            const void* weight, const void* bias, void* dx, void* scratch)
    void conv_backward_weights(const Context&, const Blas& blas, int dtype, const ConvShape& shape, const void* x,
                               const void* dy, void* dweight, void* scratch)

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

cdef extern from "minicaffe/ops/conv/winograd.hpp" namespace "mc::cpu::winograd" nogil:
    int winograd_lanes "mc::cpu::winograd::lanes"(const ConvShape&)
    const char* winograd_refusal "mc::cpu::winograd::refusal"(const ConvShape&)
    bint winograd_pays "mc::cpu::winograd::pays"(const ConvShape&)
    long long winograd_scratch "mc::cpu::winograd::scratch"(Threads, const ConvShape&, bint lanes)
    void winograd_forward "mc::cpu::winograd::forward"(Threads, const ConvShape&, bint lanes, const void* x, const void* w,
                                                       const float* scale, const float* shift, const void* addend,
                                                       const float* slopes, void* y, long long y_channels, void* scratch)
    void winograd_backward "mc::cpu::winograd::backward"(Threads, const ConvShape&, bint lanes, const void* x, const void* dy,
                                                         const void* w, void* dx, void* dw, void* db, void* scratch)

cdef extern from "minicaffe/ops/conv/onednn.hpp" namespace "mc::onednn" nogil:
    bint pays(const ConvShape&, bint transposed)
    bint pays_apart(const ConvShape&, int threads)
    cppclass OnednnConv "mc::onednn::Conv"(Weighted):
        void make(const Library*, const ConvShape&, bint transposed, int threads, bint bf16) except +refuse
        bint fuse(bint adds, int64_t slopes, bint apart) except +refuse
        size_t fused_scratch()
        void forward_fused(const void* x, const void* w, const void* b, void* y, long long pitch, const void* addend,
                           const float* slopes, void* scratch) except +refuse


cdef class Convolution(Operation):
    """Images (images, channels, ...), weights (outputs, channels / groups, kernel...), columns (images, outputs, ...).

    x is the bottom, y the top: the image and the columns, or the other way round if `transposed`.
    """

    takes_epilogue = ChannelEpilogue

    cdef int describe_shape(self, long long images, long long channels, long long outputs, long long groups, const Window& window,
                            long long plane) except -1:
        """Set the shape: of image side and column side, and the pixels of a plane of the top."""
        self.shape.set(images, channels, outputs, groups, window)
        self.images, self.outputs, self.plane = images, channels if self.transposed else outputs, plane
        return self.changed()

    cdef bint fuses(self, const Context& on, Blob x, Blob y) except -1:
        # The layers behind take axis 1 of the top for its channels.
        return (y.num_axes == 2 + self.shape.window.num_axes and self.images == y.dims[0] and self.outputs == y.dims[1]
                and Operation.fuses(self, on, x, y))


cdef int backward_bias(const Context& on, Convolution op, Blob y, Blob bias) except -1:
    """Add to the gradient of each bias the sum of y's over its channel."""
    with nogil:
        channel_sums(on, op.dtype, Channels(op.images, op.outputs, op.plane), 1, True, bias.mutable_diff_on(on), y.diff_on(on))


cdef class CaffeConvolution(Primitive):
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        return self.product(on, operation, (<Convolution> operation).transposed, x.data_on(on), weight, bias, y.mutable_data_on(on))

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef bint to_image = not (<Convolution> operation).transposed
        return self.product(on, operation, to_image, y.diff_on(on), weight, None, x.mutable_diff_on(on))

    cdef int product(self, const Context& on, Convolution op, bint to_image, const void* from_, Blob weight, Blob bias,
                     void* to) except -1:
        """Columns from the image, or with `to_image` the image from columns."""
        cdef const void* w = weight.data_on(on)
        cdef object kept = weight.data_memory.host      # a net in another thread may give up the weights' plain order
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        cdef void* scratch = op.scratch(on, conv_scratch(on, op.dtype, op.shape))
        cdef const Blas* library = blas()
        with nogil:
            if to_image:
                conv_backward_data(on, library[0], op.dtype, op.shape, from_, w, b, to, scratch)
            else:
                conv_forward(on, library[0], op.dtype, op.shape, from_, w, b, to, scratch)

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


cdef class WinogradConvolution(Primitive):
    """On images whose channels lie in lanes where engine ONEDNN would keep them so, too; weights are in plain order."""

    cdef Layout x, y    # of the images; None: plain
    cdef bint lanes

    def __cinit__(self, Convolution op):
        if op.transposed:
            raise Refusal("a deconvolution")
        if op.dtype != FLOAT:
            raise Refusal("float64 data: its results would be no better than those of float32")
        if get_exact():
            raise Refusal("exact sums are asked for (--exact, set_exact, MINICAFFE_EXACT)")
        cdef const char* reason = winograd_refusal(op.shape)
        if reason != NULL:
            raise Refusal((<bytes> reason).decode())
        if not preferred() and not winograd_pays(op.shape):
            raise Refusal("too few channels or pixels; MINICAFFE_ENGINE=winograd computes them all the same")
        self.fuses = self.adds = self.both = True
        cdef int lanes = winograd_lanes(op.shape)
        cdef Window window = op.shape.window
        if lanes and pays(op.shape, False):
            try:
                self.x = lanes_layout((op.images, op.shape.channels, window.in_[0], window.in_[1]), lanes)
                self.y = lanes_layout((op.images, op.outputs, window.out[0], window.out[1]), lanes)
                self.lanes = True
            except DependencyError:
                self.x = self.y = None      # nobody else would keep lanes

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef ChannelEpilogue epilogue = operation.epilogue
        cdef const float* factors = NULL
        cdef const float* terms = <const float*> bias.data_on(on) if bias is not None else NULL
        cdef const float* slopes = NULL
        cdef const void* addend = NULL
        cdef object held
        cdef Part part = None
        cdef char* to = NULL    # a part of another blob, of as many channels
        cdef long long channels = op.outputs
        if epilogue is not None:
            if epilogue.scale.size():
                epilogue.round(bias)
                factors, terms = epilogue.factors.data(), epilogue.terms.data()
            if epilogue.slopes.size():
                epilogue.slopes.resize(op.outputs, epilogue.slopes[0])      # one for all
                slopes = epilogue.slopes.data()
            if epilogue.addend is not None:
                addend = epilogue.addend.data_in(on, self.y)
                held = epilogue.addend.data_memory.private_side     # x, in another shape, may be the same memory in another layout
            y, part, operation.epilogue = epilogue.top, epilogue.part, None
            if part is not None and addend == NULL and self.lanes == (self.y is not None):    # one pixel in lanes is in plain order, too
                to = part.begin(on, self.y)
                channels = part.whole.dims[1] if to != NULL else channels
        cdef const void* values = x.data_in(on, self.x)
        cdef const void* w = weight.data_on(on)
        cdef object kept = weight.data_memory.host      # a net in another thread may give up the weights' plain order
        cdef void* scratch = op.scratch(on, winograd_scratch(on.threads, op.shape, self.lanes))
        with nogil:
            winograd_forward(on.threads, op.shape, self.lanes, values, w, factors, terms, addend, slopes,
                             to if to != NULL else y.overwrite_data_in(on, self.y), channels, scratch)
        if to != NULL:
            part.written = True

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        return self.gradients(on, operation, x, y, weight, True, None, None)

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        if weight is None:
            return backward_bias(on, operation, y, bias)
        return self.gradients(on, operation, x, y, weight, False, weight, bias)

    cdef int backward_both(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        return self.gradients(on, operation, x, y, weight, True, weight, bias)

    cdef int gradients(self, const Context& on, Convolution op, Blob x, Blob y, Blob weight, bint of_x, Blob p, Blob q) except -1:
        """Compute that of x, and add to those of p, the weight or None, and q, the bias or None."""
        cdef const void* w = weight.data_on(on) if of_x else NULL
        cdef object kept = weight.data_memory.host
        cdef const void* dy = y.diff_in(on, self.y)
        cdef const void* values = x.data_in(on, self.x) if p is not None else NULL
        cdef void* dx = x.overwrite_diff_in(on, self.x) if of_x else NULL
        cdef void* dw = p.mutable_diff_on(on) if p is not None else NULL
        cdef void* db = q.mutable_diff_on(on) if q is not None else NULL
        cdef void* scratch = op.scratch(on, winograd_scratch(on.threads, op.shape, self.lanes))
        with nogil:
            winograd_backward(on.threads, op.shape, self.lanes, values, dy, w, dx, dw, db, scratch)


cdef class OnednnConvolution(OnednnWeighted):
    cdef OnednnConv conv
    cdef PrivateLayout scaled       # of the weights times the factors of the last epilogue; None: it had none

    def __cinit__(self, Convolution op):
        if op.shape.window.num_axes > 3:
            raise Refusal("more than 3 spatial axes")
        self.fuses = self.adds = True
        if not preferred() and not pays(op.shape, op.transposed):
            raise Refusal("channels that do not fill blocks of 16; MINICAFFE_ENGINE=onednn computes them all the same")
        self.conv.make(library(), op.shape, op.transposed, op.threads, get_precision() == "bf16")
        self.see(&self.conv)

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        if operation.epilogue is None or not self.finish(on, operation, x, y, weight, bias):
            OnednnWeighted.forward(self, on, operation, x, y, weight, bias)

    cdef bint finish(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        """Forward with the epilogue, which is taken; false if oneDNN has none."""
        cdef Convolution op = operation
        cdef ChannelEpilogue epilogue = operation.epilogue
        cdef Blob addend = epilogue.addend, top = epilogue.top
        cdef Part part = epilogue.part
        cdef char* to = NULL    # a part of another blob
        if part is not None and addend is None and pays_apart(op.shape, on.threads.count):
            to = part.begin(on, self.y)
            if to != NULL and not self.conv.fuse(False, epilogue.slopes.size(), True):
                to = NULL
        if to == NULL and not self.conv.fuse(addend is not None, epilogue.slopes.size(), False):
            self.adds, self.fuses = False, self.fuses and addend is not None
            return False
        cdef Layout layout = self.w
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        if epilogue.scale.size():
            epilogue.round(bias)
            if self.scaled is None or self.scaled.factors != epilogue.factors:
                self.scaled = scaled_layout(self.conv.w, self.conv.plain_w, epilogue.factors)
            layout, b = self.scaled, epilogue.terms.data()
        cdef const void* w = weight.data_in(on, layout)
        cdef object kept = weight.data_memory.private_side
        cdef const void* added = addend.data_in(on, self.y) if addend is not None else NULL
        cdef object held = addend.data_memory.private_side if addend is not None else None  # x may be the same memory in another layout
        cdef void* scratch = op.scratch(on, (self.conv.fused_scratch() + 3) // 4)
        with nogil:
            self.conv.forward_fused(x.data_in(on, self.x), w, b, to if to != NULL else top.overwrite_data_in(on, self.y),
                                    part.pitch if to != NULL else 0, added, epilogue.slopes.data(), scratch)
        if to != NULL:
            part.written = True
        operation.epilogue = None
        return True

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        if weight is None:
            return backward_bias(on, op, y, bias)
        if op.shape.channels == 1 and get_precision() == "bf16":
            raise Refusal("the gradient of weights for one channel in bf16, which takes oneDNN several times as long")
        return OnednnWeighted.backward_params(self, on, operation, x, y, weight, bias)


offer(Convolution, "CAFFE", CaffeConvolution)
offer(Convolution, "CUDNN", CudnnConvolution)
offer(Convolution, "WINOGRAD", WinogradConvolution)
offer(Convolution, "ONEDNN", OnednnConvolution)
