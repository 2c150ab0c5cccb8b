from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.node cimport Node


cdef class Lifetime:
    cdef SyncedMemory memory
    cdef int blob_references        # blobs of the net that have it, counted twice where it is their data and diff
    cdef list uses                  # positions in the iteration: forward of node i is i, backward of node i of n is 2 n - 1 - i
    cdef bint kept          # no step frees it: needed after the iteration, or a user's layer may rely on its old values
    cdef bint written       # the first use overwrites it whole
    cdef int record_use(self, int position, bint writes=*) except -1
    cdef bint shared_outside_net(self) noexcept
    cdef int last(self, int ignored=*) noexcept
    cdef int free(self) except -1


cdef dict find_lifetimes(list nodes, pinned, list params, bint training)
cdef int shorten_lifetimes(dict lifetimes, list nodes, list backward_starts, dict deferred_relus) except -1
cdef list backward_reads(Node node)
