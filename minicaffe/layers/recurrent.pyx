"""RNN and LSTM (Caffe recurrent_layer.cpp, rnn_layer.cpp, lstm_layer.cpp).

Different from Caffe, which builds a net of some layers for each of the T steps: what the steps have in common is computed for all
at once, as inner products of T N rows, also for the weights' gradients. Only what depends on the step before is computed step by
step (ops/recurrent/caffe.hpp). So `recurrent_param.debug_info` has no inner layers to show, which the log says.

- A bottom that needs no gradient gets none. Parameters always get one, whatever their lr_mult, as in Caffe.
- The state that is carried from one forward to the next starts from zero when the number of sequences changes, and a snapshot
  holds it, so that a resumed training repeats.
- A layer in place behind it breaks no gradient and no state.
"""

import logging

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context, settle
from minicaffe.kernels.types cimport FLOAT, item_size
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.broadcast.caffe cimport shift_by
from minicaffe.ops.gemm.blas cimport Blas, blas
from minicaffe.ops.inner_product.operation cimport InnerProduct
from minicaffe.loops.lanes.caffe cimport Channels
from minicaffe.ops.recurrent.caffe cimport (
    Recurrence,
    lstm_steps_backward,
    lstm_steps_forward,
    rnn_steps_backward,
    rnn_steps_forward,
)
from minicaffe.loops.strided.caffe cimport copy_typed
from minicaffe.loops.sums.caffe cimport channel_sums

from minicaffe.errors import ConfigError, Error, ShapeError, located
from minicaffe.layers.base.checks import restore_blobs, stored_blobs
from minicaffe.engines.engine import get_precision

cdef extern from "minicaffe/ops/conv/register_tile.hpp" namespace "mc::cpu":
    const int kMaxTileColumns
cdef extern from "minicaffe/ops/activation/caffe.hpp" nogil:
    void tanh_forward "mc::map1<mc::TanhForward>"(const Context&, int dtype, long long n, const void* x, void* y)
    void tanh_backward "mc::map2<mc::TanhBackward>"(const Context&, int dtype, long long n, const void* y, const void* dy, void* dx)

log = logging.getLogger(__name__)


cdef class SequenceLayer(DeviceLayer):
    """Base of RNN and LSTM.

    Parameters
    ----------
    bottom[0] : Blob, shape (T, N, ...)
        x, the steps of N sequences side by side; at least 3 axes.
    bottom[1] : Blob, shape (T, N)
        cont: 0 where a sequence begins, else 1; has no gradient.
    bottom[2] : Blob, shape (N, ...), optional
        A static input, which goes into each step.
    bottom[...] : Blob, shape (1, N, D), one for each state, only with `expose_hidden`
        The states before the first step; their gradient is 0, as in Caffe.
    top[0] : Blob, shape (T, N, D)
        The output, D is `recurrent_param.num_output`.
    top[...] : Blob, shape (1, N, D), one for each state, only with `expose_hidden`
        The states after the last step; give no gradient.

    Without `expose_hidden` the states before the first step are those after the last of the former forward, at first 0. No
    gradient crosses forwards.
    """

    states = ()   # names of what a step leaves to the next, as snapshots have them; the first is h
    gates = 1     # values that a step computes for each of the D outputs
    backward_reads_tops = False
    refuses_in_place = True

    cdef readonly long long steps   # T
    cdef long long size             # D
    cdef bint static, exposed       # whether there is a static input, and expose_hidden
    cdef list first, last           # (1, N, D): states before the first step and after the last; unused if `exposed`
    cdef Blob acts                  # (T, N, gates D): the gates of all steps: sums, then after their functions; gradients
    cdef Blob kept                  # (T, N, D): cont h of the step before, of all steps
    cdef Blob shared                # (N, gates D): the static input's part of the gates, the same in all steps
    cdef Blob scratch               # (3, N, D), of one step: the gradients of kept, h and, in LSTM, c
    cdef Blob packed                # the recurrent weights as the product of few rows reads them
    cdef InnerProduct x_product, static_product, recurrent_product      # of W_x, W_static (or None), W_h; m: T N, for W_static N

    no_gradient = {1: "the sequence indicators"}

    # The numbers of blobs depend on expose_hidden.

    @property
    def min_bottom_blobs(self):
        return 2 + self._exposed_states()

    @property
    def max_bottom_blobs(self):
        return 3 + self._exposed_states()

    @property
    def exact_num_top_blobs(self):
        return 1 + self._exposed_states()

    def _exposed_states(self):      # number of states that are bottoms and tops
        return len(self.states) if self.param.recurrent_param.expose_hidden else 0

    # ---- what a type defines

    cdef int run_steps_forward(self, const Context& on, Recurrence steps, list first, Blob y) except -1:
        """Compute y, `acts` and `kept` from the inputs' part of the gates, in `acts`, and the states before the first step."""
        raise Error(f"layer type {self.type} does not define run_steps_forward")

    cdef int run_steps_backward(self, const Context& on, Recurrence steps, list first, Blob y) except -1:
        """Compute `acts.diff`, the gradient of the gates, from `y.diff`, that of the output.

        `first` has the states before the first step. Parameters of one type only, W_ho and b_o of RNN, get gradients here.
        """
        raise Error(f"layer type {self.type} does not define run_steps_backward")

    cdef Blob state_of_steps(self, int state, Blob y):
        """Return the blob, of y's shape, with state number `state` of `states` after each step."""
        raise Error(f"layer type {self.type} does not define state_of_steps")

    # ---- the contract with the net

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.recurrent_param
        if not 1 <= param.num_output <= 2**31 - 1:
            raise ConfigError(f"must be given, from 1 to 2^31 - 1, got {param.num_output}", field="recurrent_param.num_output")
        if param.debug_info:
            log.warning("layer '%s': recurrent_param.debug_info has nothing to show, the steps are not layers here", self.name)
        self.size, self.exposed, self.static = param.num_output, param.expose_hidden, len(bottom) > self.min_bottom_blobs
        self.steps = (<Blob> bottom[0]).dims[0]
        self.check_shapes(bottom)
        self.acts, self.kept, self.shared = self.new_blob(what="gates"), self.new_blob(what="kept"), self.new_blob(what="static")
        self.scratch, self.packed = self.new_blob(), self.new_blob(what="packed")
        self.first, self.last = [[self.new_blob(what=name) for name in self.states] for _ in range(2)]
        with located(field="recurrent_param.num_output"):
            self.make_params(bottom)

    def make_params(self, list bottom):
        """Make the parameters in Caffe's order, and the inner products that read them; RNN adds W_ho and b_o."""
        cdef long long rows = self.gates * self.size
        self.x_product = self.make_product(rows, bottom[0].count_from(2), True)
        if self.static:
            self.static_product = self.make_product(rows, bottom[2].count_from(1), False)
        self.recurrent_product = self.make_product(rows, self.size, False)

    def make_product(self, rows, columns, bint bias):
        """Append a weight (rows, columns), with `bias` also (rows,), and return the operation for them; `reshape` sets its m."""
        param = self.param.recurrent_param
        cdef InnerProduct product = InnerProduct(self.dtype)
        product.n, product.k = rows, columns
        self.add_param((rows, columns), param.weight_filler, "recurrent_param.weight_filler")
        if bias:
            self.add_param((rows,), param.bias_filler, "recurrent_param.bias_filler")
        return product

    def scratch_blobs(self):        # freed by `Layer.release_memory`
        return [self.acts, self.kept, self.shared, self.scratch, self.packed]

    def operations(self):       # those that exist, in the order of `make_params`
        return [product for product in (self.x_product, self.static_product, self.recurrent_product) if product is not None]

    def multiply_adds(self, bottom, top):       # see layer.pyx: for `flops`
        return sum(_multiply_adds(product) for product in self.operations())

    def backward_flops(self, bottom, top, needs):       # two products for each of forward, but no gradient of unneeded bottoms
        products = [self.x_product] * (not needs[0]) + [self.static_product] * (self.static and not needs[2])
        return 4 * self.multiply_adds(bottom, top) - 2 * sum([_multiply_adds(product) for product in products])

    def check_shapes(self, list bottom):
        """Raise ShapeError unless the bottoms fit each other."""
        x = bottom[0].shape
        if len(x) < 3:
            raise ShapeError(f"needs at least 3 axes (steps, sequences, inputs), got {list(x)}", field="bottom[0]")
        if x[0] < 1:
            raise ShapeError(f"axis 0 is the number of steps, which must be at least 1, got shape {list(x)}", field="bottom[0]")
        if x[0] != self.steps:
            raise ShapeError(f"has {x[0]} steps, the layer was made for {self.steps}; make a new net, or pad the sequences",
                             field="bottom[0]")
        needed = {1: x[:2]}
        first = 3 if self.static else 2
        for i in range(first, len(bottom)):
            needed[i] = (1, x[1], self.size)
        for i, shape in needed.items():
            if bottom[i].shape != shape:
                raise ShapeError(f"must have shape {list(shape)} for x of shape {list(x)}, got {list(bottom[i].shape)}",
                                 field=f"bottom[{i}]")
        if self.static and (bottom[2].num_axes < 2 or bottom[2].shape[0] != x[1]):
            raise ShapeError(f"must have at least 2 axes, the first of size {x[1]} as the second of x, got "
                             f"{list(bottom[2].shape)}", field="bottom[2]")

    cpdef reshape(self, list bottom, list top):
        self.check_shapes(bottom)
        cdef long long n = (<Blob> bottom[0]).dims[1], rows = self.gates * self.size
        cdef InnerProduct product
        for i, product in ((0, self.x_product), (2, self.static_product)):
            if product is not None and (columns := bottom[i].count_from(1 if i else 2)) != product.k:
                raise ShapeError(f"has shape {list(bottom[i].shape)}, {columns} values for each step of a sequence; "
                                 f"the layer was set up for {product.k}", field=f"bottom[{i}]")
        for product in self.operations():
            product.m = n if product is self.static_product else self.steps * n
            product.changed()
        self.acts.reshape_to((self.steps, n, rows))
        self.kept.reshape_to((self.steps, n, self.size))
        self.shared.reshape_to((n, rows))
        self.scratch.reshape_to((3, n, self.size))
        self.packed.reshape_to((rows, self.size + kMaxTileColumns))
        top[0].reshape_to((self.steps, n, self.size))
        shape = (1, n, self.size)
        for blob in top[1:]:
            blob.reshape_to(shape)
        if self.first[0].shape != shape:
            for blob in self.first + self.last:
                blob.reshape_to(shape)
            self.reset()

    def reset(self):
        """Set the states that the next forward begins with to zero: the number of sequences has changed."""
        cdef Context on = context()
        for state in self.last:
            (<Blob> state).fill_data_on(on, 0)
        settle(on)

    cdef list states_before(self, list bottom):
        """Return the blobs of the states before the first step: the last bottoms with `expose_hidden`, else `first`."""
        return bottom[len(bottom) - len(self.states):] if self.exposed else self.first

    cdef Recurrence recurrence(self, const Context& on, Blob cont) except *:
        """Return sizes, W_h and `cont` (bottom[1]) for the functions of `ops/recurrent`; their pointers are of this pass."""
        cdef Recurrence steps
        cdef Blob weight = self.blobs[3 if self.static else 2]
        steps.steps, steps.n, steps.size, steps.gates = self.steps, cont.dims[1], self.size, self.gates
        steps.weight, steps.cont = weight.data_on(on), cont.data_on(on)
        # A single step reads its weights once: nothing is gained by packing them.
        steps.packed = self.packed.mutable_data_on(on) if on.stream == NULL and self.steps > 1 else NULL
        steps.bf16 = on.stream == NULL and self.dtype == FLOAT and get_precision() == "bf16"
        return steps

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob y = top[0], acts = self.acts, given, state
        cdef long long n = acts.dims[1], count = n * self.size
        cdef int i
        cdef const char* source
        if not self.exposed:
            for i in range(len(self.states)):
                copy_blob(on, self.last[i], self.first[i])      # continue after the last step of the former forward
        self.x_product.forward(on, bottom[0], acts, self.blobs[0], self.blobs[1])       # acts = x W_x^T + b, of all steps
        if self.static:
            given = self.shared
            self.static_product.forward(on, bottom[2], given, self.blobs[2])
            shift_by(on, self.dtype, Channels(self.steps, given.count, 1), acts.data_on(on), acts.mutable_data_on(on), NULL,
                     given.data_on(on))
        self.run_steps_forward(on, self.recurrence(on, bottom[1]), self.states_before(bottom), y)
        for i in range(len(self.states)):
            state = top[1 + i] if self.exposed else self.last[i]
            given = self.state_of_steps(i, y)
            source = <const char*> given.data_on(on) + (self.steps - 1) * count * item_size(self.dtype)
            copy_typed(on, self.dtype, count, source, state.mutable_data_on(on))

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        cdef Blob acts = self.acts, given = self.shared
        cdef int i
        if self.exposed:
            for i in range(len(bottom) - len(self.states), len(bottom)):
                if propagate_down[i]:
                    (<Blob> bottom[i]).fill_diff_on(on, 0)
        self.run_steps_backward(on, self.recurrence(on, bottom[1]), self.states_before(bottom), top[0])     # acts.diff
        self.recurrent_product.backward_params(on, self.kept, acts, self.blobs[3 if self.static else 2])    # adds to dW_h
        self.x_product.backward_params(on, bottom[0], acts, self.blobs[0], self.blobs[1])
        if propagate_down[0]:
            self.x_product.backward(on, bottom[0], acts, self.blobs[0])
        if self.static:
            channel_sums(on, self.dtype, Channels(self.steps, given.count, 1), 1, False,
                         given.mutable_diff_on(on), acts.diff_on(on))
            self.static_product.backward_params(on, bottom[2], given, self.blobs[2])
            if propagate_down[2]:
                self.static_product.backward(on, bottom[2], given, self.blobs[2])

    cpdef inspect(self, list bottom):    # a net calls it before it records or replays a CUDA graph
        cdef Blob state
        for state in self.last:     # a replay writes them on the device, so it must be the valid side
            if state.data_memory.device is not None:
                state.data_memory.mutable_gpu_data_ptr()

    # ---- for snapshots

    def get_state(self):    # for a snapshot; None: bottoms bring the states
        return None if self.exposed else stored_blobs(self.states, self.last)

    def set_state(self, state):    # raises DataError or ShapeError, and writes nothing, if it does not fit
        restore_blobs(state, self.states, self.last)


cdef class LSTMLayer(SequenceLayer):
    """``c_t, h_t = LSTMUnit(c_(t-1), W_hc (cont_t h_(t-1)) + W_xc x_t + b_c [+ W_static static], cont_t)``; the output is h.

    Blobs: W_xc [4D, I], b_c [4D], [W_static [4D, S]], W_hc [4D, D]; gates in the order i, f, o, g. States: h, c.
    """

    states = ("h", "c")
    gates = 4

    cdef Blob cells     # c of all steps, (T, N, D)

    cpdef layer_setup(self, list bottom, list top):
        SequenceLayer.layer_setup(self, bottom, top)
        self.cells = self.new_blob(what="cells")

    def scratch_blobs(self):
        return [*SequenceLayer.scratch_blobs(self), self.cells]

    cpdef reshape(self, list bottom, list top):
        SequenceLayer.reshape(self, bottom, top)
        self.cells.reshape_like(top[0])

    cdef Blob state_of_steps(self, int state, Blob y):    # 0: h, which is the output; 1: c
        return self.cells if state else y

    cdef int run_steps_forward(self, const Context& on, Recurrence steps, list first, Blob y) except -1:
        cdef const Blas* library = blas()
        cdef Blob h = first[0], c = first[1]
        with nogil:
            lstm_steps_forward(self.dtype, on, library[0], steps, h.data_on(on), c.data_on(on), self.acts.mutable_data_on(on),
                               self.kept.mutable_data_on(on), self.cells.mutable_data_on(on), y.mutable_data_on(on))

    cdef int run_steps_backward(self, const Context& on, Recurrence steps, list first, Blob y) except -1:
        cdef const Blas* library = blas()
        cdef Blob c = first[1]
        with nogil:
            lstm_steps_backward(self.dtype, on, library[0], steps, c.data_on(on), self.acts.data_on(on), self.cells.data_on(on),
                                y.diff_on(on), self.acts.mutable_diff_on(on), self.scratch.mutable_data_on(on))


cdef class RNNLayer(SequenceLayer):
    """``h_t = tanh(W_hh (cont_t h_(t-1)) + W_xh x_t + b_h [+ W_static static])``; the output is ``tanh(W_ho h_t + b_o)``.

    Blobs: W_xh [D, I], b_h [D], [W_static [D, S]], W_hh [D, D], W_ho [D, D], b_o [D]. State: h.
    """

    states = ("h",)

    cdef Blob h, o      # (T, N, D); o: a copy of the output, which a layer in place may change in the top
    cdef InnerProduct output_product        # of W_ho and b_o

    def make_params(self, list bottom):    # in `layer_setup`
        SequenceLayer.make_params(self, bottom)
        self.output_product = self.make_product(self.size, self.size, True)
        self.h, self.o = self.new_blob(what="h"), self.new_blob(what="o")

    def scratch_blobs(self):    # freed by `Layer.release_memory`
        return [*SequenceLayer.scratch_blobs(self), self.h, self.o]

    def operations(self):    # a net chooses engines by them
        return [*SequenceLayer.operations(self), self.output_product]

    cpdef reshape(self, list bottom, list top):
        SequenceLayer.reshape(self, bottom, top)
        self.h.reshape_like(top[0])
        self.o.reshape_like(top[0])

    cdef Blob state_of_steps(self, int state, Blob y):    # h is not the output here
        return self.h

    cdef int run_steps_forward(self, const Context& on, Recurrence steps, list first, Blob y) except -1:
        cdef const Blas* library = blas()
        cdef Blob h = first[0], o = self.o
        with nogil:
            rnn_steps_forward(self.dtype, on, library[0], steps, h.data_on(on), self.acts.mutable_data_on(on),
                              self.kept.mutable_data_on(on), self.h.mutable_data_on(on))
        self.output_product.forward(on, self.h, o, self.blobs[len(self.blobs) - 2], self.blobs[len(self.blobs) - 1])
        tanh_forward(on, self.dtype, o.count, o.data_on(on), o.mutable_data_on(on))
        copy_blob(on, o, y)

    cdef int run_steps_backward(self, const Context& on, Recurrence steps, list first, Blob y) except -1:
        cdef const Blas* library = blas()
        cdef Blob weight = self.blobs[len(self.blobs) - 2], h = self.h, o = self.o
        tanh_backward(on, self.dtype, o.count, o.data_on(on), y.diff_on(on), o.mutable_diff_on(on))
        self.output_product.backward_params(on, h, o, weight, self.blobs[len(self.blobs) - 1])
        self.output_product.backward(on, h, o, weight)
        with nogil:
            rnn_steps_backward(self.dtype, on, library[0], steps, h.data_on(on), h.diff_on(on), self.acts.mutable_diff_on(on),
                               self.scratch.mutable_data_on(on))


cdef object _multiply_adds(InnerProduct product):
    return product.m * product.n * product.k


cdef int copy_blob(const Context& on, Blob source, Blob target) except -1:
    """Copy the data of a state or output where the context computes."""
    copy_typed(on, source.dtype, source.count, source.data_on(on), target.mutable_data_on(on))
    return 0
