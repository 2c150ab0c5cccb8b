"""Lifetimes of the memories of a net: from the step of an iteration that writes one first to the last one that uses it.

In an iteration forward runs all nodes, then backward those that need it, in reverse. Blobs that share a memory (Split, in place,
Reshape) have one lifetime.
"""

from minicaffe.blob cimport Blob
from minicaffe.memory.synced cimport Py_REFCNT, PyObject

from minicaffe.net.node import overwrites_outputs


cdef class Lifetime:
    """A memory of blobs of a net, and where in an iteration it is used."""

    def __init__(self, SyncedMemory memory not None):
        self.memory, self.uses = memory, []

    cdef int record_use(self, int position, bint writes=False) except -1:
        """Record a use of the memory; positions ascend. `writes`: it overwrites the memory, which counts for the first use only."""
        if not self.uses:
            self.written = writes
        self.uses.append(position)

    cdef int last(self, int ignored=-1) noexcept:
        """Return the position of the last use, except those at `ignored`; -1: none."""
        cdef int position, last = -1
        for position in self.uses:
            if position != ignored and position > last:
                last = position
        return last

    cdef bint shared_outside_net(self) noexcept:
        """Return whether a blob outside the net shares the memory, such as one of a layer inside a layer: it may read any time."""
        return Py_REFCNT(<PyObject*> self.memory) > self.blob_references + 1     # this Lifetime has it, too

    cdef int free(self) except -1:
        """Return the blocks to their pool, for later memories, unless a blob outside the net may read them."""
        if not self.shared_outside_net():
            self.memory.recycle()


cdef Lifetime lifetime_of(dict lifetimes, SyncedMemory memory):
    """Return the lifetime of a memory from a dict by the memory's id; add a new one if it has none."""
    if id(memory) not in lifetimes:
        lifetimes[id(memory)] = Lifetime(memory)
    return lifetimes[id(memory)]


cdef dict find_lifetimes(list nodes, pinned, list params, bint training):
    """Return the lifetimes of the memories of all blobs by the memory's id, for layers that run one by one.

    `pinned` has the blobs that are read after the iteration. `training`: the iteration has a backward.
    """
    cdef Node node
    cdef Blob blob
    cdef SyncedMemory memory
    cdef Lifetime lifetime
    cdef int i, position, count = len(nodes)
    cdef dict lifetimes = {}
    for blob in dict.fromkeys([blob for node in nodes for blob in [*node.bottoms, *node.tops]]):     # in the order of the listing
        for memory in (blob.data_memory, blob.diff_memory):
            lifetime = lifetime_of(lifetimes, memory)
            lifetime.blob_references += 1
    for blob in [*pinned, *params]:
        for memory in (blob.data_memory, blob.diff_memory):
            lifetime_of(lifetimes, memory).kept = True
    for node in nodes:
        # A user's layer may write a part of an array, and read what it wrote before.
        if not overwrites_outputs(node.layer):
            for memory in (*[blob.data_memory for blob in node.tops], *[blob.diff_memory for blob in node.bottoms]):
                lifetime_of(lifetimes, memory).kept = True
    for i, node in enumerate(nodes):
        for blob in node.bottoms:
            lifetime_of(lifetimes, blob.data_memory).record_use(i)
        for blob in node.tops:
            lifetime_of(lifetimes, blob.data_memory).record_use(i, True)
    for position, node in enumerate(reversed(nodes), count) if training else ():
        if node.needs_backward:
            for blob in node.tops:
                lifetime_of(lifetimes, blob.diff_memory).record_use(position)
            for blob, needed in zip(node.bottoms, node.bottom_needs):
                if needed:
                    lifetime_of(lifetimes, blob.diff_memory).record_use(position, True)
            for memory in backward_reads(node):
                lifetime_of(lifetimes, memory).record_use(position)
    for blob in params:     # whose gradients are freed after an update, although `kept`
        lifetime = lifetime_of(lifetimes, blob.diff_memory)
        lifetime.blob_references += 1
    return lifetimes


cdef list backward_reads(Node node):
    """Return the memories of the data that the backward of a node reads."""
    return [(<Blob> blob).data_memory for blob in [*(node.bottoms if node.layer.backward_reads_bottoms else ()),
                                                   *(node.tops if node.layer.backward_reads_tops else ())]]


cdef int shorten_lifetimes(dict lifetimes, list nodes, list backward_starts, dict deferred_relus) except -1:
    """Change lifetimes of a training to those of fused steps: backward reads less, and memories are freed earlier.

    `backward_starts` has for each node the first node of the step that computes its backward, which has kept what it needs.
    `deferred_relus` has by number the ReLUs whose backward does nothing, and the Concat that computes it from its own top.
    """
    cdef Node node
    cdef int i, count = len(nodes)
    for i, node in enumerate(nodes):
        if node.needs_backward and (backward_starts[i] != i or i in deferred_relus):
            for memory in backward_reads(node):
                (<Lifetime> lifetimes[id(memory)]).uses.remove(2 * count - 1 - i)
    for i in set(deferred_relus.values()):
        node = nodes[i]
        (<Lifetime> lifetimes[id((<Blob> node.tops[0]).data_memory)]).uses.append(2 * count - 1 - i)
