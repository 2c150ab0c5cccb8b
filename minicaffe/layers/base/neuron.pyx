"""ActivationLayer: the base of layers that apply one element-wise function (Caffe neuron_layer.hpp).

In place works if the gradient can be computed from the top alone. If it needs the bottom, Caffe silently computes a wrong gradient
in place; here backward raises.
"""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.layer cimport DeviceLayer
from minicaffe.ops.activation.operation cimport Activation
from minicaffe.loops.strided.caffe cimport copy_typed

from minicaffe.errors import ConfigError
from minicaffe.engines.engine import saved_bottom


cdef class ActivationLayer(DeviceLayer):
    """One bottom, one top of the same shape, a function of ops/activation. The layer_setup of a type calls `set_function`."""

    exact_num_bottom_blobs = 1
    exact_num_top_blobs = 1
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
            Whether the gradient can read the top in place of the bottom, so that backward works in place.
        engine : int
            The layer's field `engine`; 0: DEFAULT.
        """
        self.op = Activation(self.dtype, engine)
        self.op.set_function(function, params, reads)
        self.reads_bottom = self.op.reads_x and not in_place

    @property
    def backward_reads_bottoms(self):       # False: a plan may recycle their data before backward
        return self.op.reads_x

    @property
    def backward_reads_tops(self):      # False: a plan may recycle their data before backward
        return self.op.reads_y

    def operations(self):       # a net chooses engines and fuses layers by them
        return [self.op]

    def scratch_blobs(self):        # freed by `Layer.release_memory`
        return [] if self.kept is None else [self.kept]

    cpdef reshape(self, list bottom, list top):
        (<Blob?> top[0]).reshape_like(<Blob?> bottom[0])
        if self.keeps_bottom and self.kept is None and top[0] is bottom[0]:
            self.kept = self.new_blob()     # in place: forward copies the bottom to it

    cdef int forward_on(self, const Context& on, list bottom, list top) except -1:
        cdef Blob x = bottom[0]
        self.deferred = False       # a schedule sets it after this forward, if a Concat computes the gradient
        if self.keeps_bottom and top[0] is x:
            self.kept.reshape_like(x)
            copy_typed(on, self.dtype, x.count, x.data_on(on), self.kept.mutable_data_on(on))
        return self.op.forward(on, x, top[0])

    cdef int backward_on(self, const Context& on, list top, list propagate_down, list bottom) except -1:
        if self.deferred:
            return 0    # the Concat has computed the bottom's diff
        self.op.saved_bottom = saved_bottom(self.kept, bottom[0]) if self.keeps_bottom and top[0] is bottom[0] else None
        if self.op.saved_bottom is None and self.reads_bottom and top[0] is bottom[0]:
            raise ConfigError(f"{self.type} cannot go backward in place, its gradient needs the bottom's values; give the top "
                              "a name of its own", field="top[0]")
        return self.op.backward(on, bottom[0], top[0])
