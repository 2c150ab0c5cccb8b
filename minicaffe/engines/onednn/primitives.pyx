"""Common code of engine ONEDNN's operations: convolution and inner product; pooling and LRN.

Passes override those of Primitive (engines/engine.pyx). `steps`, of C++, raise Refusal; their scratch memory is in bytes, that of
`Operation.scratch` in floats. A ``*_in_layout`` of a blob converts it to the layout first; None: plain order.
"""

from minicaffe.engines.onednn.library cimport layout_of
from minicaffe.memory.states cimport UNINITIALIZED

from minicaffe.engines.engine import Refusal


cdef class OnednnWeightsPrimitive(Primitive):
    """y = x w + b. The gradient of the weights is in the layout of the weights, so that the solver's update can use that layout."""

    cdef int bind_primitives(self, Weighted* steps) except -1:
        """Store `steps`, of which forward is made: a derived class calls it in its ``__cinit__``."""
        self.steps = steps
        self.bottom_layout, self.top_layout = layout_of(steps.x), layout_of(steps.y)
        self.weight_layout = layout_of(steps.w, &steps.plain_w)

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef const void* w = weight.data_in_layout(on, self.weight_layout)
        cdef object _kept = weight.data_memory.private_side      # keeps `w` alive: a net of another thread may change the layout
        cdef void* scratch = operation.scratch(on, (self.steps.forward_scratch() + 3) // 4)
        with nogil:
            self.steps.forward(bottom.data_in_layout(on, self.bottom_layout), w, bias.data_on(on) if bias is not None else NULL,
                               top.overwrite_data_in_layout(on, self.top_layout), scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        if not self.data_made:
            self.steps.make_backward_data()
            self.dx, self.dy = layout_of(self.steps.dx), layout_of(self.steps.dy)
            self.data_made = True
        cdef bint plain = self.steps.data_reads_plain()
        cdef const void* w = weight.data_on(on) if plain else weight.data_in_layout(on, self.weight_layout)
        cdef object _kept = weight.data_memory.host if plain else weight.data_memory.private_side
        cdef void* scratch = operation.scratch(on, (self.steps.data_scratch() + 3) // 4)
        with nogil:
            self.steps.backward_data(w, top.diff_in_layout(on, self.dy), bottom.overwrite_diff_in_layout(on, self.dx), scratch)

    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        if weight is None:
            raise Refusal("the gradient of a bias alone")
        if not self.params_made or self.biased != (bias is not None):
            self.biased = bias is not None
            self.steps.make_backward_weights(self.biased)
            self.weights_x, self.weights_dy = layout_of(self.steps.weights_x), layout_of(self.steps.weights_dy)
            self.dw = layout_of(self.steps.gradient, &self.steps.plain_w)
            self.params_made = True
        cdef bint overwrite = self.steps.overwrites() and weight.diff_memory.head == UNINITIALIZED  # nothing to add to
        cdef void* dw = weight.overwrite_diff_in_layout(on, self.dw) if overwrite else weight.mutable_diff_in_layout(on, self.dw)
        cdef void* scratch = operation.scratch(on, (self.steps.weights_scratch() + 3) // 4)
        try:
            with nogil:
                self.steps.backward_weights(on.threads, bottom.data_in_layout(on, self.weights_x),
                                            top.diff_in_layout(on, self.weights_dy), overwrite, dw,
                                            bias.mutable_diff_on(on) if bias is not None else NULL, scratch)
        except Exception:
            if overwrite:
                weight.fill_diff_on(on, 0)      # the next engine adds to it
            raise


cdef class OnednnWorkspacePrimitive(Primitive):
    """Pooling or LRN, with `steps` by a function ``make`` (ops/*/engine_onednn.pyx); forward keeps a workspace for backward."""

    cdef int set_layouts(self) except -1:
        """Set the layouts, and the size of the workspace: ``make`` calls it at its end."""
        self.bottom_layout, self.top_layout = layout_of(self.steps.x), layout_of(self.steps.y)
        self.workspace = (self.steps.workspace() + 3) // 4

    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        cdef Blob kept = operation.keep((self.workspace,))
        cdef void* scratch = operation.scratch(on, (self.steps.forward_scratch() + 3) // 4)
        with nogil:
            self.steps.forward(bottom.data_in_layout(on, self.bottom_layout), top.overwrite_data_in_layout(on, self.top_layout),
                               kept.mutable_data_on(on) if self.workspace else NULL, scratch)

    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1:
        self.steps.make_backward()
        cdef void* scratch = operation.scratch(on, (self.steps.backward_scratch() + 3) // 4)
        with nogil:
            self.steps.backward(top.diff_in_layout(on, self.top_layout), bottom.overwrite_diff_in_layout(on, self.bottom_layout),
                                operation.kept.data_on(on) if self.workspace else NULL,
                                bottom.data_in_layout(on, self.bottom_layout) if self.steps.backward_reads_x else NULL, scratch)
