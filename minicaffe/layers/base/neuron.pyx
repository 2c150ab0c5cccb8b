"""NeuronLayer: the base of layers that apply one element-wise function (Caffe neuron_layer.hpp).

In place works if the gradient can be computed from the top alone. If it needs the bottom, Caffe silently computes a wrong gradient
in place; here backward raises.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer, Layer
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.activation.operation cimport Activation
from minicaffe.ops.broadcast.caffe cimport copy_typed
from minicaffe.engines.epilogue cimport ConcatSlice
from minicaffe.engines.layouts cimport zero_padding, data_layout, diff_layout, in_lanes, stored

from minicaffe.errors import ConfigError, Error
from minicaffe.layers.base.checks import saved_bottom


cdef class NeuronLayer(DeviceLayer):
    """One bottom, one top of the same shape. A type defines `compute`, and `gradient` if it has one; if
    that reads x, its layer_setup sets `reads_bottom`."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1

    cdef int compute(self, const Context& on, long long n, const void* x, void* y) except -1 nogil:
        """Compute the top's n elements y from the bottom's x."""
        with gil:
            raise Error(f"layer type {self.type} does not define compute")

    cdef int gradient(self, const Context& on, long long n, const void* x, const void* y, const void* dy, void* dx) except -1 nogil:
        """Compute the bottom's gradient dx from the top's, dy, and from x or y."""
        with gil:
            Layer.backward_cpu(self, [], [], [])    # raises: no gradient

    cdef int check_in_place(self, list bottom, list top) except -1:
        """Raise where the gradient needs what an in-place forward has overwritten."""
        if self.reads_bottom and top[0] is bottom[0]:
            raise ConfigError(f"{self.type} cannot go backward in place, its gradient needs the bottom's values; give the top "
                              "a name of its own", field="top[0]")

    cpdef reshape(self, list bottom, list top):
        (<Blob?> top[0]).reshape_like(<Blob?> bottom[0])

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob bottom_blob = bottom[0], top_blob = top[0]
        cdef Layout layout = in_lanes(data_layout(on, bottom))
        cdef const void* x = bottom_blob.data_in_layout(on, layout)
        cdef void* y = top_blob.overwrite_data_in_layout(on, layout)
        cdef long long count = stored(layout, bottom_blob)
        with nogil:
            self.compute(on, count, x, y)
        zero_padding(layout, top_blob, y)

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0]:
            return 0
        self.check_in_place(bottom, top)
        cdef Blob bottom_blob = bottom[0], top_blob = top[0]
        cdef Layout layout = in_lanes(diff_layout(on, top) or data_layout(on, top))
        cdef const void* x = bottom_blob.data_in_layout(on, layout)
        cdef const void* y = top_blob.data_in_layout(on, layout)
        cdef const void* dy = top_blob.diff_in_layout(on, layout)
        cdef void* dx = bottom_blob.overwrite_diff_in_layout(on, layout)
        cdef long long count = stored(layout, bottom_blob)
        with nogil:
            self.gradient(on, count, x, y, dy, dx)
        zero_padding(layout, bottom_blob, dx)


cdef class ActivationLayer(NeuronLayer):
    """A layer whose function is one of ops/activation. The layer_setup of a type calls `set_function`."""

    keeps_bottom = False        # whether it copies a bottom that it overwrites and whose values its gradient needs

    def set_function(self, function, params=(), str reads="x", bint in_place=False, int engine=0):
        """Apply `function`.

        Parameters
        ----------
        function : minicaffe.ops.activation.operation.Function
        params : sequence of float
            Its parameters, in the order of the members of its functor.
        reads : str
            What its gradient reads besides the top's diff: "x", the bottom, "y", the top, "xy" or "".
        in_place : bool
            Whether the gradient can read the top in place of the bottom.
        engine : int
            The layer's field.
        """
        self.op = Activation(self.dtype, engine)
        self.op.set_function(function, params, reads)
        self.reads_bottom = self.op.reads_x and not in_place

    @property
    def backward_reads_bottoms(self):
        return self.op.reads_x

    @property
    def backward_reads_tops(self):
        return self.op.reads_y

    def operations(self):
        return [self.op]

    def scratch_blobs(self):
        return [] if self.kept is None else [self.kept]

    cpdef defer_gradient(self, ConcatSlice part):
        """The Concat of `part`, which is the top, computes the gradient until the next forward; None: this layer does."""
        if self.part is not None:
            self.part.computes_relu_gradient = False
        self.part = part
        if part is not None:
            part.computes_relu_gradient = True

    cpdef reshape(self, list bottom, list top):
        NeuronLayer.reshape(self, bottom, top)
        if self.keeps_bottom and self.kept is None and top[0] is bottom[0]:
            self.kept = self.new_blob()

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0]
        self.defer_gradient(None)
        if self.keeps_bottom and top[0] is x:
            self.kept.reshape_like(x)
            copy_typed(on, self.dtype, x.count, x.data_on(on), self.kept.mutable_data_on(on))
        return self.op.forward(on, x, top[0])

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if not propagate_down[0] or self.part is not None:
            return 0
        if self.keeps_bottom and top[0] is bottom[0]:
            return self.op.backward(on, bottom[0], top[0], saved_bottom(self.kept, bottom[0]))
        self.check_in_place(bottom, top)
        return self.op.backward(on, bottom[0], top[0])
