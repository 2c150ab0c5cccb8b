"""RNN and LSTM: layers unrolled in time (Caffe recurrent_layer.cpp, rnn_layer.cpp, lstm_layer.cpp).

Each is an inner net with one copy of its cell for each of the T steps. All steps use the layer's own parameter blobs, so
their gradients add up. Different from Caffe:

- What the steps have in common is computed for all at once: x's transform as there, and also the static input, added by a
  Bias layer, and the RNN's output.
- A bottom that needs no gradient gets none. Parameters always get one, whatever their lr_mult, as in Caffe.
- The state that is carried from one forward to the next starts anew when the number of sequences changes, and a snapshot
  holds it, so that a resumed training repeats.
- The top is the layer's own memory for T = 1 as well, so that a layer in place behind it breaks no gradient.
"""

import base64

import numpy as np

from minicaffe.blob cimport Blob
from minicaffe.layer cimport Layer
from minicaffe.device.context cimport Context, context, settle

from minicaffe.blob import NUMPY_TYPES
from minicaffe.errors import ConfigError, DataError, Error, ShapeError
from minicaffe.layer import register_layer
from minicaffe.layers.base.checks import refuse_in_place
from minicaffe.layers.base.inner import InnerNet
from minicaffe.proto import caffe_pb2
from minicaffe.workspace import Workspace

cdef extern from "minicaffe/device/typed.hpp" nogil:
    void copy_typed "mc::copy_typed"(const Context&, int, long long, const void*, void*)

MESSAGES = {"Bias": "bias_param", "Concat": "concat_param", "InnerProduct": "inner_product_param", "Scale": "scale_param",
            "Slice": "slice_param", "Tile": "tile_param"}
MAX_STEPS = 4096   # six layers of the inner net each: about 60 KB and a millisecond to make


cdef class RecurrentLayer(Layer):
    """What RNN and LSTM share.

    Parameters
    ----------
    bottom[0] : Blob, shape (T, N, ...)
        x, the steps of N sequences side by side; at least 3 axes.
    bottom[1] : Blob, shape (T, N)
        cont: 0 where a sequence begins, else 1; has no gradient.
    bottom[2] : Blob, shape (N, ...), optional
        A static input, which goes into each step.
    bottom[...] : Blob, shape (1, N, D), one for each state, only with `expose_hidden`
        The states before the first step; have no gradient.
    top[0] : Blob, shape (T, N, D)
        The output, D is `recurrent_param.num_output`.
    top[...] : Blob, shape (1, N, D), one for each state, only with `expose_hidden`
        The states after the last step; give no gradient.

    Without `expose_hidden` the states before the first step are those after the last of the former forward, at first 0. No
    gradient crosses forwards.
    """

    states = ()   # blobs of the inner net that a step leaves to the next, without the number of the step
    gates = 1     # values that a step computes for each of the D outputs

    cdef readonly object inner      # the net
    cdef readonly int steps         # T
    cdef long long size             # D
    cdef bint static, exposed       # whether there is a static input, and expose_hidden
    cdef object parameters_of_steps # the parameters under the names that the inner layers look for

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

    def _exposed_states(self):
        return len(self.states) if self.param.recurrent_param.expose_hidden else 0

    def allow_force_backward(self, int bottom_index):
        return bottom_index != 1

    # ---- what a type defines

    def cell(self, int t):
        """Return the inner layers of step t, from ``<state>_<t - 1>`` and ``x_<t>`` to ``<state>_<t>``."""
        raise Error(f"layer type {self.type} does not define cell(t)")

    def output(self):
        """Return the inner layers from the steps' states to the blob ``y``."""
        raise Error(f"layer type {self.type} does not define output()")

    # ---- the contract with the net

    cpdef layer_setup(self, list bottom, list top):
        param = self.param.recurrent_param
        cdef Blob x = bottom[0]
        refuse_in_place(self, bottom, top)
        if not 1 <= param.num_output <= 2**31 - 1:
            raise ConfigError(f"must be given, from 1 to 2^31 - 1, got {param.num_output}", field="recurrent_param.num_output")
        self.size, self.exposed, self.static = param.num_output, param.expose_hidden, len(bottom) > self.min_bottom_blobs
        self.steps = x.dims[0] if x.num_axes else 0
        if not 1 <= self.steps <= MAX_STEPS:
            raise ShapeError(f"axis 0 is the number of steps, which must be from 1 to {MAX_STEPS}, got shape {list(x.shape)}",
                             field="bottom[0]")
        self.check_shapes(bottom)
        self.parameters_of_steps = Workspace()
        try:
            self.make_params(bottom)
        except ShapeError as error:
            raise error.at(field="recurrent_param.num_output")
        self.inner = InnerNet(self, self.unrolled(), self.input_shapes(bottom), self.parameters_of_steps)
        self.inner.net.debug_info = param.debug_info

    def make_params(self, list bottom):
        """Make the parameters in Caffe's order."""
        cdef long long rows = self.gates * self.size
        self.make_product(["x_transform"], rows, bottom[0].count_from(2), True)
        if self.static:
            self.make_product(["static_transform"], rows, bottom[2].count_from(1), False)
        self.make_product([f"h_transform_{t}" for t in self.times()], rows, self.size, False)

    def make_product(self, list names, rows, columns, bint bias):
        """Make the parameters that the inner InnerProduct layers called `names` have in common."""
        param = self.param.recurrent_param
        blobs = [self.add_param((rows, columns), param.weight_filler, "recurrent_param.weight_filler")]
        if bias:
            blobs.append(self.add_param((rows,), param.bias_filler, "recurrent_param.bias_filler"))
        for name in names:
            for i, blob in enumerate(blobs):
                self.parameters_of_steps.set(f"{name}[{i}]", blob)

    def check_shapes(self, list bottom):
        """Raise ShapeError unless the bottoms fit each other."""
        x = bottom[0].shape
        if len(x) < 3:
            raise ShapeError(f"needs at least 3 axes (steps, sequences, inputs), got {list(x)}", field="bottom[0]")
        if x[0] != self.steps:
            raise ShapeError(f"has {x[0]} steps, the layer was made for {self.steps}; make the net anew, or pad the sequences",
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

    def input_shapes(self, list bottom):
        """Return the shapes of the inner net's inputs by name."""
        shapes = {"x": bottom[0].shape, "cont": bottom[1].shape}
        if self.static:
            shapes["static"] = bottom[2].shape
        for name in self.states:
            shapes[f"{name}_0"] = (1, bottom[0].shape[1], self.size)
        return shapes

    def unrolled(self):
        """Return the layers of the inner net."""
        rows = self.gates * self.size
        layers = [part("Slice", "cont_slice", ["cont"], [f"cont_{t}" for t in self.times()], axis=0),
                  product("x_transform", "x", rows, axis=2, bias=True)]
        if self.static:
            layers += [product("static_transform", "static", rows, axis=1),
                       part("Bias", "x_and_static", ["x_transform", "static_transform"], ["x_and_static"], axis=1)]
        layers.append(part("Slice", "x_slice", ["x_and_static" if self.static else "x_transform"], [f"x_{t}" for t in self.times()], axis=0))
        for t in self.times():
            # cont keeps the state of the sequences that go on.
            layers += [part("Scale", f"h_kept_{t}", [f"h_{t - 1}", f"cont_{t}"], [f"h_kept_{t}"], axis=0),
                       product(f"h_transform_{t}", f"h_kept_{t}", rows, axis=2),
                       part("Eltwise", f"gates_{t}", [f"h_transform_{t}", f"x_{t}"], [f"gates_{t}"])]
            layers += self.cell(t)
        return layers + self.output()

    def times(self):
        """The numbers of the steps."""
        return range(1, self.steps + 1)

    cpdef reshape(self, list bottom, list top):
        self.check_shapes(bottom)
        cdef int i
        cdef list before = [self.inner.blob(f"{name}_0").shape for name in self.states]
        self.inner.feed("x", bottom[0])
        self.inner.feed("cont", bottom[1])
        if self.static:
            self.inner.feed("static", bottom[2])
        shapes = self.input_shapes(bottom)
        for name in self.states:
            self.inner.blob(f"{name}_0").reshape_to(shapes[f"{name}_0"])
        self.inner.reshape()
        self.inner.give("y", top[0])
        for i, name in enumerate(self.states):
            if self.exposed:
                top[1 + i].reshape_to(shapes[f"{name}_0"])
            elif before[i] != shapes[f"{name}_0"]:
                self.zero(name)

    def reset(self):
        """Let the next forward start from states of zero."""
        for name in self.states:
            self.zero(name)

    def zero(self, str name):
        cdef Context on = context()
        (<Blob> self.last_state(name)).fill_data_on(on, 0)
        settle(on)

    def last_state(self, str name):
        """Return the blob of a state after the last step."""
        return self.inner.blob(f"{name}_{self.steps}")

    cpdef forward_cpu(self, list bottom, list top):
        cdef int i, first = len(bottom) - len(self.states)
        for i, name in enumerate(self.states):
            self.copy(bottom[first + i] if self.exposed else self.last_state(name), self.inner.blob(f"{name}_0"))
        self.inner.forward()
        if self.exposed:
            for i, name in enumerate(self.states):
                self.copy(self.last_state(name), top[1 + i])

    cpdef backward_cpu(self, list top, list propagate_down, list bottom):
        if propagate_down[1]:
            raise ConfigError(f"{self.type} has no gradient for the marks of sequences; set propagate_down: false",
                              field="bottom[1]")
        wanted = ("x",) if propagate_down[0] else ()
        if self.static and propagate_down[2]:
            wanted += ("static",)
        self.inner.backward(wanted)

    # The inner layers run where the mode says.

    cpdef forward_gpu(self, list bottom, list top):
        self.forward_cpu(bottom, top)

    cpdef backward_gpu(self, list top, list propagate_down, list bottom):
        self.backward_cpu(top, propagate_down, bottom)

    def capture_obstacle(self):
        return self.inner.net.capture_obstacle()

    cpdef inspect(self, list bottom):
        self.inner.inspect()

    cdef int copy(self, Blob source, Blob target) except -1:
        """Copy data in the present mode, on CPU or device."""
        cdef Context on = context()
        if source.count:
            copy_typed(on, self.dtype, source.count, source.data_on(on), target.mutable_data_on(on))
        return settle(on)

    # ---- for snapshots

    def get_state(self):
        if self.exposed:
            return None
        state = {}
        for name in self.states:
            blob = self.last_state(name)
            state[name] = {"shape": list(blob.shape), "data": base64.b64encode(blob.cpu_data.tobytes()).decode()}
        return state

    def set_state(self, state):
        dtype = NUMPY_TYPES[self.dtype]
        values = []
        for name in self.states:
            blob = self.last_state(name)
            try:
                data = base64.b64decode(state[name]["data"], validate=True)
                shape = tuple(state[name]["shape"])
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"the state '{name}' is not what minicaffe writes ({error!r}); fetch the file again") from None
            if shape != blob.shape or len(data) != blob.count * dtype.itemsize:
                raise ShapeError(f"the state '{name}' was stored for shape {list(shape)}, the net has {list(blob.shape)} "
                                 f"{dtype.name}; resume with the net that wrote it")
            values.append((blob, np.frombuffer(data, dtype).reshape(shape)))
        for blob, array in values:
            blob.data[...] = array


cdef class LSTMLayer(RecurrentLayer):
    """``c_t, h_t = LSTMUnit(c_(t-1), W_hc (cont_t h_(t-1)) + W_xc x_t + b_c [+ W_static static], cont_t)``; the output is h.

    Blobs: W_xc [4D, I], b_c [4D], [W_static [4D, S]], W_hc [4D, D]; gates in the order i, f, o, g. States: h, c.
    """

    states = ("h", "c")
    gates = 4

    def cell(self, int t):
        return [part("LSTMUnit", f"unit_{t}", [f"c_{t - 1}", f"gates_{t}", f"cont_{t}"], [f"c_{t}", f"h_{t}"])]

    def output(self):
        if self.steps == 1:
            return [copy_of("h_1")]
        return [part("Concat", "y", [f"h_{t}" for t in self.times()], ["y"], axis=0)]


cdef class RNNLayer(RecurrentLayer):
    """``h_t = tanh(W_hh (cont_t h_(t-1)) + W_xh x_t + b_h [+ W_static static])``; the output is ``tanh(W_ho h_t + b_o)``.

    Blobs: W_xh [D, I], b_h [D], [W_static [D, S]], W_hh [D, D], W_ho [D, D], b_o [D]. State: h.
    """

    states = ("h",)

    def make_params(self, list bottom):
        RecurrentLayer.make_params(self, bottom)
        self.make_product(["o_transform"], self.size, self.size, True)

    def cell(self, int t):
        return [part("TanH", f"h_{t}", [f"gates_{t}"], [f"h_{t}"])]

    def output(self):
        return [part("Concat", "h", [f"h_{t}" for t in self.times()], ["h"], axis=0),
                product("o_transform", "h", self.size, axis=2, bias=True),
                part("TanH", "o", ["o_transform"], ["o"]), copy_of("o")]


def part(str type, str name, bottom, top, **fields):
    """Return a LayerParameter with `fields` in the type's own message."""
    layer = caffe_pb2.LayerParameter(type=type, name=name, bottom=bottom, top=top)
    for field, value in fields.items():
        setattr(getattr(layer, MESSAGES[type]), field, value)
    return layer


def product(str name, str bottom, num_output, int axis, bint bias=False):
    """Return an InnerProduct layer with a top of its own name."""
    return part("InnerProduct", name, [bottom], [name], num_output=num_output, bias_term=bias, axis=axis)


def copy_of(str bottom):
    """Return a layer that copies a blob to ``y``, so that what happens to the top does not touch the inner net."""
    return part("Tile", "y", [bottom], ["y"], tiles=1)


register_layer("LSTM", LSTMLayer)
register_layer("RNN", RNNLayer)
