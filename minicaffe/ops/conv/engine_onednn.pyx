"""Convolution by engine ONEDNN (ops/conv/onednn.hpp)."""

from libc.stdint cimport int64_t

from minicaffe.engines.onednn.library cimport OnednnLayout, scaled_layout
from minicaffe.ops.conv.operation cimport Convolution, ConvShape, backward_bias
from minicaffe.engines.epilogue cimport ChannelEpilogue, ConcatSlice
from minicaffe.engines.onednn.primitives cimport (  # no-cython-lint
    Blob, Context, Layout, Library, OnednnWeightsPrimitive, Operation, Weighted, library, refuse)  # no-cython-lint

from minicaffe.engines.engine import Refusal, get_precision
from minicaffe.engines.table import ONEDNN

cdef extern from "minicaffe/ops/conv/onednn.hpp" namespace "mc::onednn" nogil:
    bint is_faster(const ConvShape&, bint transposed)
    bint is_fast_per_image(const ConvShape&, int threads)
    cppclass OnednnConv "mc::onednn::Conv"(Weighted):
        void make(const Library*, const ConvShape&, bint transposed, int threads, bint bf16) except +refuse
        bint fuse(bint adds, int64_t slopes, bint apart) except +refuse
        size_t fused_scratch()
        void forward_fused(const void* x, const void* w, const void* b, void* y, long long pitch, const void* addend,
                           const float* slopes, void* scratch) except +refuse


def refuses(Convolution op):  # engines/table.py: return why the engine cannot compute it, or None
    return "more than 3 spatial axes" if op.shape.window.num_axes > 3 else None


def slower(Convolution op):  # engines/table.py: return why a later engine takes less time, or None
    return None if is_faster(op.shape, op.transposed) else "channels that do not fill blocks of 16"


cdef class OnednnConvolution(OnednnWeightsPrimitive):
    cdef OnednnConv conv           # the steps in C++; backward, and forward without an epilogue, are in the base class
    cdef OnednnLayout scaled       # of the weights times the factors of an epilogue, by output channel; None: none so far

    def __cinit__(self, Convolution op):
        self.fuses = self.fuses_sum = True
        self.conv.make(library(), op.shape, op.transposed, op.threads, get_precision() == "bf16")
        self.bind_primitives(&self.conv)

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        if operation.epilogue is None or not self.finish(on, operation, bottom, top, weight, bias):
            # An epilogue that is left makes the net run the fused layers after forward (net/step.pyx).
            OnednnWeightsPrimitive.forward(self, on, operation, bottom, top, weight, bias)

    cdef bint finish(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """Compute forward with the epilogue and set that to None; return False if oneDNN does not support it."""
        cdef Convolution op = operation
        cdef ChannelEpilogue epilogue = operation.epilogue
        cdef Blob addend = epilogue.addend
        cdef ConcatSlice part = epilogue.part
        cdef char* to = NULL    # the address of the result in the blob of a Concat; NULL: it goes to the epilogue's top
        if part is not None and addend is None and is_fast_per_image(op.shape, on.threads.count):
            to = part.begin(on, self.top_layout)
            if to != NULL and not self.conv.fuse(False, epilogue.slopes.size(), True):
                to = NULL
        if to == NULL and not self.conv.fuse(addend is not None, epilogue.slopes.size(), False):
            # A later schedule fuses no addend into it, or nothing if there was none.
            self.fuses_sum, self.fuses = False, self.fuses and addend is not None
            return False
        cdef Layout layout = self.weight_layout
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        if epilogue.scale.size():
            epilogue.compute_factors(bias)
            if self.scaled is None or self.scaled.factors != epilogue.factors:
                self.scaled = scaled_layout(self.conv.w, self.conv.plain_w, epilogue.factors)
            layout, b = self.scaled, epilogue.terms.data()
        cdef const void* w = weight.data_in_layout(on, layout)
        cdef object _kept = weight.data_memory.private_side     # keeps `w` alive: a net in another thread may change the layout
        cdef const void* added = addend.data_in_layout(on, self.top_layout) if addend is not None else NULL
        # The bottom may be the same memory in another layout: to fetch it below replaces the block of `added`, which must live.
        cdef object _held = addend.data_memory.private_side if addend is not None else None
        cdef void* scratch = op.scratch(on, (self.conv.fused_scratch() + 3) // 4)
        with nogil:
            self.conv.forward_fused(bottom.data_in_layout(on, self.bottom_layout), w, b,
                                    to if to != NULL else epilogue.top.overwrite_data_in_layout(on, self.top_layout),
                                    part.pitch if to != NULL else 0, added, epilogue.slopes.data(), scratch)
        if to != NULL:
            part.written = True
        operation.epilogue = None
        return True

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Convolution op = operation
        if weight is None:
            return backward_bias(on, op, top, bias)
        if op.shape.channels == 1 and get_precision() == "bf16":
            raise Refusal("the gradient of weights for one channel in bf16, which takes oneDNN several times as long")
        return OnednnWeightsPrimitive.backward_params(self, on, operation, bottom, top, weight, bias)


ONEDNN.computes(Convolution, OnednnConvolution, refuses, slower)
