"""What convolution and inner product by engine ONEDNN have in common: y = x w + b (onednn/weighted.hpp)."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.synced cimport UNINITIALIZED
from minicaffe.onednn.library cimport layout_of
from minicaffe.ops.engine cimport Operation, Primitive

from minicaffe.ops.engine import Refusal


cdef class OnednnWeighted(Primitive):
    """The gradient of the weights is in the layout of the weights, so that the solver's update can compute there."""

    cdef int see(self, Weighted* steps) except -1:
        """Compute by `steps`, which are made, and belong to the derived class."""
        self.steps = steps
        self.x, self.w, self.y = layout_of(steps.x), layout_of(steps.w, &steps.plain_w), layout_of(steps.y)

    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        cdef const void* w = weight.data_in(on, self.w)
        cdef object kept = weight.data_memory.private_side      # a net of another thread may want it in another layout
        cdef void* scratch = operation.scratch(on, (self.steps.forward_scratch() + 3) // 4)
        with nogil:
            self.steps.forward(x.data_in(on, self.x), w, bias.data_on(on) if bias is not None else NULL,
                               y.overwrite_data_in(on, self.y), scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        if not self.data_made:
            self.steps.make_backward_data()
            self.dx, self.dy = layout_of(self.steps.dx), layout_of(self.steps.dy)
            self.data_made = True
        cdef const void* w = weight.data_in(on, self.w)
        cdef object kept = weight.data_memory.private_side
        cdef void* scratch = operation.scratch(on, (self.steps.data_scratch() + 3) // 4)
        with nogil:
            self.steps.backward_data(w, y.diff_in(on, self.dy), x.overwrite_diff_in(on, self.dx), scratch)

    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob weight, Blob bias) except -1:
        if weight is None:
            raise Refusal("the gradient of a bias alone")
        if not self.params_made:
            self.steps.make_backward_weights()
            self.weights_x, self.weights_dy = layout_of(self.steps.weights_x), layout_of(self.steps.weights_dy)
            self.dw = layout_of(self.steps.gradient, &self.steps.plain_w)
            self.params_made = True
        cdef bint overwrite = self.steps.overwrites() and weight.diff_memory.head == UNINITIALIZED  # nothing to add to
        cdef void* dw = weight.overwrite_diff_in(on, self.dw) if overwrite else weight.mutable_diff_in(on, self.dw)
        cdef void* scratch = operation.scratch(on, (self.steps.weights_scratch() + 3) // 4)
        try:
            with nogil:
                self.steps.backward_weights(x.data_in(on, self.weights_x), y.diff_in(on, self.weights_dy), overwrite, dw,
                                            bias.mutable_diff_on(on) if bias is not None else NULL, scratch)
        except Exception:
            if overwrite:
                weight.fill_diff_on(on, 0)      # whoever computes instead adds to it
            raise
