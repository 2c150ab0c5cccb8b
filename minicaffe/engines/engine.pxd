from minicaffe.blob cimport Blob, Dtype
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout

cdef int refuse() except -1
cdef unsigned current_epoch() noexcept


cdef class Primitive:
    cdef readonly str engine            # the engine's name
    cdef bint plain                     # it computes by the formulas (ops/*/plain.hpp)
    cdef readonly bint fuses            # forward computes `Operation.epilogue`; set to False by a forward that could not
    cdef readonly bint fuses_sum        # ... also with an addend
    cdef bint has_backward_both         # backward_both takes less time than backward and backward_params
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1
    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1
    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1
    cdef int backward_both(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1


cdef class Operation:
    cdef readonly Dtype dtype           # of all blobs
    cdef readonly int engine            # the layer's field `engine`: DEFAULT or an engine's `layer_field`
    cdef Primitive forward_impl, backward_impl, weights_impl   # of forward, backward, backward_params; forward's None: choose
    cdef Primitive forward_done_by      # the primitive of the last forward; None: no forward since `release`
    cdef bint saves_for_backward        # backward needs data that the same primitive stored in forward (pooling, LRN)
    cdef bint depends_on_layout         # the choice of engines depends on the layout of the bottom (pooling, LRN)
    cdef Layout layout                  # this layout at the last choice; None: plain
    cdef object epilogue                # an Epilogue from net/step.pyx for one forward; set to None by a primitive that computes it
    cdef dict refusals                  # name of an engine -> why it does not compute this, since the last choice
    cdef unsigned epoch                 # `settings_epoch` at the last choice of engines, which depends on the next two lines, too
    cdef int threads
    cdef bint device, empty             # whether primitives are for a device, not the CPU; whether the bottom has no elements
    cdef Blob memory                    # scratch; None before the first use
    cdef Blob kept                      # data of forward for backward, see `keep`; None before the first use
    cdef object consumer                # called with each part of the weight's gradient, (blob, first element, count); or None
    cdef int changed(self) except -1
    cdef bint fuses(self, const Context& on, Blob bottom, Blob top) except -1
    cdef bint has_engines(self)
    cdef bint fuses_sum(self) noexcept
    cdef int choose(self, const Context& on, Blob bottom) except -1
    cdef int forward(self, const Context& on, Blob bottom, Blob top, Blob weight=*, Blob bias=*) except -1
    cdef int backward(self, const Context& on, Blob bottom, Blob top, Blob weight=*, Blob bias=*) except -1
    cdef int backward_params(self, const Context& on, Blob bottom, Blob top, Blob weight, Blob bias=*) except -1
    cdef int backward_both(self, const Context& on, Blob bottom, Blob top, Blob weight, Blob bias) except -1
    cdef int choose_engines(self, const Context& on, Blob bottom) except -1
    cdef void* scratch(self, const Context& on, long long count) except? NULL
    cdef Blob keep(self, shape)
    cdef int free_kept(self) except -1
