"""Schedule: what a net does in an iteration, step by step, decided before it runs (compile.pyx).

Runs, frees, updates, the exchange with other processes and the printed table follow it. In an iteration forward runs all nodes,
then backward those that need it, in reverse. The lifetime of a memory is from the step that writes it first to the last one that
reads or writes it; then its blocks return to a pool for later memories. Blobs that share a memory (Split, in place, Reshape) have
one lifetime. Reading a freed memory raises (`SyncedMemory.recycle`), so that a lifetime that is too short by mistake gives no wrong
numbers.
"""

from cpython.object cimport PyObject

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.engines.engine cimport Operation, current_epoch
from minicaffe.engines.epilogue cimport Epilogue
from minicaffe.memory.states cimport RECYCLED
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.node cimport Node

from minicaffe.errors import Error

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* o)

cdef class Lifetime:
    """A memory of blobs of a net, and where in an iteration it is needed."""

    def __init__(self, SyncedMemory memory not None):
        self.memory, self.first, self.last = memory, -1, -1

    cdef void record_use(self, int position, bint writes=False) noexcept:
        """Record a use of the memory at a position; the first use may overwrite it."""
        if self.last < 0:
            self.first, self.written = position, writes
        self.last = position

    cdef bint shared_outside_net(self) noexcept:
        """Whether a blob outside the net shares the memory, such as one of a layer inside a layer, and may read it at any time."""
        return Py_REFCNT(<PyObject*> self.memory) > self.blob_references + 1     # this Lifetime has it, too

    cdef int free(self) except -1:
        if not self.shared_outside_net():
            self.memory.recycle()


cdef class Step:
    """One or more layers that run as one."""

    def __init__(self, list nodes not None, int first):
        self.nodes, self.first = nodes, first
        self.unwritten, self.frees, self.updates, self.deferring_layers = [], [], [], []
        self.operations = [operation for node in nodes for operation in (<Node> node).layer.operations()]
        self.stamp = self.present_stamp()

    @property
    def fused(self):
        """list of str: the layers that the last run fused into the first one, and the Concat whose slice it wrote."""
        fused = [node.name for node in self.nodes[1:]] if self.ran_fused else []
        return [*fused, self.part.concat_name] if self.wrote_part else fused

    cdef unsigned long long present_stamp(self) noexcept:
        cdef unsigned long long stamp = 0
        cdef Node node
        for node in self.nodes:
            stamp += node.stamp()
        return stamp

    cdef bint forward(self, bint compiled, bint may_run_backward) except -1:
        """Compute the tops; return False if an engine or a layer refused the fusion."""
        cdef bint done = self.compute(compiled, may_run_backward)
        for layer, part in self.deferring_layers:
            layer.defer_gradient(part)
        return done

    cdef bint compute(self, bint compiled, bint may_run_backward) except -1:
        """`compiled`: shapes are those that the step was compiled for. `may_run_backward`: backward may follow. What is fused
        runs layer by layer where the shapes changed, or a view or a blob outside of the net has the memory of a top between the
        layers.
        """
        cdef Node node = self.nodes[0]
        cdef Epilogue epilogue = None
        cdef Lifetime lifetime
        self.wrote_part = self.ran_fused = False
        if self.operation is not None and compiled:
            for lifetime in self.unwritten:
                compiled = compiled and not (lifetime.memory.has_external_view() or lifetime.shared_outside_net())
            epilogue = self.epilogue(may_run_backward) if compiled else None
        if epilogue is None:
            self.run_unfused(0)
            return self.operation is None or not compiled
        for fused_node in self.nodes:
            (<Node> fused_node).reallocate_tops()
        self.operation.epilogue = epilogue
        try:
            node.forward()
            if self.operation.epilogue is not None:     # the engine ignored it
                self.operation.epilogue = None
                self.run_unfused(1)
                return False
        finally:
            self.operation.epilogue = None
        self.ran_fused, self.wrote_part = True, self.part is not None and self.part.written
        if self.fused_backward:
            node.fused_into = self.first
        for fused_node in self.nodes[1:]:
            if self.fused_backward or not may_run_backward or not (<Node> fused_node).needs_backward:
                (<Node> fused_node).fused_into = self.first
            else:
                (<Node> fused_node).fused_into = -1
        if self.unwritten or self.wrote_part:
            epilogue.top.data_memory.publish_private()
            for node in self.nodes:
                if self.wrote_part or node.tops[0] is not epilogue.top:
                    (<Blob> node.tops[0]).data_memory.recycle()
        return True

    cdef int run_unfused(self, int start) except -1:
        """Run layers from number `start` of the step on, each by itself."""
        cdef Node node
        for node in self.nodes[start:]:
            node.reallocate_tops()
            node.forward()

    cdef Epilogue epilogue(self, bint may_run_backward):
        """Return the other layers and the part as an Epilogue with the present parameters; None if one does not fit."""
        cdef Node node = self.nodes[0]
        cdef Epilogue epilogue = self.operation.epilogue_class(node.tops[0], self.fused_backward, self.operation.fuses_sum())
        for node in self.nodes[1:]:
            if not add_to_epilogue(epilogue, node, may_run_backward):
                return None
        epilogue.part = self.part
        if self.part is not None:
            self.part.written = False
        return epilogue

    cdef int unfuse(self) except -1:
        """Compute the fused layers again one by one, for a backward that runs them one by one."""
        cdef Node first_node = self.nodes[0], node
        cdef Blob top = first_node.tops[0]
        if not self.fused_backward or first_node.fused_into < 0:
            return 0
        cdef bint gone = top.data_memory.head == RECYCLED
        data = None if gone else top.data.copy()
        top.data_memory.renew()
        try:
            first_node.layer.unfuse(first_node.bottoms, first_node.tops)
            for node in self.nodes[1:]:
                node.forward()
            first_node.fused_into, self.ran_fused = -1, False
        except BaseException as error:
            if gone:
                top.data_memory.recycle()
            if isinstance(error, Error):
                first_node.with_place(error)
            raise
        if data is not None:
            top.data[...] = data        # with the changes by later layers in place


cdef bint add_to_epilogue(Epilogue epilogue, Node node, bint may_run_backward) except -1:
    """Add a node to an epilogue; return whether that is possible."""
    if epilogue.fuses_backward and not node.bottom_needs[0]:
        return False
    if not node.layer.fuse(epilogue, node.bottoms, node.needs_backward and may_run_backward and not epilogue.fuses_backward):
        return False
    epilogue.top = node.tops[0]
    return True


cdef class Schedule:
    """The steps of an iteration; `compile_nodes` (compile.pyx) makes them."""

    cdef bint holds(self, unsigned long long stamp, const Context& on, bint plan) noexcept:
        """Whether it was compiled for these shapes, this context and plan, and the present settings."""
        return (self.stamp == stamp and not self.outdated and self.epoch == current_epoch() and self.threads == on.threads.count
                and self.device == (on.stream.device if on.stream != NULL else -1) and self.plan == plan)

    cdef Step step_starting_at(self, int index):
        """The step that begins with node `index`; None if there is none."""
        cdef Step step
        for step in self.forward:
            if step.first == index:
                return step
        return None

    cdef int run_forward(self, Step step) except -1:
        """Run a step, and free the memories that it uses last."""
        cdef SyncedMemory memory
        cdef Node last = step.nodes[len(step.nodes) - 1]
        cdef int i
        self.stale = self.stale or step.stamp != step.present_stamp()
        if not step.forward(not self.stale, self.may_run_backward):
            self.outdated = True
        step.layout = (<Blob> last.tops[0]).data_memory.layout() if len(last.tops) else None
        # Lives end earlier if one backward computes those of several layers.
        self.stale = self.stale or step.stamp != step.present_stamp() or step.fused_backward and not step.ran_fused
        if self.plan and self.plain_copies is not None:
            for i in range(step.first, step.first + len(step.nodes)):
                for memory in <list> self.plain_copies[i]:
                    memory.drop_plain()
            if not self.training:
                self.free_kept(step)
            self.end(step)

    cdef int finish_backward_step(self, Step step) except -1:
        """Free the memories that a step of backward uses last."""
        if self.plan:
            self.free_kept(step)
            self.stale = self.stale or step.stamp != step.present_stamp()
            self.end(step)

    cdef int free_kept(self, Step step) except -1:
        cdef Operation operation
        for operation in step.operations:
            operation.free_kept()

    cdef int end(self, Step step) except -1:
        cdef Lifetime lifetime
        if not self.stale:
            for lifetime in step.frees:
                lifetime.free()

    cdef int free_updated_gradients(self, list which) except -1:
        """Free the gradients of these learnable parameters, until `Runner.clear_param_diffs`."""
        cdef Lifetime lifetime
        if not self.plan or self.gradients is None:
            return 0
        for i in which:
            lifetime = self.gradients[i]
            lifetime.free()
            lifetime.memory.pool = self.pool

    cdef int invalidate_after_error(self, Step failed) except -1:
        """After an error in a step, or None: make its tops and partly written tops of Concats unreadable; no slice is valid."""
        cdef Step step
        cdef Node node
        cdef Blob blob
        if failed is not None and self.plan:
            for node in failed.nodes:
                for blob in node.tops:
                    if (blob.data_memory.skip_zero_fill
                            and not any(blob.data_memory is (<Blob> read).data_memory for read in node.bottoms)):
                        blob.data_memory.recycle()
        for step in self.forward:
            if step.part is not None and step.part.reset_written() and step.part.whole.data_memory.skip_zero_fill:
                step.part.whole.data_memory.recycle()

    cdef int expire(self) except -1:
        """Drop the memories, whose references a later schedule counts; nothing is freed any more."""
        cdef Step step
        self.gradients = self.plain_copies = None
        for step in [*self.forward, *self.backward]:
            step.frees, step.unwritten = [], []
