from minicaffe.net.lifetimes cimport Lifetimes
from minicaffe.net.lock cimport NetLock

cdef class Runner:
    cdef readonly list nodes
    cdef readonly object param_table
    cdef readonly list blob_list           # the tops of all nodes, in the order in which they were made
    cdef readonly list learnable_params
    cdef readonly NetLock lock             # held by the thread that runs or changes the net
    cdef public bint debug_info
    cdef int device             # the GPU that it ran on first, -1 if none
    cdef bint loss_at_once      # a loss is overwritten in place, so that it must be read when its layer has run
    cdef list param_counts      # of all parameters, as their layers made them
    cdef list computed          # all blobs but those that sources give, and the learnable parameters
    cdef list hooks
    cdef readonly str plan          # which of PLANS is asked for; None or empty: none
    cdef public bint recycles       # False: no memory is recycled now, as while a CUDA graph knows its addresses
    cdef set kept                   # blobs that are read after a run
    cdef bint training              # a run forward is followed by one backward
    cdef Lifetimes lifetimes        # None until they are needed
    cdef public object updater      # updater(which, part, last) takes the learnable parameters, by number, whose gradients are complete, and
                                    # returns those that it has used; None again when it has had all
    cdef public bint in_parts       # whether it takes parts of a large gradient
    cdef tuple complete_by          # the stamp and what `completion` returned, without lifetimes
    cdef list complete              # those of them that it has not had yet, and
    cdef long long waiting          # how many elements they have
    cdef bint whole(self, int start, int end) except -1
    cdef Lifetimes lifetimes_of(self, int start, int end)
    cdef int separate(self, int index) except -1
    cdef int check_range(self, int low, int high) except -1
    cdef int check_ready(self) except -1
    cdef double compute(self, bint sources, int start, int end) except? -1
    cdef double losses(self, int start, int end) except? -1
    cdef double loss_at(self, int index) except? -1
    cdef int tell(self, str kind, int index, str detail) except -1
    cpdef double forward_from_to(self, int start, int end) except? -1
    cpdef backward_from_to(self, int start, int end)
    cdef list backward_in_parts(self, int index, Lifetimes lifetimes)
    cdef int offer(self, Lifetimes lifetimes, list which, bint last=*) except -1
    cdef tuple completion(self, Lifetimes lifetimes)
