from minicaffe.blob cimport Blob, Dtype
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout

cdef int refuse() except -1
cdef unsigned current_epoch() noexcept


cdef class Primitive:
    cdef readonly str engine
    cdef bint plain                     # it computes by the formulas (ops/*/plain.hpp)
    cdef readonly bint fuses            # forward computes epilogues (engines/epilogue.pyx)
    cdef readonly bint fuses_sum        # ... also with an addend
    cdef bint has_backward_both         # backward_both takes less time than backward and backward_params
    cdef int forward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1
    cdef int backward(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1
    cdef int backward_params(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1
    cdef int backward_both(self, const Context& on, Operation operation, Blob bottom, Blob top, Blob weight, Blob bias) except -1


cdef class Operation:
    cdef readonly Dtype dtype
    cdef readonly int engine            # the layer's field: DEFAULT or an engine's
    cdef Primitive forward_impl, backward_impl, weights_impl   # the primitives of forward, backward and backward_params
    cdef Primitive forward_done_by                  # the primitive of the last forward
    cdef bint saves_for_backward        # backward needs data that the primitive stored in forward
    cdef bint depends_on_layout                 # the choice of engines depends on the layout of the bottom
    cdef Layout layout                  # this layout
    cdef object epilogue                # an Epilogue for the next forward; set to None by a primitive that computes it
    cdef dict refusals                  # engine -> reason
    cdef unsigned epoch                 # of the settings; with the members below the inputs of the last choice of engines
    cdef int threads
    cdef bint device, empty
    cdef Blob memory                    # scratch
    cdef Blob kept                      # data of forward for backward
    cdef object consumer                # gets the weights' gradient part by part; set to None by a primitive that calls it
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
