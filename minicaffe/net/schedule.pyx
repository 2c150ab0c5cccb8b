"""Schedule: what a net does in an iteration, step by step, decided before it runs.

`compile_nodes` makes it: it fuses layers into steps of forward and backward, then finds the step that completes each gradient,
and the last use of every memory. Runs, frees, updates, the exchange with other processes and the printed table follow it.

In an iteration forward runs all nodes, then backward those that need it, in reverse. The lifetime of a memory is from the step that
writes it first to the last one that reads or writes it; then its blocks return to a pool for later memories. Blobs that share a
memory (Split, in place, Reshape) have one lifetime. Reading a freed memory raises (`SyncedMemory.recycle`), so that a lifetime
that is too short by mistake gives no wrong numbers.
"""

from cpython.object cimport PyObject

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context
from minicaffe.kernels.types cimport BF16
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.states cimport RECYCLED
from minicaffe.memory.synced cimport SyncedMemory
from minicaffe.net.node cimport Node
from minicaffe.engines.engine cimport Operation, current_epoch
from minicaffe.engines.epilogue cimport Epilogue, ConcatSlice, ReluEpilogue

from collections import Counter

from minicaffe.errors import Error
from minicaffe.memory.registry import registry
from minicaffe.net.node import has_builtin_passes, overwrites_outputs

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* o)

cdef enum:
    LARGE_GRADIENT = 1 << 20     # least elements of a gradient that is used part by part, if its operation can


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
        """Whether a blob outside the net shares the memory, such as one of a net inside a layer, and may read it at any time."""
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
        return ([node.name for node in self.nodes[1:]] if self.ran_fused else []) + ([self.part.by] if self.wrote_part else [])

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
        cdef Epilogue epilogue = self.operation.epilogue_class(node.tops[0], self.fused_backward, self.operation.adds())
        for node in self.nodes[1:]:
            if not add_to_epilogue(epilogue, node, may_run_backward):
                return None
        epilogue.part = self.part
        if self.part is not None:
            self.part.written = False
        return epilogue

    cdef int unfuse(self) except -1:
        """Compute the fused layers again one by one, for a backward that runs them one by one."""
        cdef Node head = self.nodes[0], node
        cdef Blob top = head.tops[0]
        if not self.fused_backward or head.fused_into < 0:
            return 0
        cdef bint gone = top.data_memory.head == RECYCLED
        data = None if gone else top.data.copy()
        top.data_memory.renew()
        try:
            head.layer.unfuse(head.bottoms, head.tops)
            for node in self.nodes[1:]:
                node.forward()
            head.fused_into, self.ran_fused = -1, False
        except BaseException as error:
            if gone:
                top.data_memory.recycle()
            if isinstance(error, Error):
                head.with_place(error)
            raise
        if data is not None:
            top.data[...] = data        # with the changes by later layers in place


cdef bint add_to_epilogue(Epilogue epilogue, Node node, bint may_run_backward) except -1:
    """Add a node to an epilogue; return whether that is possible."""
    if epilogue.fuses_backward and not node.bottom_needs[0]:
        return False
    if not node.layer.join(epilogue, node.bottoms, node.needs_backward and may_run_backward and not epilogue.fuses_backward):
        return False
    epilogue.top = node.tops[0]
    return True


cdef class Schedule:
    """The steps of an iteration; `compile_nodes` makes them."""

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
            if step.part is not None and step.part.take() and step.part.whole.data_memory.skip_zero_fill:
                step.part.whole.data_memory.recycle()

    cdef int expire(self) except -1:
        """Drop the memories, whose references a later schedule counts; nothing is freed any more."""
        cdef Step step
        self.gradients = self.plain_copies = None
        for step in [*self.forward, *self.backward]:
            step.frees, step.unwritten = [], []

    def rows(self, kept, list params, list learnable):
        """Return the steps as dicts, and by place in the iteration the bytes that live there.

        The dicts have the fields of `minicaffe.inspection.schedule_table.ScheduleRow`. `kept`, `params` and `learnable` are those that it was
        compiled for.
        """
        cdef Context on = context()
        cdef Step step
        cdef Node node
        cdef Lifetime lifetime
        cdef int at, i, count = len(self.nodes)
        cdef list head = list(range(count)), rows = [], ends = [None] * (2 * count)
        for step in self.backward:
            head[step.first:step.first + len(step.nodes)] = [step.first] * len(step.nodes)
        cdef dict lifetimes = find_lifetimes(self.nodes, head, kept, params, self.training, self.deferred_relus)
        for memory in {id(memory): memory for blob in params for memory in (blob.data_memory, blob.diff_memory)}.values():
            lifetimes.pop(id(memory), None)
        for step in self.forward:
            choose_engines(step.nodes[0], on)
            at = step.first + len(step.nodes) - 1
            rows.append(row_of(step, "forward", at, self.deferred_relus,
                               [lifetimes[id((<Blob> blob).data_memory)] for blob in step.nodes[len(step.nodes) - 1].tops
                                if id((<Blob> blob).data_memory) in lifetimes]))
            ends[step.first:at + 1] = [rows[len(rows) - 1]] * len(step.nodes)
        for step in self.backward if self.training else ():
            node = step.nodes[0]
            if node.needs_backward or step.updates:
                rows.append(row_of(step, "backward", 2 * count - 1 - step.first, self.deferred_relus, []))
                rows[len(rows) - 1]["updates"] = [(<Blob> learnable[i]).name for i in step.updates]
                for i in range(step.first, step.first + len(step.nodes)):
                    ends[2 * count - 1 - i] = rows[len(rows) - 1]
        for row in rows:
            row["saves"] = list(dict.fromkeys([memory_name(lifetime.memory)
                                               for lifetime in row["saves"] if lifetime.last >= count]))
        for lifetime in lifetimes.values():
            if lifetime.last < 0 or not lifetime.memory.size:
                continue
            ended = self.plan and lifetime.written and not lifetime.kept
            if ended:
                ends[lifetime.last]["frees"].append(memory_name(lifetime.memory))
            for row in rows:
                if not ended or (lifetime.first <= row["at"]
                                 and (lifetime.last <= row["at"] and ends[lifetime.last] is row or row["at"] < lifetime.last)):
                    row["live"] += lifetime.memory.size
        for row in rows:
            del row["at"]
        return rows


cdef str memory_name(SyncedMemory memory):
    return memory._name


cdef int choose_engines(Node node, const Context& on) except -1:
    """Choose the engines of the operations of a node that do not depend on the layout of its bottom."""
    cdef Operation operation
    for operation in node.layer.operations() if node.bottoms else ():
        if not operation.depends_on_layout and operation.has_engines():
            operation.choose(on, node.bottoms[0])


cdef dict row_of(Step step, str direction, int at, dict deferred_relus, list saves):
    """Return the fields of a ScheduleRow; `Schedule.rows` fills in those that depend on lifetimes of memory.

    `deferred_relus` has the steps of ReLUs whose gradient a later Concat computes (see `find_deferred_relus`): such a ReLU reads
    nothing in backward, and the Concat reads its top.
    """
    cdef Node node = step.nodes[0]
    cdef list intermediate = [blob for node in step.nodes[:len(step.nodes) - 1] for blob in node.tops]
    cdef list bottoms = node.bottoms + [blob for node in step.nodes[1:] for blob in node.bottoms
                                        if not any(blob is other for other in intermediate)]
    cdef list tops = step.nodes[len(step.nodes) - 1].tops
    blobs = [blob for node in step.nodes for blob in node.blobs]
    if direction == "forward":
        reads, writes = [blob.data_memory for blob in [*bottoms, *blobs]], [blob.data_memory for blob in tops]
    else:
        reads = [blob.diff_memory for blob in tops] + [blob.data_memory for blob in blobs]
        has_late_relu = step.first in {index for index, _ in deferred_relus.values()}
        for node in step.nodes if step.first not in deferred_relus else ():
            if node is step.nodes[0] or not step.fused_backward:
                reads += [blob.data_memory for blob in [*(node.bottoms if node.layer.backward_reads_bottoms else ()),
                                                        *(node.tops if has_late_relu or node.layer.backward_reads_tops else ())]]
        node = step.nodes[0]
        writes = [blob.diff_memory for blob, needed in zip(node.bottoms, node.bottom_needs) if needed]
        writes += [blob.diff_memory for blob in blobs]
    engines = dict.fromkeys(operation.describe()["engine"] for operation in (<Node> step.nodes[0]).layer.operations())
    return {"direction": direction, "layers": [node.name for node in step.nodes], "types": [node.type for node in step.nodes],
            "part_of": step.part.by if step.part is not None else None, "engine": "/".join(filter(None, engines)) or None,
            "layout": layout_text(step.layout) if direction == "forward" else None,
            "reads": nbytes_of(reads), "writes": nbytes_of(writes), "saves": saves, "frees": [], "updates": [], "live": 0, "at": at}


cdef str layout_text(Layout layout):
    """The layout in oneDNN's notation: nChw16c has 16 channels beside each other, NHWC all of them. None: plain order."""
    if layout is None:
        return None
    text = "NHWC" if layout.on_device else f"nChw{layout.lanes}c" if layout.lanes else "private"
    return f"{text} bf16" if layout.dtype == BF16 else text


cdef long long nbytes_of(list memories):
    return sum([memory.size for memory in {id(memory): memory for memory in memories}.values()])


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
        step.part = self.part_of(i, step) if operation.epilogue_class.moves else None
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
        cdef Epilogue epilogue = operation.epilogue_class(top, fused_backward, operation.adds())
        for k in range(i + 1, len(self.nodes)):
            fused_node = self.nodes[k]
            if len(fused_node.tops) != 1 or not has_builtin_passes(fused_node.layer):
                break
            if not (len(fused_node.bottoms) == 1 and fused_node.bottoms[0] is top and fused_node.tops[0] is top):
                if self.training or not epilogue.moves or fused_node.tops[0] is top or not self.only_reader(k, top) \
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


cdef dict find_lifetimes(list nodes, list head, kept, list params, bint training, dict deferred_relus):
    """The lifetimes of the memories of all blobs, by the memory's id.

    `head` has for each node the first node of the step that computes its backward; `deferred_relus` is of `find_deferred_relus`.
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
        if head[i] != i:    # the first node kept what it needs, and reads none of their data
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
                and node.layer.join(ReluEpilogue(blob), node.bottoms, True)):
            continue
        joined_top = whole.tops[0]
        if not any([top in later.bottoms and (<Blob> top).data_memory is joined_top.data_memory
                    for later in nodes[index + 1:] for top in later.tops]):
            found[last] = index, which
    return found


cdef tuple find_complete_gradients(list nodes, list learnable, list head):
    """For each node the list of the learnable parameters, by number, whose gradients its backward completes; those of no node.

    Neither are their data read afterwards.
    """
    last = {}       # by the id of a parameter's memory: the node whose backward uses it last, adds to a gradient or reads data
    for i in reversed(range(len(nodes))):
        if nodes[i].needs_backward:
            last.update((id(memory), head[i]) for blob in nodes[i].blobs for memory in (blob.data_memory, blob.diff_memory))
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
    cdef list head = list(range(count)), ends = [None] * (2 * count)
    made.nodes, made.training, made.plan, made.may_run_backward = nodes, training, plan, training or not plan
    made.stamp, made.epoch, made.threads, made.device = stamp, current_epoch(), on.threads.count, -1
    if on.stream != NULL:
        made.device = on.stream.device
    fusion.nodes, fusion.training, fusion.may_run_backward, fusion.concat_slices = nodes, training, made.may_run_backward, {}
    made.deferred_relus = {}
    if plan:
        fusion.lifetimes = find_lifetimes(nodes, head, kept, params, training, {})
        fusion.concat_slices = find_concat_slices(nodes, fusion.lifetimes)
        if training and on.stream == NULL:
            made.deferred_relus = find_deferred_relus(nodes, fusion.concat_slices)
            fusion.lifetimes = None
            fusion.lifetimes = find_lifetimes(nodes, head, kept, params, training, made.deferred_relus)
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
            head[i:i + len(step.nodes)] = [i] * len(step.nodes)
        ends[i:i + len(step.nodes)] = [step] * len(step.nodes)
        i += len(step.nodes)
    learned, made.without_gradient = find_complete_gradients(nodes, learnable, head)
    users = Counter(id(memory) for node in nodes for blob in node.blobs for memory in (blob.data_memory, blob.diff_memory))
    for i in reversed(range(count)):
        if head[i] == i:
            step = Step([node for node, k in zip(nodes, head) if k == i], i)
            step.fused_backward, step.updates = len(step.nodes) > 1, learned[i]
            find_large_gradient(step, learnable, users)
            made.backward.append(step)
            ends[2 * count - 1 - i] = step
    for i in range(count):
        ends[2 * count - 1 - i] = ends[2 * count - 1 - <int> head[i]]
    if not plan:
        return made
    made.plain_copies = [[blob.data_memory for blob in node.blobs] for node in nodes]
    fusion.lifetimes = None     # each Lifetime has a reference to its memory, and `shared_outside_net` allows for one
    cdef dict lifetimes = find_lifetimes(nodes, head, kept, params, training, made.deferred_relus)
    made.pool = registry.host_pool()
    made.gradients = [lifetime_of(lifetimes, blob.diff_memory) for blob in learnable]
    for step in made.forward:
        step.unwritten = [lifetimes[id((<Lifetime> lifetime).memory)] for lifetime in step.unwritten]
    for lifetime in lifetimes.values():
        if not lifetime.kept and lifetime.written and lifetime.memory.size:
            lifetime.memory.pool, lifetime.memory.skip_zero_fill = made.pool, True
            (<Step> ends[lifetime.last]).frees.append(lifetime)
    return made
