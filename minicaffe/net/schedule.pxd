from minicaffe.device.context cimport Context
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.step cimport FusedStep


cdef class Schedule:
    cdef readonly list nodes, forward, backward     # of Node; of FusedStep
    cdef readonly list without_gradient    # learnable parameters, by number, whose gradients no backward computes
    cdef readonly bint training     # a run forward is followed by one backward
    cdef readonly bint plan         # memories end with their last use
    cdef bint may_run_backward      # backward may follow: in a training, or at a program's request if there is no plan
    cdef list backward_starts       # for each node the number of the first node of the step that computes its backward
    cdef dict deferred_relus        # node number of a ReLU whose gradient a Concat computes -> that of the Concat
    cdef unsigned long long stamp   # of the net's shapes and memories, and what else it was compiled for:
    cdef unsigned epoch             # settings of engines
    cdef int threads, device        # number of CPU threads; GPU, -1: the CPU
    cdef bint outdated              # an engine refused a fused step: `Runner` compiles the net again
    cdef bint stale                 # a shape or a memory changed in the middle of the run: lifetimes are wrong, so no more is freed
    cdef list gradients             # with a plan: `Lifetime` of the gradient of each learnable parameter
    cdef object pool                # with a plan: the allocator of the memories that it frees, on the host
    cdef bint holds(self, unsigned long long stamp, const Context& on, bint plan) noexcept
    cdef bint check_unchanged(self, FusedStep step) noexcept
    cdef int finish_forward_step(self, FusedStep step) except -1
    cdef int finish_backward_step(self, FusedStep step) except -1
    cdef int free_after(self, FusedStep step, bint saved) except -1
    cdef int free_updated_gradients(self, list numbers) except -1
    cdef int invalidate_after_error(self, FusedStep failed) except -1
    cdef int drop_references(self) except -1
