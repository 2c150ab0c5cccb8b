from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.node cimport Node
from minicaffe.engines.engine cimport Operation
from minicaffe.engines.epilogue cimport Epilogue, ConcatSlice


cdef class Lifetime:
    cdef SyncedMemory memory
    cdef int blob_references        # blobs of the net that have it, counted twice where it is their data and diff
    cdef readonly int first, last   # positions in the iteration: forward of node i is i, backward of node i of n is 2 n - 1 - i
    cdef bint kept          # it is needed after the iteration, or others have it
    cdef bint written       # the first use overwrites it
    cdef void record_use(self, int position, bint writes=*) noexcept
    cdef bint shared_outside_net(self) noexcept
    cdef int free(self) except -1


cdef class Step:
    cdef readonly list nodes        # the first runs, the others are fused into it; all of them in the order of forward
    cdef readonly int first         # the number of nodes[0]
    cdef readonly bint fused_backward      # backward of the first computes that of all
    cdef readonly ConcatSlice part         # of a Concat's top, where the result may be written; or None
    cdef list operations            # of the nodes' layers; what they save for backward is freed with it
    cdef Operation operation        # gets an epilogue: the other nodes, the part; None: the first node runs alone
    cdef list unwritten               # of tops that are not written: `Lifetime`
    # (layer, ConcatSlice or None): the ReLUs among the nodes, and the part of a Concat that computes the gradient.
    cdef list deferring_layers
    cdef list frees                 # `Lifetime` whose last use this is
    cdef readonly list updates      # learnable parameters, by number, whose gradients are complete after it (backward)
    cdef object large               # of a backward: the number of one whose gradient is used part by part; or None
    cdef unsigned long long stamp   # of the nodes' shapes and memories
    cdef readonly bint ran_fused, wrote_part    # when forward ran last: the first node computed all; it wrote the part
    cdef readonly Layout layout     # of the first top after that forward; None: plain
    cdef bint forward(self, bint compiled, bint may_run_backward) except -1
    cdef bint compute(self, bint compiled, bint may_run_backward) except -1
    cdef int run_unfused(self, int start) except -1
    cdef Epilogue epilogue(self, bint may_run_backward)
    cdef int unfuse(self) except -1
    cdef unsigned long long present_stamp(self) noexcept


cdef class Schedule:
    cdef readonly list nodes, forward, backward     # of Node; of Step
    cdef readonly list without_gradient    # learnable parameters, by number, whose gradients no backward computes
    cdef readonly bint training     # a run forward is followed by one backward
    cdef readonly bint plan         # memories end with their last use
    cdef bint may_run_backward               # backward may follow
    cdef dict deferred_relus                  # as `find_deferred_relus` says
    cdef unsigned long long stamp   # of the net's shapes and memories, and what else it was compiled for:
    cdef unsigned epoch             # settings of engines
    cdef int threads, device
    cdef bint outdated              # an engine refused a fused step
    cdef bint stale                 # a shape or a memory changed in the middle of the run
    cdef list gradients             # `Lifetime` of the gradient of each learnable parameter
    cdef list plain_copies          # for each node the data of its parameters, whose plain copies engines may not need
    cdef object pool
    cdef bint holds(self, unsigned long long stamp, const Context& on, bint plan) noexcept
    cdef int run_forward(self, Step step) except -1
    cdef int finish_backward_step(self, Step step) except -1
    cdef int free_updated_gradients(self, list which) except -1
    cdef int end(self, Step step) except -1
    cdef int free_kept(self, Step step) except -1
    cdef int invalidate_after_error(self, Step failed) except -1
    cdef int expire(self) except -1
    cdef Step step_starting_at(self, int index)


cdef bint add_to_epilogue(Epilogue epilogue, Node node, bint may_run_backward) except -1
