"""Convolution by engine CUDNN (ops/conv/cudnn.hpp): which plan takes the least time is measured once for each shape and kept.

The layout of images and weights is chosen here, by `prefers_channels_last`; MINICAFFE_CUDNN_LAYOUT names another. In precision
bf16 images and columns are kept in bf16 with channels last, weights are rounded in each forward, and the gradients of
parameters are float32.
"""

import logging
import os

from libcpp.string cimport string
from libcpp.vector cimport vector

from minicaffe.kernels.types cimport BF16, item_size
from minicaffe.engines.channels_last cimport channels_last
from minicaffe.ops.conv.operation cimport Convolution, ConvShape, backward_bias
from minicaffe.engines.engine cimport Blob, Context, Layout, Operation, Primitive, refuse
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.loops.strided.caffe cimport round_to_bf16

from minicaffe.cuda import compile
from minicaffe.errors import ConfigError
from minicaffe.engines.engine import Refusal
from minicaffe.engines.table import CUDNN

cdef extern from "minicaffe/ops/conv/cudnn.hpp" namespace "mc::cuda" nogil:
    enum: kNchw, kNhwc
    enum CudnnProduct:
        kForward            # x, w -> y
        kBackwardData       # w, y -> x
        kBackwardWeights    # x, y -> w
    cppclass Arguments "mc::cuda::CudnnArguments":
        Arguments()
        Arguments(int product, int dtype, int layout, void* x, void* w, void* y, const void* bias, bint add)
        bint trial          # a measurement: nothing is added to a gradient of weights
    cppclass CudnnPlans:
        bint tunes          # whether plans may be measured
        string place        # the key of the choice in the cache on disk
    CudnnPlans* cudnn_plans(const Context&, const ConvShape&, const Arguments&, int* chosen, long long* bytes) except +refuse
    int cudnn_choose(const Context&, CudnnPlans&, int wanted, long long* bytes) except +refuse
    string cudnn_name(const Context&, CudnnPlans&, int plan) except +refuse
    vector[int] cudnn_candidates(const Context&, CudnnPlans&, long long* bytes) except +refuse
    void cudnn_bias_bf16(const Context&, long long rows, long long channels, const void* dy, void* bias, bint add)
    string cudnn_run(const Context&, const ConvShape&, const Arguments&, CudnnPlans&, int plan, void* memory) except +refuse

ROUNDS, RUNS_PER_ROUND = 3, 3  # measurements of each plan, runs in each measurement
SLOW = 3.0          # times the least time: not measured again
FAILED = "engine CUDNN leaves out a plan of a convolution: %s"
cdef enum:
    FORWARD, BACKWARD, PARAMS       # the argument `what` of `compute`, and the index in `last`
ALIGNED = 4         # channels that fill 16 bytes, which the tensor cores' kernels read at once
log = logging.getLogger(__name__)


cdef bint prefers_channels_last(Convolution op) except -1:
    """Whether the tensor cores take less time for this convolution with channels last.

    On an H200 the convolutions of a step of ResNet-50 took 11.0 ms so in tf32, and 15.5 in NCHW. float32 was not measured. Channels
    that do not fill 16 bytes use slower kernels, except the few of a first layer.
    """
    requested = os.environ.get("MINICAFFE_CUDNN_LAYOUT", "").lower()
    if requested not in ("", "nchw", "nhwc"):
        raise ConfigError(f"must be nchw or nhwc, got '{requested}'", field="MINICAFFE_CUDNN_LAYOUT")
    if requested:
        return requested == "nhwc"
    cdef long long inputs = op.shape.channels, outputs = op.shape.outputs
    return op.precision() == "tf32" and not outputs % ALIGNED and (not inputs % ALIGNED or inputs < ALIGNED and not outputs % 16)


cdef class CudnnConvolution(Primitive):
    """Convolution and deconvolution by cuDNN: Primitive's methods as the products CudnnProduct."""
    cdef Layout bottom_layout, weight_layout, top_layout     # of bottom, weights and top, and of their gradients; None: plain
    cdef bint[3] last       # whether channels are last in forward, in the bottom's gradient, in those of parameters
    cdef int dtype          # of images, columns and weights as cuDNN reads them

    def __cinit__(self, Convolution op):
        cdef int i, axes = op.shape.window.num_axes
        self.dtype = BF16 if op.precision() == "bf16" else op.dtype
        self.last[:] = [self.dtype == BF16 or prefers_channels_last(op)] * 3
        if not self.last[FORWARD]:
            return
        image = op.shape.images, op.shape.channels, *[op.shape.window.in_[i] for i in range(axes)]
        columns = op.shape.images, op.shape.outputs, *[op.shape.window.out[i] for i in range(axes)]
        kernel = op.shape.outputs, op.shape.group_channels, *[op.shape.window.kernel[i] for i in range(axes)]
        self.bottom_layout, self.top_layout = [channels_last(dims, self.dtype) for dims in (
            (columns, image) if op.transposed else (image, columns))]
        self.weight_layout = channels_last(kernel, op.dtype)

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        return self.compute(FORWARD, on, operation, bottom, top, weight, bias)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        return self.compute(BACKWARD, on, operation, bottom, top, weight, None)

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        return self.compute(PARAMS, on, operation, bottom, top, weight, bias)

    cdef int compute(self, int what, const Context& on, Convolution op, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        """Compute forward, the bottom's gradient or those of parameters; in plain order where cuDNN refuses channels last."""
        try:
            return self.compute_as(self.last[what], what, on, op, bottom, top, weight, bias)
        except Refusal as refusal:
            if not self.last[what] or self.dtype == BF16:
                raise
            log.debug("engine CUDNN: %s with channels last; plain order instead", refusal.message)
            self.last[what] = False
        return self.compute_as(False, what, on, op, bottom, top, weight, bias)

    cdef int compute_as(self, bint last, int what, const Context& on, Convolution op, Blob bottom, Blob top, Blob weight,
                        Blob bias) except -1:
        """Compute as `compute`, with channels `last` or in plain order; raise Refusal if cuDNN has no plan."""
        if what == PARAMS:
            return self.accumulate_gradients(last, on, op, bottom, top, weight, bias)
        cdef Layout bottom_layout = self.bottom_layout if last else None, top_layout = self.top_layout if last else None
        cdef bint forward = what == FORWARD
        cdef int layout = kNhwc if last else kNchw
        cdef void* from_ = <void*> (bottom.data_in_layout(on, bottom_layout) if forward else top.diff_in_layout(on, top_layout))
        cdef void* w = <void*> self.weights(on, op, weight, self.weight_layout if last else None, forward)
        cdef void* to = (top.overwrite_data_in_layout(on, top_layout) if forward
                         else bottom.overwrite_diff_in_layout(on, bottom_layout))
        cdef const void* b = bias.data_on(on) if bias is not None else NULL
        if forward == op.transposed:        # the image from columns
            return self.product(on, op, Arguments(kBackwardData, self.dtype, layout, to, w, from_, b, False))
        return self.product(on, op, Arguments(kForward, self.dtype, layout, from_, w, to, b, False))

    cdef const void* weights(self, const Context& on, Convolution op, Blob weight, Layout layout, bint forward) except? NULL:
        """Return the weights in a layout and in `self.dtype`; for BF16 forward rounds them and keeps the result for backward."""
        cdef const void* w = weight.data_in_layout(on, layout)
        cdef void* rounded
        if self.dtype != BF16:
            return w
        if not forward and op.kept is not None:
            return op.kept.data_on(on)
        rounded = op.keep(((weight.count + 1) // 2,)).mutable_data_on(on)      # two bf16 in each float32 of the kept blob
        with nogil:
            round_to_bf16(on, weight.count, w, rounded)
        return rounded

    cdef int accumulate_gradients(self, bint last, const Context& on, Convolution op, Blob bottom, Blob top, Blob weight,
                                  Blob bias) except -1:
        """Add to the gradients of weight and bias, each unless it is None; raise Refusal if cuDNN has no plan."""
        cdef Layout top_layout = self.top_layout if last else None
        cdef const void *image, *columns
        cdef void* w
        cdef bint add = True        # gradient_on sets it to False if there is nothing to add to
        cdef Channels channels
        if weight is not None:
            image, columns = bottom.data_in_layout(on, self.bottom_layout if last else None), top.diff_in_layout(on, top_layout)
            w = weight.gradient_on(on, self.weight_layout if last else None, &add)
            if op.transposed:
                image, columns = columns, image
            try:
                self.product(on, op, Arguments(kBackwardWeights, self.dtype, kNhwc if last else kNchw, <void*> image,
                                               w, <void*> columns, NULL, add))
            except Exception:
                if not add:
                    weight.fill_diff_on(on, 0)      # the next engine adds to it
                raise
        if bias is not None and self.dtype == BF16:     # last, so that nothing was added before a Refusal
            columns, w, channels = top.diff_in_layout(on, top_layout), bias.gradient_on(on, None, &add), op.top()
            with nogil:
                cudnn_bias_bf16(on, channels.outer * channels.inner, channels.channels, columns, w, add)
        elif bias is not None:
            backward_bias(on, op, top, bias, top_layout)
        return 0

    cdef int product(self, const Context& on, Convolution op, Arguments what) except -1:
        """Compute one product; also during graph capture, in which a plan of a new shape may otherwise not load its kernels."""
        if on.stream.rate == NULL:      # no graph capture
            return self.by_plan(on, op, what)
        from minicaffe.cuda.device import RelaxedCapture
        with RelaxedCapture():
            return self.by_plan(on, op, what)

    cdef int by_plan(self, const Context& on, Convolution op, Arguments what) except -1:
        """Compute by the chosen plan, chosen here for a new shape; by another one if it fails, which has added nothing then."""
        cdef CudnnPlans* plans
        cdef int plan = -1
        cdef long long bytes = 0    # of memory that the plan needs
        cdef string why             # why it failed; empty: it has computed
        cdef void* memory
        with nogil:
            plans = cudnn_plans(on, op.shape, what, &plan, &bytes)
        if plan < 0 and plans != NULL:      # null: the stream has failed, and the loop is skipped
            plan = self.choose(on, op, what, plans, &bytes)
        while not on.stream.failed:
            memory = op.scratch(on, (bytes + item_size(op.dtype) - 1) // item_size(op.dtype))
            with nogil:
                why = cudnn_run(on, op.shape, what, plans[0], plan, memory)
            if why.empty():
                break
            log.warning(FAILED, why.decode())
            with nogil:
                plan = cudnn_choose(on, plans[0], -1, &bytes)
        return 0

    cdef int choose(self, const Context& on, Convolution op, Arguments what, CudnnPlans* plans, long long* bytes) except -2:
        """Return the plan's number and set its `bytes`: the cached choice, the fastest, or the first if none may be measured."""
        cdef int plan = -1
        cdef string name
        if plans.tunes:
            place = plans.place.decode()
            kept = compile.read_cached_plan(place)      # "number: engine N", as cudnn_name; another cuDNN may list other plans
            plan = int(kept.split(":")[0]) if kept else -1
            with nogil:
                name = cudnn_name(on, plans[0], plan)
            if name.decode() != kept:
                plan = self.fastest(on, op, what, plans) if on.stream.rate == NULL else -1  # while a graph is recorded nothing runs
                if plan >= 0:
                    compile.write_cached_plan(place, cudnn_name(on, plans[0], plan).decode())
        with nogil:
            plan = cudnn_choose(on, plans[0], plan, bytes)
        return plan

    cdef int fastest(self, const Context& on, Convolution op, Arguments what, CudnnPlans* plans) except -2:
        """Return the plan with the least time; -1 if none runs, or if the stream has failed, which the next check raises.

        The result is overwritten by each run. A gradient of weights that is added to is not: with `what.trial` it is written to the
        begin of `memory`, of which `bytes` has room for it and for the largest workspace. A plan that fails is not used again.
        """
        from minicaffe.cuda.device import Event, computing, get_device
        cdef long long bytes = 0
        cdef vector[int] numbers
        cdef int plan, turn
        cdef string why
        what.trial = True
        with nogil:
            numbers = cudnn_candidates(on, plans[0], &bytes)
        cdef Blob trial_memory = Blob((bytes // item_size(op.dtype) + 1,), op.dtype, "cuDNN trial")
        cdef void* memory = trial_memory.mutable_data_on(on)
        device = get_device(on.stream.device)
        compute_stream, begin, end = computing(device), Event(device, timing=True), Event(device, timing=True)
        times = {number: [] for number in numbers}
        for turn in range(ROUNDS + 1):   # in the first one kernels are loaded: it does not count
            for plan in list(times):
                begin.record(compute_stream)
                for _ in range(RUNS_PER_ROUND if turn else 1):
                    with nogil:
                        why = cudnn_run(on, op.shape, what, plans[0], plan, memory)
                end.record(compute_stream)
                end.synchronize()
                if on.stream.failed:
                    return -1
                times[plan].append(end.elapsed(begin))
                if not why.empty():
                    log.warning(FAILED, why.decode())
                    del times[plan]
            least = min([taken[turn] for taken in times.values()], default=0)
            times = {number: taken for number, taken in times.items() if not turn or taken[turn] <= SLOW * least}
        return min(times, key=lambda number: sorted(times[number][1:])[ROUNDS // 2], default=-1)


CUDNN.computes(Convolution, CudnnConvolution)
