"""Convolution by engine WINOGRAD, on the CPU in float32 (ops/conv/winograd.hpp)."""

from minicaffe.device.threads cimport Threads, num_threads
from minicaffe.engines.onednn.library cimport lanes_layout
from minicaffe.ops.conv.operation cimport Convolution, ConvShape, Window, backward_bias
from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive
from minicaffe.engines.epilogue cimport ChannelEpilogue, ConcatSlice

from minicaffe.errors import DependencyError
from minicaffe.engines.engine import get_exact
from minicaffe.engines.table import WINOGRAD

cdef extern from "minicaffe/ops/conv/winograd.hpp" namespace "mc::cpu::winograd" nogil:
    int winograd_lanes "mc::cpu::winograd::lanes"(const ConvShape&)
    const char* winograd_refusal "mc::cpu::winograd::refusal"(const ConvShape&)
    bint winograd_pays "mc::cpu::winograd::is_faster"(const ConvShape&, bint learned)
    bint pays_to_keep "mc::cpu::winograd::pays_to_keep"(const ConvShape&)
    size_t winograd_values "mc::cpu::winograd::values"(const ConvShape&)
    void evaluate_weights "mc::cpu::winograd::evaluate_weights"(Threads, const ConvShape&, const void* w, void* u)
    long long winograd_scratch "mc::cpu::winograd::scratch"(Threads, const ConvShape&, bint lanes, bint kept)
    void winograd_forward "mc::cpu::winograd::forward"(Threads, const ConvShape&, bint lanes, const void* x, const void* w,
                                                       const void* u, const float* scale, const float* shift, const void* addend,
                                                       const float* slopes, void* y, long long y_channels, void* scratch)
    void winograd_backward "mc::cpu::winograd::backward"(Threads, const ConvShape&, bint lanes, const void* x, const void* dy,
                                                         const void* w, void* dx, void* dw, void* db, void* scratch)

cdef extern from "minicaffe/ops/conv/onednn.hpp" namespace "mc::onednn" nogil:
    bint is_faster(const ConvShape&, bint transposed)


def refuses(Convolution op):
    """Return why the engine does not compute `op`, or None (engines/table.py)."""
    if op.transposed:
        return "a deconvolution"
    if get_exact():
        return "exact sums are asked for (--exact, set_exact, MINICAFFE_EXACT)"
    cdef const char* reason = winograd_refusal(op.shape)
    return (<bytes> reason).decode() if reason != NULL else None


def slower(Convolution op):  # engines/table.py: return why a later engine takes less time, or None
    return None if winograd_pays(op.shape, op.learned) else "too few channels or pixels"


cdef class KernelValues(Layout):
    """The layout of weights as the values of their kernels at the points, which forward reads beside the plain weights.

    Its padding is never read. Equal ones have equal names.
    """

    cdef ConvShape shape

    cpdef from_plain(self, size_t private, size_t plain, size_t stream=0):
        evaluate_weights(num_threads(), self.shape, <const void*> plain, <void*> private)

    def __eq__(self, other):
        return isinstance(other, KernelValues) and self.name == other.name

    def __hash__(self):
        return hash(self.name)


cdef class WinogradConvolution(Primitive):
    """Winograd's algorithm. Images are in lanes (blocks of 8 or 16 channels) where engine ONEDNN would compute the convolution in
    this layout, so that no reorder is needed between layers of both engines. Weights are in plain order. If they are not learned
    and it saves time, the values of their kernels are kept for forward.
    """

    cdef Layout bottom_layout, top_layout    # of the images; None: plain, or one pixel, whose lanes are in plain order
    cdef bint lanes                          # whether the loops read images in lanes
    cdef KernelValues kept                   # of the weights; None: forward evaluates them

    def __cinit__(self, Convolution op):
        self.fuses = self.fuses_sum = self.has_backward_both = True
        cdef int lanes = winograd_lanes(op.shape)
        cdef Window window = op.shape.window
        if lanes and is_faster(op.shape, False):
            try:
                self.bottom_layout = lanes_layout((op.shape.images, op.shape.channels, window.in_[0], window.in_[1]), lanes)
                self.top_layout = lanes_layout((op.shape.images, op.shape.outputs, window.out[0], window.out[1]), lanes)
                self.lanes = True
            except DependencyError:
                self.bottom_layout = self.top_layout = None      # without oneDNN no other layer uses lanes
        cdef int k = window.kernel[0]
        cdef size_t weights = op.shape.outputs * op.shape.group_channels * k * k
        if not op.learned and pays_to_keep(op.shape):
            self.kept = KernelValues(4 * winograd_values(op.shape), 4 * weights, "values of kernels of "
                                     f"{op.shape.outputs}x{op.shape.group_channels}x{k}x{k}, {op.shape.groups} groups", scaled=True)
            self.kept.shape = op.shape

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        cdef ChannelEpilogue epilogue = operation.epilogue
        # The result is slopes(factors convolution + terms + addend), each for one channel but the addend; NULL: not that.
        cdef const float* factors = NULL
        cdef const float* terms = <const float*> bias.data_on(on) if bias is not None else NULL
        cdef const float* slopes = NULL
        cdef const void* addend = NULL
        cdef object _held
        cdef ConcatSlice part = None
        cdef char* to = NULL    # the address of the result in the blob of a Concat; NULL: it goes to the top
        cdef long long channels = op.shape.outputs      # of the blob that gets the result
        if epilogue is not None:
            if epilogue.scale.size():
                epilogue.compute_factors(bias)
                factors, terms = epilogue.factors.data(), epilogue.terms.data()
            if epilogue.slopes.size():
                epilogue.slopes.resize(op.shape.outputs, epilogue.slopes[0])      # one for all
                slopes = epilogue.slopes.data()
            if epilogue.addend is not None:
                addend = epilogue.addend.data_in_layout(on, self.top_layout)
                # The bottom, in another shape, may be the same memory in another layout: to fetch it must not free this block.
                _held = epilogue.addend.data_memory.private_side
            top, part, operation.epilogue = epilogue.top, epilogue.part, None
            # Not for lanes of one pixel: their layout is None, plain, for which `begin` does not check that parts are whole blocks.
            if part is not None and addend == NULL and self.lanes == (self.top_layout is not None):
                to = part.begin(on, self.top_layout)
                channels = part.whole.dims[1] if to != NULL else channels
        cdef const void* values = bottom.data_in_layout(on, self.bottom_layout)
        cdef const void* w = weight.data_on(on)     # first: values alone cannot become plain
        cdef const void* u = weight.data_in_layout(on, self.kept) if self.kept is not None else NULL
        # Keeps `w` or `u` alive if a net in another thread moves the weights to a layout.
        cdef object _side = weight.data_memory.host if self.kept is None else weight.data_memory.private_side
        cdef void* scratch = op.scratch(on, winograd_scratch(on.threads, op.shape, self.lanes, self.kept is not None))
        with nogil:
            winograd_forward(on.threads, op.shape, self.lanes, values, w, u, factors, terms, addend, slopes,
                             to if to != NULL else top.overwrite_data_in_layout(on, self.top_layout), channels, scratch)
        if to != NULL:
            part.written = True

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        return self.gradients(on, operation, bottom, top, weight, True, None, None)

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        if weight is None:
            return backward_bias(on, operation, top, bias)
        return self.gradients(on, operation, bottom, top, weight, False, weight, bias)

    # The tiles of the top's gradient are transformed once: 20% of the backward pass of LeNet's conv2, 7% of LeNet's step.
    cdef int backward_both(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        return self.gradients(on, operation, bottom, top, weight, True, weight, bias)

    cdef int gradients(self, const Context& on, Convolution op, Blob bottom, Blob top, Blob weight, bint of_bottom, Blob learned,
                       Blob bias) except -1:
        """Compute the bottom's gradient if `of_bottom`; add to those of `learned`, `weight` or None, and of `bias` or None."""
        cdef const void* w = weight.data_on(on) if of_bottom else NULL
        cdef object _kept = weight.data_memory.host
        cdef const void* dy = top.diff_in_layout(on, self.top_layout)
        cdef const void* values = bottom.data_in_layout(on, self.bottom_layout) if learned is not None else NULL
        cdef void* dx = bottom.overwrite_diff_in_layout(on, self.bottom_layout) if of_bottom else NULL
        cdef void* dw = learned.mutable_diff_on(on) if learned is not None else NULL
        cdef void* db = bias.mutable_diff_on(on) if bias is not None else NULL
        cdef void* scratch = op.scratch(on, winograd_scratch(on.threads, op.shape, self.lanes, False))
        with nogil:
            winograd_backward(on.threads, op.shape, self.lanes, values, dy, w, dx, dw, db, scratch)


WINOGRAD.computes(Convolution, WinogradConvolution, refuses, slower)
