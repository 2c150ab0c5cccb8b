"""FusedStep: a step of a schedule: one layer, or several, whose others the operation of the first computes as its epilogue."""

from minicaffe.blob cimport Blob
from minicaffe.layer cimport stamps
from minicaffe.memory.states cimport RECYCLED
from minicaffe.net.lifetimes cimport Lifetime

from minicaffe.errors import Error


cdef class FusedStep:
    """One layer, or several that run as one, in the schedule's list for forward or in that for backward."""

    def __init__(self, list nodes not None, int first):
        self.nodes, self.first = nodes, first
        self.skipped_tops, self.frees, self.updates, self.activations = [], [], [], []
        self.operations = [operation for node in nodes for operation in (<Node> node).layer.operations()]
        self.blobs = [blob for node in nodes for blob in [*(<Node> node).bottoms, *(<Node> node).tops]]
        self.stamp = stamps(self.blobs, [])

    cdef bint forward(self, bint compiled, bint may_run_backward) except -1:
        """Compute the tops of fused layers; return False if an engine or a layer refused: then the net is compiled again.

        `compiled`: shapes are those that the step was compiled for. `may_run_backward`: backward may follow. The layers run one
        by one where the shapes changed, or a view or a blob outside of the net has the memory of a top that would not be written.
        """
        cdef Node first_node = self.nodes[0], node
        cdef Epilogue epilogue = None
        cdef Lifetime lifetime
        self.wrote_slice = self.ran_fused = False
        for lifetime in self.skipped_tops if compiled else ():
            compiled = compiled and not (lifetime.memory.has_external_view() or lifetime.shared_outside_net())
        if compiled:
            epilogue = self.epilogue(may_run_backward)
        if epilogue is None:
            self.forward_nodes(0)
            return not compiled
        for node in self.nodes:
            node.reallocate_tops()
        self.operation.epilogue = epilogue
        try:
            first_node.compute_tops()
            if self.operation.epilogue is not None:     # the engine ignored it; one that computes it sets None
                self.operation.epilogue = None
                self.forward_nodes(1)
                return False
        finally:
            self.operation.epilogue = None
        self.ran_fused, self.wrote_slice = True, self.concat_slice is not None and self.concat_slice.written
        if self.fused_backward:
            first_node.fused_into = self.first
        for node in self.nodes[1:]:
            node.fused_into = self.first if self.fused_backward or not may_run_backward or not node.needs_backward else -1
        if self.skipped_tops or self.wrote_slice:
            epilogue.top.data_memory.publish_private()
            for node in self.nodes:
                if self.wrote_slice or node.tops[0] is not epilogue.top:
                    (<Blob> node.tops[0]).data_memory.recycle()     # not written: reading raises
        return True

    cdef int forward_nodes(self, int start) except -1:
        """Compute the layers from number `start` of the step on, one by one."""
        cdef Node node
        for node in self.nodes[start:]:
            node.compute_tops()

    cdef Epilogue epilogue(self, bint may_run_backward):
        """Return the other layers and the slice as an Epilogue with the present parameters; None if one does not fit."""
        cdef Node node = self.nodes[0]
        cdef Epilogue epilogue = self.last_epilogue
        cdef list params = [blob for node in self.nodes for blob in (<Node> node).layer.blobs]
        if epilogue is None or params != self.params or not epilogue.is_current():
            self.last_epilogue, self.params = None, params
            epilogue = self.operation.epilogue_class(node.tops[0], self.fused_backward, self.operation.fuses_sum())
            for node in self.nodes[1:]:
                if not add_to_epilogue(epilogue, node, may_run_backward):
                    return None
        self.last_epilogue = epilogue
        epilogue.part = self.concat_slice
        if self.concat_slice is not None:
            self.concat_slice.written = False
        return epilogue

    cdef int report_others(self, str direction) except -1:
        """Report the layers after the first one, which computed them, to a trace, where each layer has its line."""
        cdef Node first_node = self.nodes[0], node
        for node in self.nodes[1:] if direction == "forward" else self.nodes[:0:-1]:
            node.report("begin", direction)
            node.report("end", f"{direction} with {first_node.name}" if direction != "forward" or self.ran_fused else direction)

    cdef int forget_other_shapes(self) except -1:
        """After a reshape, make backward raise until a new forward: `unfuse` cannot compute from values of another shape."""
        cdef Node node
        if self.stamp == stamps(self.blobs, []):
            return 0
        for node in self.nodes:
            if node.fused_into >= 0:
                node.fused_into = -1
                node.layer.forward_counts = 0

    cdef int unfuse(self) except -1:
        """Compute layers that have one backward for all again one by one, so that each saves what its own backward needs."""
        cdef Node first_node = self.nodes[0]
        cdef Blob top = first_node.tops[0]
        if not self.fused_backward or first_node.fused_into < 0:
            return 0        # other layers stay fused: `Node.compute_gradients` raises
        cdef bint gone = top.data_memory.head == RECYCLED
        data = None if gone else top.data.copy()
        top.data_memory.renew()
        try:
            first_node.layer.unfuse(first_node.bottoms)     # restores the bottom, which the top overwrote in place
            self.forward_nodes(0)
            self.ran_fused = False
        except BaseException as error:
            first_node.fused_into = self.first
            if gone:
                top.data_memory.recycle()
            if isinstance(error, Error):
                first_node.with_place(error)
            raise
        if data is not None:
            top.data[...] = data        # with the changes by later layers in place


cdef bint add_to_epilogue(Epilogue epilogue, Node node, bint may_run_backward) except -1:
    """Add a node to an epilogue, whose result is then the node's top; return False if the layer or the epilogue refuses."""
    if epilogue.fuses_backward and not node.bottom_needs[0]:
        return False
    if not node.layer.fuse(epilogue, node.bottoms, node.needs_backward and may_run_backward and not epilogue.fuses_backward):
        return False
    epilogue.top = node.tops[0]
    return True
