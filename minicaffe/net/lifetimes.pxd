from minicaffe.blob cimport Blob
from minicaffe.net.node cimport Node

cdef class Lifetimes:
    cdef readonly unsigned long long stamp
    cdef bint stale             # a blob got another shape or memory in the middle of a run
    cdef list stamps            # of each node
    cdef list forward           # for each node the list of `Life` that end with its forward
    cdef list params            # for each node the memories of its parameters
    cdef readonly list learned  # for each node the learnable parameters, by number, whose gradients its backward completes
    cdef readonly list unlearned    # those of no node
    cdef list gradients         # `Life` of the gradient of each learnable parameter
    cdef object pool            # gives all blocks
    cdef list operations        # of each node's layer: they keep things for backward, which end with it
    cdef bint training
    cdef list nodes
    cdef bint settled           # all layers have the shapes of their blobs
    cdef dict joined            # for each blob that is joined with others: by which node, as which part, and the last node before that has it
    cdef list parts             # for each node None, or the operation and learnable parameter of a gradient that is used part by part
    cdef list backward          # the same with its backward
    cdef int unread(self, int index, Node node, int most) except -1
    cdef int begin_forward(self) except -1
    cdef int abandon_forward(self) except -1
    cdef list parts_of(self, int index, Node node, int most)
    cdef bint only_reader(self, int index, Blob blob) except -1
    cdef int end_forward(self, int index, Node node) except -1
    cdef int end_backward(self, int index, Node node) except -1
    cdef int let_go(self, int index) except -1
    cdef int end_update(self, list which) except -1
    cdef int end(self, list ends, int index, Node node) except -1

cdef list heads(list nodes)
cdef tuple completion(list nodes, list learnable, list head)
