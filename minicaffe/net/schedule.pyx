"""Schedule: a net as it is compiled before it runs (compile.pyx): the steps of an iteration, and the memories that each step frees.

Runs, updates, the exchange with other processes and the printed table follow it. When a memory is freed, its blocks return to a
pool for later memories. Reading a freed memory raises (`SyncedMemory.recycle`), so that a lifetime that is too short by mistake
gives no wrong numbers.
"""

from minicaffe.blob cimport Blob
from minicaffe.engines.engine cimport Operation, current_epoch
from minicaffe.layer cimport stamps
from minicaffe.net.lifetimes cimport Lifetime
from minicaffe.net.node cimport Node


cdef class Schedule:
    """The steps of an iteration; `compile_nodes` (compile.pyx) makes them."""

    cdef bint holds(self, unsigned long long stamp, const Context& on, bint plan) noexcept:
        """Return whether it fits these shapes (`Runner.stamp`), this context and plan, and the present settings of engines."""
        return (self.stamp == stamp and not self.outdated and self.epoch == current_epoch() and self.threads == on.threads.count
                and self.device == (on.stream.device if on.stream != NULL else -1) and self.plan == plan)

    cdef bint check_unchanged(self, FusedStep step) noexcept:
        """Set `stale` if a step has other shapes or memories than it was compiled for; return whether none had in this run."""
        self.stale = self.stale or step.stamp != stamps(step.blobs, [])
        return not self.stale

    cdef int finish_forward_step(self, FusedStep step) except -1:
        """After a step of forward: set which ReLUs leave their gradient to a Concat, and free memories after their last use."""
        cdef Node node
        cdef Blob blob
        cdef list tops = (<Node> step.nodes[len(step.nodes) - 1]).tops
        for layer, deferred in step.activations:
            layer.deferred = deferred
        step.layout = (<Blob> tops[0]).data_memory.layout() if len(tops) else None
        self.check_unchanged(step)
        # The lifetimes assume that one backward computes the gradients of the fused layers.
        self.stale = self.stale or step.fused_backward and not step.ran_fused
        if self.plan:
            for node in step.nodes:
                for blob in node.layer.blobs:       # an engine that has them in its own layout needs no plain copy
                    blob.data_memory.drop_plain()
            self.free_after(step, not self.training)

    cdef int finish_backward_step(self, FusedStep step) except -1:
        """Free the memories that a step of backward uses last."""
        if self.plan:
            self.check_unchanged(step)
            self.free_after(step, True)

    cdef int free_after(self, FusedStep step, bint saved) except -1:
        """Free the memories whose last use is a step that has run; `saved`: also those that its operations save for backward."""
        cdef Operation operation
        cdef Lifetime lifetime
        for operation in step.operations if saved else ():
            operation.free_kept()
        for lifetime in step.frees if not self.stale else ():
            lifetime.free()

    cdef int free_updated_gradients(self, list numbers) except -1:
        """With a plan, free the gradients of these learnable parameters after their update, until `Runner.clear_param_diffs`."""
        cdef Lifetime lifetime
        for i in numbers if self.gradients is not None else ():
            lifetime = self.gradients[i]
            lifetime.free()
            lifetime.memory.pool = self.pool

    cdef int invalidate_after_error(self, FusedStep failed) except -1:
        """After an error in a step, or None: reading its tops and partly written tops of Concats then raises; no slice is valid."""
        cdef FusedStep step
        cdef Node node
        cdef Blob blob
        if failed is not None and self.plan:
            for node in failed.nodes:
                for blob in node.tops:
                    if (blob.data_memory.skip_zero_fill     # of the plan: undefined until it is written
                            and not any(blob.data_memory is (<Blob> read).data_memory for read in node.bottoms)):
                        blob.data_memory.recycle()
        for step in self.forward:
            if (step.concat_slice is not None and step.concat_slice.take_written()
                    and step.concat_slice.whole.data_memory.skip_zero_fill):
                step.concat_slice.whole.data_memory.recycle()

    cdef int drop_references(self) except -1:
        """Drop the memories: `Lifetime.shared_outside_net` of a later schedule would count these references as another user's."""
        cdef FusedStep step
        self.gradients = None
        for step in [*self.forward, *self.backward]:
            step.frees, step.skipped_tops = [], []
