"""Compile a net into a Schedule: which layers are fused, which step completes each gradient, the last use of every memory."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context
from minicaffe.engines.engine cimport Operation, current_epoch
from minicaffe.engines.epilogue cimport ConcatSlice, Epilogue, ReluEpilogue
from minicaffe.net.lifetimes cimport Lifetime, find_lifetimes, shorten_lifetimes
from minicaffe.net.node cimport Node
from minicaffe.net.schedule cimport Schedule
from minicaffe.net.step cimport FusedStep, add_to_epilogue

from collections import Counter

from minicaffe.errors import Error
from minicaffe.memory.registry import registry

cdef enum:
    LARGE_GRADIENT = 1 << 20     # least elements of a gradient that is used part by part, if its operation can


cdef class Fusion:
    """The pass that fuses layers.

    It has two rules. `find_epilogue`: the engine of an operation computes the layers that follow it. `find_concat_target`: a
    result is written directly into the top of a Concat.
    """

    cdef Schedule schedule      # in the making
    cdef dict lifetimes         # of layers that run one by one; None without a plan, where all tops are written
    cdef dict concat_slices     # the result of `find_concat_slices`; empty without a plan

    cdef FusedStep make_step(self, int i, const Context& on):
        """Return the step of forward that begins with node `i`."""
        cdef Node node = self.schedule.nodes[i]
        cdef Operation operation
        cdef FusedStep step
        operation = fusable_operation(node)
        try:
            if operation is None or not operation.fuses(on, node.bottoms[0], node.tops[0]):     # chooses the engine, too
                return FusedStep([node], i)
            fused_backward = (operation.fuses_backward and node.bottoms == node.tops and self.schedule.may_run_backward
                              and node.needs_backward and any(node.bottom_needs))
            step = FusedStep(self.find_epilogue(i, operation, fused_backward), i)
        except Error as error:
            raise node.with_place(error)
        step.concat_slice = self.find_concat_target(step) if operation.epilogue_class.allows_other_top else None
        if len(step.nodes) > 1 or step.concat_slice is not None:
            step.operation = operation
            step.fused_backward = fused_backward and len(step.nodes) > 1
            last = step.nodes[len(step.nodes) - 1].tops[0]      # without a plan that of all nodes, which work in place
            step.skipped_tops = [self.lifetimes[id((<Blob> node.tops[0]).data_memory)] for node in step.nodes
                                 if node.tops[0] is not last or step.concat_slice is not None]
        return step

    cdef list find_epilogue(self, int i, Operation operation, bint fused_backward):
        """Return node `i` and those after it that its operation can compute, too: in place on its top, or its only readers.

        A top that only a fused layer reads is not written. Backward may read it, so that this needs a plan without training.
        """
        cdef Node node = self.schedule.nodes[i], fused_node
        cdef list found = [node]
        cdef Blob top = node.tops[0]
        cdef Epilogue epilogue = operation.epilogue_class(top, fused_backward, operation.fuses_sum())
        for k in range(i + 1, len(self.schedule.nodes)):
            fused_node = self.schedule.nodes[k]
            if len(fused_node.tops) != 1 or not fused_node.has_builtin_passes:
                break
            if not (len(fused_node.bottoms) == 1 and fused_node.bottoms[0] is top and fused_node.tops[0] is top):
                if (self.schedule.training or not epilogue.allows_other_top or fused_node.tops[0] is top
                        or not self.only_reader(k, top) or not any(blob is top for blob in fused_node.bottoms)):
                    break
            if not add_to_epilogue(epilogue, fused_node, self.schedule.may_run_backward):
                break
            found.append(fused_node)
            top = fused_node.tops[0]
        return found

    cdef ConcatSlice find_concat_target(self, FusedStep step):
        """Return the slice of a Concat's top for the result of a step, if only the Concat reads this result; or None."""
        cdef int last = step.first + len(step.nodes) - 1
        cdef Blob top = self.schedule.nodes[last].tops[0]
        concat, concat_slice, last_user = self.concat_slices.get(top, (0, None, -1))
        # Backward of a deferred ReLU, at this position of the iteration, does not read it.
        unread = 2 * len(self.schedule.nodes) - 1 - last if last in self.schedule.deferred_relus else -1
        return concat_slice if last_user == last and self.only_reader(concat, top, unread) else None

    cdef bint only_reader(self, int index, Blob blob, int ignored=-1) except -1:
        """Return whether forward of node `index` is the only reader of these data, so that a fused step need not write them.

        The reader at position `ignored` of the iteration does not count.
        """
        if self.lifetimes is None:
            return False
        cdef Lifetime lifetime = self.lifetimes[id(blob.data_memory)]
        return lifetime.written and not lifetime.kept and lifetime.last(ignored) == index and lifetime.memory.size > 0


cdef Operation fusable_operation(Node node):
    """Return the operation of a node that may compute more than its layer; None without one, or with several (LSTM)."""
    cdef list operations
    if len(node.tops) == 1 and node.bottoms and node.has_builtin_passes:
        operations = list(node.layer.operations())
        if len(operations) == 1 and operations[0].epilogue_class is not None:
            return operations[0]
    return None


cdef dict find_concat_slices(list nodes, dict lifetimes):
    """Return for each bottom of a Concat the number of the Concat, the slice, and the last node before that uses the blob, or -1.

    If that node is a ReLU in place, whose gradient the Concat may compute in a training on the CPU, its layer becomes `relu` of the
    slice. The Concat needs only its top for that, so that slices are written there directly, too. No layer may change this top.
    """
    cdef Node node, before, later
    cdef Blob blob, top
    cdef ConcatSlice concat_slice
    found, used = {}, {}
    for i, node in enumerate(nodes):
        if node.layer.always_reshape:       # from here on shapes depend on values
            break
        if (node.layer.parts and node.has_builtin_passes
                and (<Lifetime> lifetimes[id((<Blob> node.tops[0]).data_memory)]).uses[0] == i):
            top = node.tops[0]
            changed = any([top_of_later in later.bottoms and (<Blob> top_of_later).data_memory is top.data_memory
                           for later in nodes[i + 1:] for top_of_later in later.tops])
            for blob, needed, concat_slice in zip(node.bottoms, node.bottom_needs, node.layer.parts):
                last = used.get(id(blob.data_memory), -1)
                found[blob] = i, concat_slice, last
                before = nodes[last]
                concat_slice.relu = before.layer if (
                    last >= 0 and needed and not changed and before.needs_backward and before.has_builtin_passes
                    and before.bottoms == before.tops == [blob] and hasattr(before.layer, "deferred")
                    and before.layer.fuse(ReluEpilogue(blob), before.bottoms, True)) else None      # of slope 0
        for blob in [*node.bottoms, *node.tops]:
            used[id(blob.data_memory)] = i
    return found


cdef tuple find_complete_gradients(list nodes, list learnable, list backward_starts):
    """Return for each node the numbers of the learnable parameters whose gradients its backward completes; and those of no node.

    After that backward the data of these parameters are not read either, so that they may be updated while others run backward.
    """
    last = {}       # by the id of a parameter's memory: the node whose backward uses it last, adds to a gradient or reads data
    for i in reversed(range(len(nodes))):
        if nodes[i].needs_backward:
            last.update((id(memory), backward_starts[i])
                        for blob in nodes[i].blobs for memory in (blob.data_memory, blob.diff_memory))
    learned, without_gradient = [[] for _ in nodes], []
    for i, blob in enumerate(learnable):
        if id(blob.diff_memory) in last:
            learned[min(last[id(blob.diff_memory)], last.get(id(blob.data_memory), len(nodes)))].append(i)
        else:
            without_gradient.append(i)
    return learned, without_gradient


cdef int find_large_gradient(FusedStep step, list learnable, users) except -1:
    """Store in `step.large` a weight whose gradient `GradientReports` may pass on part by part, so that it never exists whole.

    This saves 144 MiB of CaffeNet's training, for fc6. No other node may use the gradient or the weight (`users`: count by memory).
    """
    cdef Node node = step.nodes[0]
    cdef Blob blob
    operations = node.layer.operations()
    if (len(step.nodes) > 1 or len(operations) != 1 or not operations[0].streams_weight_gradient
            or not node.has_builtin_passes or not node.blobs):
        return 0        # one of several operations may read the gradient later
    for i in step.updates:
        blob = learnable[i]
        if (blob.count >= LARGE_GRADIENT and blob is node.blobs[0]
                and users[id(blob.data_memory)] == users[id(blob.diff_memory)] == 1):
            step.large = i


def compile_nodes(list nodes not None, pinned, list params not None, list learnable not None, bint training, bint plan,
                  unsigned long long stamp):
    """Compile a net, whose shapes are up to date, into a Schedule for the present mode.

    Parameters
    ----------
    nodes : list of Node
    pinned : collection of Blob
        Of any shapes: read after the iteration, data and diff.
    params, learnable : list of Blob
        Of any shapes: all parameters, whose memories the steps never free, and those that are learned.
    training : bool
        Backward follows each forward.
    plan : bool
        Memories end with their last use, and tops that nothing reads need not be written.
    stamp : int
        Of the net's shapes and memories.
    """
    cdef Context on = context()
    cdef Schedule made = Schedule()
    cdef Fusion fusion = Fusion()
    cdef FusedStep step
    cdef Node node
    cdef Lifetime lifetime
    cdef int i, count = len(nodes)
    cdef list ends = [None] * (2 * count)       # the step at each position of the iteration
    made.nodes, made.training, made.plan, made.may_run_backward = nodes, training, plan, training or not plan
    made.stamp, made.epoch, made.threads, made.device = stamp, current_epoch(), on.threads.count, -1
    if on.stream != NULL:
        made.device = on.stream.device
    made.forward, made.backward, made.backward_starts, made.deferred_relus = [], [], list(range(count)), {}
    fusion.schedule, fusion.lifetimes = made, find_lifetimes(nodes, pinned, params, training) if plan else None
    fusion.concat_slices = find_concat_slices(nodes, fusion.lifetimes) if plan else {}
    if training and on.stream == NULL:
        made.deferred_relus = {last: index for index, concat_slice, last in fusion.concat_slices.values()
                               if concat_slice.relu is not None}
    i = 0
    while i < count:
        step = fusion.make_step(i, on)
        made.forward.append(step)
        ends[i:i + len(step.nodes)] = [step] * len(step.nodes)
        for k, node in enumerate(step.nodes, i):
            if step.fused_backward:
                made.backward_starts[k] = i
                made.deferred_relus.pop(k, None)      # the fused backward computes its gradient
            if hasattr(node.layer, "deferred"):
                step.activations.append((node.layer, k in made.deferred_relus))
        i += len(step.nodes)
    learned, made.without_gradient = find_complete_gradients(nodes, learnable, made.backward_starts)
    users = Counter(id(memory) for node in nodes for blob in node.blobs for memory in (blob.data_memory, blob.diff_memory))
    for i in reversed(range(count)):
        if made.backward_starts[i] == i:
            step = FusedStep([node for node, start in zip(nodes, made.backward_starts) if start == i], i)
            step.fused_backward, step.updates = len(step.nodes) > 1, learned[i]
            if plan:
                find_large_gradient(step, learnable, users)
            made.backward.append(step)
            ends[2 * count - i - len(step.nodes):2 * count - i] = [step] * len(step.nodes)
    if plan:
        shorten_lifetimes(fusion.lifetimes, nodes, made.backward_starts, made.deferred_relus)
        made.pool = registry.host_pool()
        made.gradients = [fusion.lifetimes[id((<Blob> blob).diff_memory)] for blob in learnable]
        for lifetime in fusion.lifetimes.values():
            if not lifetime.kept and lifetime.written and lifetime.memory.size:
                lifetime.memory.pool, lifetime.memory.skip_zero_fill = made.pool, True
                (<FusedStep> ends[lifetime.last()]).frees.append(lifetime)
    return made
