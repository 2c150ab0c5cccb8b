"""Compile a net into a Schedule: which layers are fused, which step completes each gradient, the last use of every memory."""

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context
from minicaffe.engines.engine cimport Operation, current_epoch
from minicaffe.engines.epilogue cimport ConcatSlice, Epilogue, ReluEpilogue
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.node cimport Node
from minicaffe.net.schedule cimport Lifetime, Schedule, Step, add_to_epilogue

from collections import Counter

from minicaffe.errors import Error
from minicaffe.memory.registry import registry
from minicaffe.net.node import has_builtin_passes, overwrites_outputs

cdef enum:
    LARGE_GRADIENT = 1 << 20     # least elements of a gradient that is used part by part, if its operation can


cdef class Fusion:
    """The pass that fuses layers.

    It has two rules. `epilogue_of`: the engine of an operation computes the layers that follow it. `part_of`: a result is written
    directly into the top of a Concat.
    """

    cdef list nodes
    cdef dict lifetimes         # without fusion; None without a plan, where all tops are written
    # For each bottom of a Concat: its node, which slice, and the last node before it that uses the blob.
    cdef dict concat_slices
    cdef bint training, may_run_backward

    cdef Step step(self, int i, const Context& on):
        """The step that begins with node `i`."""
        cdef Node node = self.nodes[i]
        cdef Operation operation
        cdef Step step
        operation = fusable_operation(node)
        try:
            if operation is None or not operation.fuses(on, node.bottoms[0], node.tops[0]):
                return Step([node], i)
            fused_backward = (operation.fuses_backward and node.bottoms == node.tops and self.may_run_backward
                              and node.needs_backward and any(node.bottom_needs))
            step = Step(self.epilogue_of(i, operation, fused_backward), i)
        except Error as error:
            raise node.with_place(error)
        step.part = self.part_of(i, step) if operation.epilogue_class.allows_other_top else None
        if len(step.nodes) > 1 or step.part is not None:
            step.operation = operation
            step.fused_backward = fused_backward and len(step.nodes) > 1
            last = step.nodes[len(step.nodes) - 1].tops[0]
            step.unwritten = [Lifetime((<Blob> node.tops[0]).data_memory) for node in step.nodes
                              if node.tops[0] is not last or step.part is not None]
        return step

    cdef list epilogue_of(self, int i, Operation operation, bint fused_backward):
        """Node `i` and those after it that its operation can compute, too: in place on its top, or the only ones to read it."""
        cdef Node node = self.nodes[i], fused_node
        cdef list found = [node]
        cdef Blob top = node.tops[0]
        cdef Epilogue epilogue = operation.epilogue_class(top, fused_backward, operation.fuses_sum())
        for k in range(i + 1, len(self.nodes)):
            fused_node = self.nodes[k]
            if len(fused_node.tops) != 1 or not has_builtin_passes(fused_node.layer):
                break
            if not (len(fused_node.bottoms) == 1 and fused_node.bottoms[0] is top and fused_node.tops[0] is top):
                if self.training or not epilogue.allows_other_top or fused_node.tops[0] is top or not self.only_reader(k, top) \
                        or not any(blob is top for blob in fused_node.bottoms):
                    break
            if not add_to_epilogue(epilogue, fused_node, self.may_run_backward):
                break
            found.append(fused_node)
            top = fused_node.tops[0]
        return found

    cdef ConcatSlice part_of(self, int i, Step step):
        """The slice of a Concat's top for the result of a step that begins with node `i`, if only the Concat reads it; or None."""
        cdef Node last = step.nodes[len(step.nodes) - 1]
        place = self.concat_slices.get(last.tops[0])
        if place is None or place[2] != i + len(step.nodes) - 1 or not self.only_reader(place[0], last.tops[0]):
            return None
        return (<Node> self.nodes[place[0]]).layer.parts[place[1]]

    cdef bint only_reader(self, int index, Blob blob) except -1:
        """Whether node `index`, in forward, is the only reader of these data, so that a fused step need not write them."""
        if self.lifetimes is None:
            return False
        cdef Lifetime lifetime = self.lifetimes[id(blob.data_memory)]
        return lifetime.written and not lifetime.kept and lifetime.last == index and lifetime.memory.size > 0


cdef Operation fusable_operation(Node node):
    """The operation of a node that may compute more than its layer; None if it has none, or several (LSTM)."""
    cdef list operations
    if len(node.tops) == 1 and node.bottoms and has_builtin_passes(node.layer):
        operations = list(node.layer.operations())
        if len(operations) == 1 and operations[0].epilogue_class is not None:
            return operations[0]
    return None


cdef Lifetime lifetime_of(dict lifetimes, SyncedMemory memory):
    """The lifetime of a memory among those by its id; a new one at its first use."""
    if id(memory) not in lifetimes:
        lifetimes[id(memory)] = Lifetime(memory)
    return lifetimes[id(memory)]


cdef dict find_lifetimes(list nodes, list backward_starts, kept, list params, bint training, dict deferred_relus):
    """The lifetimes of the memories of all blobs, by the memory's id.

    `backward_starts` has for each node the first node of the step that computes its backward; `deferred_relus` is of
    `find_deferred_relus`.
    """
    cdef Node node
    cdef Blob blob
    cdef Lifetime lifetime
    cdef int i, at, count = len(nodes)
    cdef dict lifetimes = {}
    cdef set joining = {index for index, _ in deferred_relus.values()}
    for blob in dict.fromkeys([blob for node in nodes for blob in [*node.bottoms, *node.tops]]):     # in the order of the listing
        for memory in (blob.data_memory, blob.diff_memory):
            lifetime = lifetime_of(lifetimes, memory)
            lifetime.blob_references += 1
    for blob in [*kept, *params]:
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
    for i in reversed(range(count)) if training else ():
        node = nodes[i]
        if not node.needs_backward:
            continue
        at = 2 * count - 1 - i
        for blob in node.tops:
            lifetime_of(lifetimes, blob.diff_memory).record_use(at)
        for blob, needed in zip(node.bottoms, node.bottom_needs):
            if needed:
                lifetime_of(lifetimes, blob.diff_memory).record_use(at, True)
        if backward_starts[i] != i:    # the first node kept what it needs, and reads none of their data
            continue
        for blob in (*(node.bottoms if node.layer.backward_reads_bottoms and i not in deferred_relus else ()),
                     *(node.tops if node.layer.backward_reads_tops and i not in deferred_relus or i in joining else ())):
            lifetime_of(lifetimes, blob.data_memory).record_use(at)
    for blob in params:
        lifetime = lifetime_of(lifetimes, blob.diff_memory)
        lifetime.blob_references += 1
    return lifetimes


cdef dict find_concat_slices(list nodes, dict lifetimes):
    """For each bottom of a Concat: its node, the number of the slice, and the last node before it that uses the blob."""
    cdef Node node
    cdef Blob blob
    found, used = {}, {}
    for i, node in enumerate(nodes):
        if node.layer.always_reshape:       # from here on shapes depend on values
            break
        if (node.layer.parts and has_builtin_passes(node.layer)
                and (<Lifetime> lifetimes[id((<Blob> node.tops[0]).data_memory)]).first == i):
            for j in range(len(node.layer.parts)):
                blob = node.bottoms[j]
                found[blob] = i, j, used.get(id(blob.data_memory), -1)
        for blob in [*node.bottoms, *node.tops]:
            used[id(blob.data_memory)] = i
    return found


cdef dict find_deferred_relus(list nodes, dict concat_slices):
    """The ReLUs whose gradient the Concat behind them computes, by number: the number of the Concat, and of the slice.

    The Concat needs no data but its top's, so that in a training, too, slices are written there directly. No layer may change it.
    """
    cdef Node node, whole, later
    cdef Blob joined_top
    found = {}
    for blob, (index, which, last) in concat_slices.items():
        if last < 0:
            continue
        node, whole = nodes[last], nodes[index]
        if not (hasattr(node.layer, "defer_gradient") and has_builtin_passes(node.layer) and node.needs_backward
                and whole.bottom_needs[which] and node.bottoms == node.tops == [blob]
                and node.layer.fuse(ReluEpilogue(blob), node.bottoms, True)):
            continue
        joined_top = whole.tops[0]
        if not any([top in later.bottoms and (<Blob> top).data_memory is joined_top.data_memory
                    for later in nodes[index + 1:] for top in later.tops]):
            found[last] = index, which
    return found


cdef tuple find_complete_gradients(list nodes, list learnable, list backward_starts):
    """For each node the list of the learnable parameters, by number, whose gradients its backward completes; those of no node.

    Neither are their data read afterwards.
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


cdef int find_large_gradient(Step step, list learnable, users) except -1:
    """Find a gradient that the step's operation gives part by part."""
    cdef Node node = step.nodes[0]
    cdef Blob blob
    operations = node.layer.operations()
    if (len(step.nodes) > 1 or len(operations) != 1 or not operations[0].streams_weight_gradient
            or not has_builtin_passes(node.layer) or not node.blobs):
        return 0        # of several operations one may read it later
    for i in step.updates:
        blob = learnable[i]
        if (blob.count >= LARGE_GRADIENT and blob is node.blobs[0]
                and users[id(blob.data_memory)] == users[id(blob.diff_memory)] == 1):
            step.large = i


cdef Schedule compile_nodes(list nodes, kept, list params, list learnable, bint training, bint plan, unsigned long long stamp,
                            const Context& on):
    """Compile a net, whose shapes are up to date, into a Schedule.

    Parameters
    ----------
    nodes : list of Node
    kept : collection of Blob
        Of any shapes: what is read after the iteration, data and diff.
    params, learnable : list of Blob
        Of any shapes: all parameters, whose memories the steps never free, and those that are learned.
    training : bool
        Backward follows.
    plan : bool
        Memories end with their last use, and tops that nothing reads need not be written.
    stamp : int
        Of the net's shapes and memories.
    on : Context
        Where it runs.
    """
    cdef Schedule made = Schedule()
    cdef Fusion fusion = Fusion()
    cdef Step step
    cdef Node node
    cdef Lifetime lifetime
    cdef int i, count = len(nodes)
    cdef list backward_starts = list(range(count)), ends = [None] * (2 * count)
    made.nodes, made.training, made.plan, made.may_run_backward = nodes, training, plan, training or not plan
    made.stamp, made.epoch, made.threads, made.device = stamp, current_epoch(), on.threads.count, -1
    if on.stream != NULL:
        made.device = on.stream.device
    fusion.nodes, fusion.training, fusion.may_run_backward, fusion.concat_slices = nodes, training, made.may_run_backward, {}
    made.deferred_relus = {}
    if plan:
        fusion.lifetimes = find_lifetimes(nodes, backward_starts, kept, params, training, {})
        fusion.concat_slices = find_concat_slices(nodes, fusion.lifetimes)
        if training and on.stream == NULL:
            made.deferred_relus = find_deferred_relus(nodes, fusion.concat_slices)
            fusion.lifetimes = None
            fusion.lifetimes = find_lifetimes(nodes, backward_starts, kept, params, training, made.deferred_relus)
    made.forward, made.backward = [], []
    i = 0
    while i < count:
        step = fusion.step(i, on)
        for k, node in enumerate(step.nodes, i):
            if step.fused_backward:
                made.deferred_relus.pop(k, None)      # the fused backward computes its gradient
            if hasattr(node.layer, "defer_gradient"):
                index, which = made.deferred_relus.get(k, (0, 0))
                step.deferring_layers.append((node.layer, (<Node> nodes[index]).layer.parts[which]
                                              if k in made.deferred_relus else None))
        made.forward.append(step)
        if step.fused_backward:
            backward_starts[i:i + len(step.nodes)] = [i] * len(step.nodes)
        ends[i:i + len(step.nodes)] = [step] * len(step.nodes)
        i += len(step.nodes)
    learned, made.without_gradient = find_complete_gradients(nodes, learnable, backward_starts)
    users = Counter(id(memory) for node in nodes for blob in node.blobs for memory in (blob.data_memory, blob.diff_memory))
    for i in reversed(range(count)):
        if backward_starts[i] == i:
            step = Step([node for node, k in zip(nodes, backward_starts) if k == i], i)
            step.fused_backward, step.updates = len(step.nodes) > 1, learned[i]
            find_large_gradient(step, learnable, users)
            made.backward.append(step)
            ends[2 * count - 1 - i] = step
    for i in range(count):
        ends[2 * count - 1 - i] = ends[2 * count - 1 - <int> backward_starts[i]]
    if not plan:
        return made
    made.plain_copies = [[blob.data_memory for blob in node.blobs] for node in nodes]
    fusion.lifetimes = None     # each Lifetime has a reference to its memory, and `shared_outside_net` allows for one
    cdef dict lifetimes = find_lifetimes(nodes, backward_starts, kept, params, training, made.deferred_relus)
    made.pool = registry.host_pool()
    made.gradients = [lifetime_of(lifetimes, blob.diff_memory) for blob in learnable]
    for step in made.forward:
        step.unwritten = [lifetimes[id((<Lifetime> lifetime).memory)] for lifetime in step.unwritten]
    for lifetime in lifetimes.values():
        if not lifetime.kept and lifetime.written and lifetime.memory.size:
            lifetime.memory.pool, lifetime.memory.skip_zero_fill = made.pool, True
            (<Step> ends[lifetime.last]).frees.append(lifetime)
    return made
