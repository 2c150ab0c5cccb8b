from minicaffe.blob cimport Blob, Dtype
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.ops.epilogue cimport Epilogue

cdef int refuse() except -1
cdef unsigned current_epoch() noexcept


cdef class Primitive:
    cdef readonly str engine
    cdef readonly bint fuses            # forward computes epilogues (ops/epilogue.pyx)
    cdef readonly bint adds             # ... also with an addend
    cdef bint both                      # there is a backward_both, which takes less time than the two one after the other
    cdef int forward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1
    cdef int backward(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1
    cdef int backward_params(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1
    cdef int backward_both(self, const Context& on, Operation operation, Blob x, Blob y, Blob p, Blob q) except -1


cdef class Operation:
    cdef readonly Dtype dtype
    cdef readonly int engine            # the layer's field: DEFAULT or an engine's
    cdef Primitive forth, back, learn   # who computes forward, backward and backward_params
    cdef Primitive ran                  # who computed forward last
    cdef bint keeps                     # backward needs what the primitive kept of forward
    cdef bint by_layout                 # engines answer for the layout in which the bottom is
    cdef Layout layout                  # which is this
    cdef Epilogue epilogue              # for the next forward; who computes it, too, takes it away
    cdef dict refusals                  # engine -> reason
    cdef unsigned epoch                 # of the settings, and what else the engines were asked for
    cdef int threads
    cdef bint device, empty
    cdef Blob memory                    # scratch
    cdef Blob kept                      # what forward leaves for backward
    cdef object consumer                # takes the gradient of p part by part; who gives it so takes this away
    cdef int changed(self) except -1
    cdef bint fuses(self, const Context& on, Blob x, Blob y) except -1
    cdef bint has_engines(self)
    cdef bint adds(self) noexcept
    cdef int choose(self, const Context& on, Blob x) except -1
    cdef int forward(self, const Context& on, Blob x, Blob y, Blob p=*, Blob q=*) except -1
    cdef int backward(self, const Context& on, Blob x, Blob y, Blob p=*, Blob q=*) except -1
    cdef int backward_params(self, const Context& on, Blob x, Blob y, Blob p, Blob q=*) except -1
    cdef int backward_both(self, const Context& on, Blob x, Blob y, Blob p, Blob q) except -1
    cdef int ask(self, const Context& on, Blob x) except -1
    cdef void* scratch(self, const Context& on, long long count) except? NULL
    cdef Blob keep(self, shape)
    cdef int let_go(self) except -1
