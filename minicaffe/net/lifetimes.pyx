"""Lifetimes: when the memories of a net's blobs are needed, so that those which are never needed at once share memory.

In a training step forward runs all nodes, then backward those that need it, in reverse. A memory lives from the node that writes
it first to the last one that reads or writes it; then its blocks go back to a pool, from which later memories take theirs. Blobs
that share a memory (Split, in place, Reshape) are told by its identity. A memory that is read too late raises
(`SyncedMemory.recycle`), so that a lifetime which was found too short gives no wrong numbers.
"""

from cpython.object cimport PyObject

from minicaffe.blob cimport Blob
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.node cimport CARRIED, Node
from minicaffe.ops.engine cimport Operation
from minicaffe.ops.epilogue cimport Part

from collections import Counter

from minicaffe.memory.registry import registry
from minicaffe.net.node import unchanged

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* o)

cdef enum:
    LARGE = 1 << 20     # elements: gradients from here on are used part by part where that can be


cdef class Life:
    """A memory of blobs of a net, and where in a step it is needed."""
    cdef SyncedMemory memory
    cdef int holders        # blobs of the net that have it, counted twice where it is their data and diff
    cdef int last           # position in the step
    cdef list followers     # nodes whose backward reads it, unless one that does not read it carries them
    cdef int unless         # where in the step that is; -1: nowhere
    cdef bint kept          # it is needed after the step, or others have it
    cdef bint written       # a node of the step overwrites it before it is read

    def __init__(self, SyncedMemory memory not None):
        self.memory, self.followers, self.unless = memory, [], -1

    cdef void touch(self, int position, bint writes=False) noexcept:
        """See the memory used at a position, the first to write it among them."""
        self.written |= writes and self.last < 0
        self.last = position

    cdef bint awaited(self) except -1:
        """Whether followers that now run backward by themselves will read it."""
        cdef Node node
        for node in self.followers:
            if node.ran != CARRIED:
                return True
        return False

    cdef bint others_hold(self) noexcept:
        """Whether somebody took the memory for a blob outside of the net, such as a layer for a net inside: he reads it at any time."""
        return Py_REFCNT(<PyObject*> self.memory) > self.holders + 1

    cdef int end(self) except -1:
        if not self.others_hold():
            self.memory.recycle()


cdef Life life_of(dict lives, SyncedMemory memory):
    """The life of a memory among those by its id; a new one if it is the first to ask."""
    # Functions inside of Lifetimes.__init__ that call each other would be a cycle, which keeps memory until the collector comes.
    if id(memory) not in lives:
        lives[id(memory)] = Life(memory)
    return lives[id(memory)]


cdef list heads(list nodes):
    """For each node the first that may compute its backward: itself, or one before that it follows."""
    cdef Node node
    head = list(range(len(nodes)))
    for i, node in enumerate(nodes):
        in_place = node.bottoms == node.tops
        for operation in node.layer.operations():
            if operation.carries if in_place else operation.carries_own_top:
                for follower in range(i + 1, i + 1 + len(node.followers)):
                    head[follower] = min(head[follower], i)
    return head


cdef tuple completion(list nodes, list learnable, list head):
    """For each node the list of the learnable parameters, by number, whose gradients its backward completes; those of no node.

    Neither are their data read afterwards.
    """
    last = {}       # by the id of a parameter's memory: the node whose backward uses it last, adds to a gradient or reads data
    for i in reversed(range(len(nodes))):
        if nodes[i].needs_backward:
            last.update((id(memory), head[i]) for blob in nodes[i].blobs for memory in (blob.data_memory, blob.diff_memory))
    learned, unlearned = [[] for _ in nodes], []
    for i, blob in enumerate(learnable):
        if id(blob.diff_memory) in last:
            learned[min(last[id(blob.diff_memory)], last.get(id(blob.data_memory), len(nodes)))].append(i)
        else:
            unlearned.append(i)
    return learned, unlearned


cdef class Lifetimes:
    """When the memories of a net's blobs end.

    Parameters
    ----------
    nodes : list of Node
    kept : collection of Blob
        What is read after the step: data and diff of these.
    params, learnable : list of Blob
        All parameters, of which no blob's memory may end that has theirs, and those that are learned.
    training : bool
        Backward follows.
    stamp : int
        Of the net; other lifetimes are needed when it has another one.
    """

    def __init__(self, list nodes not None, kept, list params, list learnable, bint training, stamp):
        cdef Node node
        cdef Blob blob
        cdef Life life
        cdef int i, count = len(nodes)
        self.stamp, self.training = stamp, training
        self.operations = [(<Node> node).layer.operations() for node in nodes]
        self.stamps = [(<Node> node).stamp() for node in nodes]
        self.forward, self.backward = [[] for _ in nodes], [[] for _ in nodes]
        self.params = [[blob.data_memory for blob in node.blobs] for node in nodes]
        cdef dict lives = {}    # by the memory's id
        blobs = {blob for node in nodes for blob in [*node.bottoms, *node.tops]}
        for blob in blobs:
            for memory in (blob.data_memory, blob.diff_memory):
                life = life_of(lives, memory)
                life.holders += 1
                life.last = -1
        for blob in [*kept, *params]:
            for memory in (blob.data_memory, blob.diff_memory):
                life = life_of(lives, memory)
                life.kept = True
        self.nodes, self.joined = nodes, {}
        fixed = True            # shapes do not depend on values
        for i, node in enumerate(nodes):
            fixed = fixed and not node.layer.always_reshape
            if fixed and unchanged(node.layer) and node.layer.parts and life_of(lives, node.tops[0].data_memory).last < 0:
                for j in range(len(node.layer.parts)):
                    blob = node.bottoms[j]
                    self.joined[blob] = i, j, life_of(lives, blob.data_memory).last
            for blob in node.bottoms:
                life_of(lives, blob.data_memory).touch(i)
            for blob in node.tops:
                life_of(lives, blob.data_memory).touch(i, True)
        head = heads(nodes)
        for i in reversed(range(count)) if training else ():
            node = nodes[i]
            if not node.needs_backward:
                continue
            for blob in node.tops:
                life_of(lives, blob.diff_memory).touch(2 * count - 1 - i)
            for blob, needed in zip(node.bottoms, node.bottom_needs):
                if needed:
                    life_of(lives, blob.diff_memory).touch(2 * count - 1 - i, True)
            for blob in (*(node.bottoms if node.layer.backward_reads_bottoms else ()),
                         *(node.tops if node.layer.backward_reads_tops else ())):
                life = life_of(lives, blob.data_memory)
                if head[i] != i and nodes[head[i]].bottoms == nodes[head[i]].tops:    # such a one reads what it kept, and none of their data
                    life.unless = 2 * count - 1 - head[i]
                    life.followers.append(node)
                else:
                    life.touch(2 * count - 1 - head[i])
        self.pool = registry.host_pool()
        self.learned, self.unlearned = completion(nodes, learnable, head)
        users = Counter(id(memory) for node in nodes for blob in node.blobs for memory in (blob.data_memory, blob.diff_memory))
        self.parts = [None] * count
        for node, operations, which, i in zip(nodes, self.operations, self.learned, range(count)):
            for j in which:
                blob = learnable[j]
                if blob.count >= LARGE and node.blobs and blob is node.blobs[0] and unchanged(node.layer) \
                        and users[id(blob.data_memory)] == users[id(blob.diff_memory)] == 1 \
                        and len(operations) == 1 and operations[0].learns_in_parts:     # of several, backward may read it later
                    self.parts[i] = operations[0], j
        for blob in params:
            life = life_of(lives, blob.diff_memory)
            life.holders += 1
        self.gradients = [life_of(lives, blob.diff_memory) for blob in learnable]
        # A user's layer may write only a part of an array.
        partly = {id(memory) for node in nodes if not unchanged(node.layer)
                  for memory in (*(blob.data_memory for blob in node.tops), *(blob.diff_memory for blob in node.bottoms))}
        for life in lives.values():
            if not life.kept and life.written and life.memory.size:
                life.memory.pool, life.memory.overwritten = self.pool, id(life.memory) not in partly
                last = max(life.last, life.unless)
                if life.last < count:
                    self.forward[life.last].append(life)
                if last >= count:
                    self.backward[2 * count - 1 - last].append(life)

    cdef int unread(self, int index, Node node, int most) except -1:
        """How many followers of node `index`, `most` at most, may be computed along with it: nobody else will read what lies between."""
        cdef Node before = node, follower
        cdef int i
        for i in range(most):
            follower = node.followers[i]
            if follower.bottoms != follower.tops and (self.training or not self.only_reader(index + i + 1, before.tops[0])):
                return i
            before = follower
        return most

    cdef int begin_forward(self) except -1:
        """See whether the shapes are there in which parts are written: a Concat gets its own after the layers before it."""
        cdef Node node
        self.settled = bool(self.joined)
        for node in self.nodes if self.settled else ():
            if node.layer.seen != node.stamp():
                self.settled = False
                break

    cdef int abandon_forward(self) except -1:
        """After an error nobody is to take a part for written, nor to read a whole whose other parts were not."""
        cdef Part part
        for index, j, _ in self.joined.values():
            part = (<Node> self.nodes[index]).layer.parts[j]
            if part.take() and part.whole.data_memory.overwritten:
                part.whole.data_memory.recycle()

    cdef list parts_of(self, int index, Node node, int most):
        """For node `index` and each of `most` followers the Part of another blob as which its top may be written, or None; None if there is none.

        Nobody else will read that top.
        """
        cdef Node last
        cdef list found = []
        cdef int i
        if not self.settled or not node.moves:
            return None
        for i, last in enumerate([node, *node.followers[:most]]):
            place = self.joined.get(last.tops[0])
            if place is not None and place[2] == index + i and self.only_reader(place[0], last.tops[0]):
                found.append((<Node> self.nodes[place[0]]).layer.parts[place[1]])
            else:
                found.append(None)
        return found if any(found) else None

    cdef bint only_reader(self, int index, Blob blob) except -1:
        """Whether nobody but node `index`, forward, will read these data, so that they need not be there if it can do without."""
        cdef Life life
        if self.stale or blob.data_memory.shown():
            return False
        for life in <list> self.forward[index]:
            if life.memory is blob.data_memory:
                return not life.followers and not life.others_hold()
        return False

    cdef int end_forward(self, int index, Node node) except -1:
        """Recycle what was needed last by the forward of a node, and plain copies of parameters that engines keep otherwise."""
        cdef SyncedMemory memory
        for memory in <list> self.params[index]:
            memory.drop_plain()
        if not self.training:
            self.let_go(index)
        return self.end(self.forward, index, node)

    cdef int end_backward(self, int index, Node node) except -1:
        """Recycle what was needed last by the backward of a node."""
        self.let_go(index)
        return self.end(self.backward, index, node)

    cdef int let_go(self, int index) except -1:
        cdef Operation operation
        for operation in <list> self.operations[index]:
            operation.let_go()

    cdef int end_update(self, list which) except -1:
        """Recycle the gradients of these learnable parameters; who adds to one next finds zeros."""
        cdef Life life
        for i in which:
            life = self.gradients[i]
            life.end()
            life.memory.pool = self.pool

    cdef int end(self, list ends, int index, Node node) except -1:
        self.stale = self.stale or node.stamp() != <unsigned long long> self.stamps[index]
        if not self.stale:
            for life in <list> ends[index]:
                if ends is not self.forward or not (<Life> life).awaited():
                    (<Life> life).end()
