"""Schedule: what a net does in an iteration, step by step, decided before it runs.

`compile_nodes` makes it: it fuses layers into steps of forward and backward, then finds the step that completes each gradient,
and the last use of every memory. Runs, frees, updates, the exchange with other processes and the printed table follow it.

In an iteration forward runs all nodes, then backward those that need it, in reverse. The life of a memory is from the step that
writes it first to the last one that reads or writes it; then its blocks return to a pool for later memories. Blobs that share a
memory (Split, in place, Reshape) have one life. Reading a freed memory raises (`SyncedMemory.recycle`), so that a life that is too
short by mistake gives no wrong numbers.
"""

from cpython.object cimport PyObject

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context
from minicaffe.kernels.types cimport BF16
from minicaffe.memory.layout cimport Layout
from minicaffe.memory.synced cimport RECYCLED, SyncedMemory
from minicaffe.net.node cimport Node
from minicaffe.ops.engine cimport Operation, current_epoch
from minicaffe.ops.epilogue cimport Epilogue, Part, ReluEpilogue

from collections import Counter

from minicaffe.errors import Error
from minicaffe.memory.registry import registry
from minicaffe.net.node import unchanged

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* o)

cdef enum:
    LARGE = 1 << 20     # least elements of a gradient that is used part by part, if its operation can


cdef class Life:
    """A memory of blobs of a net, and where in an iteration it is needed."""

    def __init__(self, SyncedMemory memory not None):
        self.memory, self.first, self.last = memory, -1, -1

    cdef void touch(self, int position, bint writes=False) noexcept:
        """Record a use of the memory at a position; the first use may overwrite it."""
        if self.last < 0:
            self.first, self.written = position, writes
        self.last = position

    cdef bint others_hold(self) noexcept:
        """Whether a blob outside the net shares the memory, such as one of a net inside a layer, and may read it at any time."""
        return Py_REFCNT(<PyObject*> self.memory) > self.holders + 1     # this Life has it, too

    cdef int free(self) except -1:
        if not self.others_hold():
            self.memory.recycle()


cdef class Step:
    """One or more layers that run as one."""

    def __init__(self, list nodes not None, int first):
        self.nodes, self.first = nodes, first
        self.skipped, self.frees, self.updates, self.leaves = [], [], [], []
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

    cdef bint forward(self, bint compiled, bint lasting) except -1:
        """Compute the tops; return False if an engine or a layer refused the fusion."""
        cdef bint done = self.compute(compiled, lasting)
        for layer, part in self.leaves:
            layer.leave(part)
        return done

    cdef bint compute(self, bint compiled, bint lasting) except -1:
        """`compiled`: shapes are those that the step was compiled for. `lasting`: backward may follow. What is fused runs layer by layer
        where the shapes changed, or a view or a blob outside of the net has the memory of a top between the layers.
        """
        cdef Node node = self.nodes[0]
        cdef Epilogue epilogue = None
        cdef Life life
        self.wrote_part = self.ran_fused = False
        if self.operation is not None and compiled:
            for life in self.skipped:
                compiled = compiled and not (life.memory.shown() or life.others_hold())
            epilogue = self.epilogue(lasting) if compiled else None
        if epilogue is None:
            self.one_by_one(0)
            return self.operation is None or not compiled
        for follower in self.nodes:
            (<Node> follower).renew_tops()
        self.operation.epilogue = epilogue
        try:
            node.forward()
            if self.operation.epilogue is not None:     # the engine ignored it
                self.operation.epilogue = None
                self.one_by_one(1)
                return False
        finally:
            self.operation.epilogue = None
        self.ran_fused, self.wrote_part = True, self.part is not None and self.part.written
        if self.carried:
            node.within = self.first
        for follower in self.nodes[1:]:
            if self.carried or not lasting or not (<Node> follower).needs_backward:
                (<Node> follower).within = self.first
            else:
                (<Node> follower).within = -1
        if self.skipped or self.wrote_part:
            epilogue.top.data_memory.show_private()
            for node in self.nodes:
                if self.wrote_part or node.tops[0] is not epilogue.top:
                    (<Blob> node.tops[0]).data_memory.recycle()
        return True

    cdef int one_by_one(self, int start) except -1:
        """Run layers from number `start` of the step on, each by itself."""
        cdef Node node
        for node in self.nodes[start:]:
            node.renew_tops()
            node.forward()

    cdef Epilogue epilogue(self, bint lasting):
        """Return the other layers and the part as an Epilogue of the operation, with the present parameters; None if one does not fit."""
        cdef Node node = self.nodes[0]
        cdef Epilogue epilogue = self.operation.takes_epilogue(node.tops[0], self.carried, self.operation.adds())
        for node in self.nodes[1:]:
            if not joined(epilogue, node, lasting):
                return None
        epilogue.part = self.part
        if self.part is not None:
            self.part.written = False
        return epilogue

    cdef int separate(self) except -1:
        """Compute the fused layers again one by one, for a backward that runs them one by one."""
        cdef Node head = self.nodes[0], node
        cdef Blob top = head.tops[0]
        if not self.carried or head.within < 0:
            return 0
        cdef bint gone = top.data_memory.head == RECYCLED
        data = None if gone else top.data.copy()
        top.data_memory.renew()
        try:
            head.layer.separate(head.bottoms, head.tops)
            for node in self.nodes[1:]:
                node.forward()
            head.within, self.ran_fused = -1, False
        except BaseException as error:
            if gone:
                top.data_memory.recycle()
            if isinstance(error, Error):
                head.placed(error)
            raise
        if data is not None:
            top.data[...] = data        # with the changes by later layers in place


cdef bint joined(Epilogue epilogue, Node node, bint lasting) except -1:
    """Add a node to an epilogue; return whether that is possible."""
    if epilogue.carries and not node.bottom_needs[0]:
        return False
    if not node.layer.join(epilogue, node.bottoms, node.needs_backward and lasting and not epilogue.carries):
        return False
    epilogue.top = node.tops[0]
    return True


cdef class Schedule:
    """The steps of an iteration; `compile_nodes` makes them."""

    cdef bint holds(self, unsigned long long stamp, const Context& on, bint plan) noexcept:
        """Whether it was compiled for these shapes, this context and plan, and the present settings."""
        return (self.stamp == stamp and not self.outdated and self.epoch == current_epoch() and self.threads == on.threads.count
                and self.device == (on.stream.device if on.stream != NULL else -1) and self.plan == plan)

    cdef Step step_of(self, int index):
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
        if not step.forward(not self.stale, self.lasting):
            self.outdated = True
        step.layout = (<Blob> last.tops[0]).data_memory.layout() if len(last.tops) else None
        # Lives end earlier if one backward computes those of several layers.
        self.stale = self.stale or step.stamp != step.present_stamp() or step.carried and not step.ran_fused
        if self.plan and self.plain_copies is not None:
            for i in range(step.first, step.first + len(step.nodes)):
                for memory in <list> self.plain_copies[i]:
                    memory.drop_plain()
            if not self.training:
                self.let_go(step)
            self.end(step)

    cdef int end_backward(self, Step step) except -1:
        """Free the memories that a step of backward uses last."""
        if self.plan:
            self.let_go(step)
            self.stale = self.stale or step.stamp != step.present_stamp()
            self.end(step)

    cdef int let_go(self, Step step) except -1:
        cdef Operation operation
        for operation in step.operations:
            operation.let_go()

    cdef int end(self, Step step) except -1:
        cdef Life life
        if not self.stale:
            for life in step.frees:
                life.free()

    cdef int end_update(self, list which) except -1:
        """Free the gradients of these learnable parameters, until `Runner.clear_param_diffs`."""
        cdef Life life
        if not self.plan or self.gradients is None:
            return 0
        for i in which:
            life = self.gradients[i]
            life.free()
            life.memory.pool = self.pool

    cdef int abandon_forward(self, Step failed) except -1:
        """After an error in a step, or None: make its tops and partly written tops of Concats unreadable; no slice is valid."""
        cdef Step step
        cdef Node node
        cdef Blob blob
        if failed is not None and self.plan:
            for node in failed.nodes:
                for blob in node.tops:
                    if blob.data_memory.overwritten and not any(blob.data_memory is (<Blob> read).data_memory for read in node.bottoms):
                        blob.data_memory.recycle()
        for step in self.forward:
            if step.part is not None and step.part.take() and step.part.whole.data_memory.overwritten:
                step.part.whole.data_memory.recycle()

    cdef int expire(self) except -1:
        """Drop the memories, whose references a later schedule counts; nothing is freed any more."""
        cdef Step step
        self.gradients = self.plain_copies = None
        for step in [*self.forward, *self.backward]:
            step.frees, step.skipped = [], []

    def rows(self, kept, list params, list learnable):
        """Return the steps as dicts with the fields of `minicaffe.net.listing.Row`, and by place in the iteration the bytes that live there.

        `kept`, `params` and `learnable` are those that it was compiled for.
        """
        cdef Context on = context()
        cdef Step step
        cdef Node node
        cdef Life life
        cdef int at, i, count = len(self.nodes)
        cdef list head = list(range(count)), rows = [], ends = [None] * (2 * count)
        for step in self.backward:
            head[step.first:step.first + len(step.nodes)] = [step.first] * len(step.nodes)
        cdef dict lives = find_lives(self.nodes, head, kept, params, self.training, self.left)
        for memory in {id(memory): memory for blob in params for memory in (blob.data_memory, blob.diff_memory)}.values():
            lives.pop(id(memory), None)
        for step in self.forward:
            choose_engines(step.nodes[0], on)
            at = step.first + len(step.nodes) - 1
            rows.append(row_of(step, "forward", at, self.left, [lives[id((<Blob> blob).data_memory)] for blob in step.nodes[len(step.nodes) - 1].tops
                                                     if id((<Blob> blob).data_memory) in lives]))
            ends[step.first:at + 1] = [rows[len(rows) - 1]] * len(step.nodes)
        for step in self.backward if self.training else ():
            node = step.nodes[0]
            if node.needs_backward or step.updates:
                rows.append(row_of(step, "backward", 2 * count - 1 - step.first, self.left, []))
                rows[len(rows) - 1]["updates"] = [(<Blob> learnable[i]).name for i in step.updates]
                for i in range(step.first, step.first + len(step.nodes)):
                    ends[2 * count - 1 - i] = rows[len(rows) - 1]
        for row in rows:
            row["saves"] = list(dict.fromkeys([memory_name(life.memory) for life in row["saves"] if life.last >= count]))
        for life in lives.values():
            if life.last < 0 or not life.memory.size:
                continue
            ended = self.plan and life.written and not life.kept
            if ended:
                ends[life.last]["frees"].append(memory_name(life.memory))
            for row in rows:
                if not ended or (life.first <= row["at"] and (life.last <= row["at"] and ends[life.last] is row or row["at"] < life.last)):
                    row["live"] += life.memory.size
        for row in rows:
            del row["at"]
        return rows


cdef str memory_name(SyncedMemory memory):
    return memory._name


cdef int choose_engines(Node node, const Context& on) except -1:
    """Choose the engines of the operations of a node that do not depend on the layout of its bottom."""
    cdef Operation operation
    for operation in node.layer.operations() if node.bottoms else ():
        if not operation.by_layout and operation.has_engines():
            operation.choose(on, node.bottoms[0])


cdef dict row_of(Step step, str direction, int at, dict left, list saves):
    """The row of a step; `rows` adds what depends on the lives of memories."""
    cdef Node node = step.nodes[0]
    cdef list inner = [blob for node in step.nodes[:len(step.nodes) - 1] for blob in node.tops]
    cdef list bottoms = node.bottoms + [blob for node in step.nodes[1:] for blob in node.bottoms
                                        if not any(blob is other for other in inner)]
    cdef list tops = step.nodes[len(step.nodes) - 1].tops
    blobs = [blob for node in step.nodes for blob in node.blobs]
    if direction == "forward":
        reads, writes = [blob.data_memory for blob in [*bottoms, *blobs]], [blob.data_memory for blob in tops]
    else:
        reads = [blob.diff_memory for blob in tops] + [blob.data_memory for blob in blobs]
        joining = step.first in {index for index, _ in left.values()}
        for node in step.nodes if step.first not in left else ():
            if node is step.nodes[0] or not step.carried:
                reads += [blob.data_memory for blob in [*(node.bottoms if node.layer.backward_reads_bottoms else ()),
                                                        *(node.tops if node.layer.backward_reads_tops or joining else ())]]
        node = step.nodes[0]
        writes = [blob.diff_memory for blob, needed in zip(node.bottoms, node.bottom_needs) if needed] + [blob.diff_memory for blob in blobs]
    engines = dict.fromkeys(operation.describe()["engine"] for operation in (<Node> step.nodes[0]).layer.operations())
    return {"direction": direction, "layers": [node.name for node in step.nodes], "types": [node.type for node in step.nodes],
            "part_of": step.part.by if step.part is not None else None, "engine": "/".join(filter(None, engines)) or None,
            "layout": layout_text(step.layout) if direction == "forward" else None, "reads": nbytes_of(reads), "writes": nbytes_of(writes),
            "saves": saves, "frees": [], "updates": [], "live": 0, "at": at}


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
    cdef dict lives         # without fusion; None without a plan, where all tops are written
    cdef dict places        # for each bottom of a Concat: its node, which slice, and the last node before it that uses the blob
    cdef bint training, lasting

    cdef Step step(self, int i, const Context& on):
        """The step that begins with node `i`."""
        cdef Node node = self.nodes[i]
        cdef Operation operation
        cdef Step step
        operation = fusing(node)
        try:
            if operation is None or not operation.fuses(on, node.bottoms[0], node.tops[0]):
                return Step([node], i)
            carried = operation.carries if node.bottoms == node.tops else operation.carries_own_top
            carried = carried and self.lasting and node.needs_backward and any(node.bottom_needs)
            step = Step(self.epilogue_of(i, operation, carried), i)
        except Error as error:
            raise node.placed(error)
        step.part = self.part_of(i, step) if operation.takes_epilogue.moves else None
        if len(step.nodes) > 1 or step.part is not None:
            step.operation = operation
            step.carried = carried and len(step.nodes) > 1
            last = step.nodes[len(step.nodes) - 1].tops[0]
            step.skipped = [Life((<Blob> node.tops[0]).data_memory) for node in step.nodes if node.tops[0] is not last or step.part is not None]
        return step

    cdef list epilogue_of(self, int i, Operation operation, bint carried):
        """Node `i` and those after it that its operation can compute, too: in place on its top, or the only ones to read it."""
        cdef Node node = self.nodes[i], follower
        cdef list found = [node]
        cdef Blob top = node.tops[0]
        cdef Epilogue epilogue = operation.takes_epilogue(top, carried, operation.adds())
        for k in range(i + 1, len(self.nodes)):
            follower = self.nodes[k]
            if len(follower.tops) != 1 or not unchanged(follower.layer):
                break
            if not (len(follower.bottoms) == 1 and follower.bottoms[0] is top and follower.tops[0] is top):
                if self.training or not epilogue.moves or follower.tops[0] is top or not self.only_reader(k, top) \
                        or not any(blob is top for blob in follower.bottoms):
                    break
            if not joined(epilogue, follower, self.lasting):
                break
            found.append(follower)
            top = follower.tops[0]
        return found

    cdef Part part_of(self, int i, Step step):
        """The slice of a Concat's top for the result of a step that begins with node `i`, if only the Concat reads it; or None."""
        cdef Node last = step.nodes[len(step.nodes) - 1]
        place = self.places.get(last.tops[0])
        if place is None or place[2] != i + len(step.nodes) - 1 or not self.only_reader(place[0], last.tops[0]):
            return None
        return (<Node> self.nodes[place[0]]).layer.parts[place[1]]

    cdef bint only_reader(self, int index, Blob blob) except -1:
        """Whether node `index`, in forward, is the only reader of these data, so that a fused step need not write them."""
        if self.lives is None:
            return False
        cdef Life life = self.lives[id(blob.data_memory)]
        return life.written and not life.kept and life.last == index and life.memory.size > 0


cdef Operation fusing(Node node):
    """The operation of a node that may compute more than its layer; None if it has none."""
    if len(node.tops) == 1 and node.bottoms and unchanged(node.layer):
        for operation in node.layer.operations():
            return operation if operation.takes_epilogue is not None else None
    return None


cdef Life life_of(dict lives, SyncedMemory memory):
    """The life of a memory among those by its id; a new one at its first use."""
    if id(memory) not in lives:
        lives[id(memory)] = Life(memory)
    return lives[id(memory)]


cdef dict find_lives(list nodes, list head, kept, list params, bint training, dict left):
    """The lives of the memories of all blobs, by the memory's id.

    `head` has for each node the first node of the step that computes its backward, `left` what `find_left` gives.
    """
    cdef Node node, first
    cdef Blob blob
    cdef Life life
    cdef int i, at, count = len(nodes)
    cdef dict lives = {}
    cdef set joining = {index for index, _ in left.values()}
    for blob in {blob for node in nodes for blob in [*node.bottoms, *node.tops]}:
        for memory in (blob.data_memory, blob.diff_memory):
            life = life_of(lives, memory)
            life.holders += 1
    for blob in [*kept, *params]:
        for memory in (blob.data_memory, blob.diff_memory):
            life_of(lives, memory).kept = True
    for node in nodes:
        if not unchanged(node.layer):   # a user's layer may write a part of an array, and read what it wrote before
            for memory in (*[blob.data_memory for blob in node.tops], *[blob.diff_memory for blob in node.bottoms]):
                life_of(lives, memory).kept = True
    for i, node in enumerate(nodes):
        for blob in node.bottoms:
            life_of(lives, blob.data_memory).touch(i)
        for blob in node.tops:
            life_of(lives, blob.data_memory).touch(i, True)
    for i in reversed(range(count)) if training else ():
        node, first = nodes[i], nodes[head[i]]
        if not node.needs_backward:
            continue
        at = 2 * count - 1 - i
        for blob in node.tops:
            life_of(lives, blob.diff_memory).touch(at)
        for blob, needed in zip(node.bottoms, node.bottom_needs):
            if needed:
                life_of(lives, blob.diff_memory).touch(at, True)
        if head[i] != i and first.bottoms == first.tops:    # it kept what it needs, and reads none of their data
            continue
        at = 2 * count - 1 - <int> head[i]
        for blob in (*(node.bottoms if node.layer.backward_reads_bottoms and i not in left else ()),
                     *(node.tops if node.layer.backward_reads_tops and i not in left or i in joining else ())):
            life = life_of(lives, blob.data_memory)
            if life.last < at:
                life.touch(at)
    for blob in params:
        life = life_of(lives, blob.diff_memory)
        life.holders += 1
    return lives


cdef dict find_places(list nodes, dict lives):
    """For each bottom of a Concat: its node, the number of the slice, and the last node before it that uses the blob."""
    cdef Node node
    cdef Blob blob
    found, used = {}, {}
    for i, node in enumerate(nodes):
        if node.layer.always_reshape:       # from here on shapes depend on values
            break
        if node.layer.parts and unchanged(node.layer) and (<Life> lives[id((<Blob> node.tops[0]).data_memory)]).first == i:
            for j in range(len(node.layer.parts)):
                blob = node.bottoms[j]
                found[blob] = i, j, used.get(id(blob.data_memory), -1)
        for blob in [*node.bottoms, *node.tops]:
            used[id(blob.data_memory)] = i
    return found


cdef dict find_left(list nodes, dict places):
    """The ReLUs whose gradient the Concat behind them computes, by number: the number of the Concat, and of the slice.

    The Concat needs no data but its top's, so that in a training, too, slices are written there directly. No layer may change it.
    """
    cdef Node node, whole, later
    cdef Blob joined_top
    found = {}
    for blob, (index, which, last) in places.items():
        if last < 0:
            continue
        node, whole = nodes[last], nodes[index]
        if not (hasattr(node.layer, "leave") and unchanged(node.layer) and node.needs_backward and whole.bottom_needs[which]
                            and node.bottoms == node.tops == [blob] and node.layer.join(ReluEpilogue(blob), node.bottoms, True)):
            continue
        joined_top = whole.tops[0]
        if not any([top in later.bottoms and (<Blob> top).data_memory is joined_top.data_memory
                    for later in nodes[index + 1:] for top in later.tops]):
            found[last] = index, which
    return found


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


cdef int see_large(Step step, list learnable, users) except -1:
    """Find a gradient that the step's operation gives part by part."""
    cdef Node node = step.nodes[0]
    cdef Blob blob
    operations = node.layer.operations()
    if len(step.nodes) > 1 or len(operations) != 1 or not operations[0].learns_in_parts or not unchanged(node.layer) or not node.blobs:
        return 0        # of several operations one may read it later
    for i in step.updates:
        blob = learnable[i]
        if blob.count >= LARGE and blob is node.blobs[0] and users[id(blob.data_memory)] == users[id(blob.diff_memory)] == 1:
            step.large = i


cdef Schedule compile_nodes(list nodes, kept, list params, list learnable, bint training, bint plan, unsigned long long stamp,
                            const Context& on):
    """Compile a net, whose shapes are up to date, into a Schedule.

    Parameters
    ----------
    nodes : list of Node
    kept : collection of Blob
        What is read after the iteration: data and diff of these.
    params, learnable : list of Blob
        All parameters, whose memories the steps never free, and those that are learned.
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
    cdef Life life
    cdef int i, count = len(nodes)
    cdef list head = list(range(count)), ends = [None] * (2 * count)
    made.nodes, made.training, made.plan, made.lasting = nodes, training, plan, training or not plan
    made.stamp, made.epoch, made.threads, made.device = stamp, current_epoch(), on.threads.count, -1
    if on.stream != NULL:
        made.device = on.stream.device
    fusion.nodes, fusion.training, fusion.lasting, fusion.places = nodes, training, made.lasting, {}
    made.left = {}
    if plan:
        fusion.lives = find_lives(nodes, head, kept, params, training, {})
        fusion.places = find_places(nodes, fusion.lives)
        if training and on.stream == NULL:
            made.left = find_left(nodes, fusion.places)
            fusion.lives = None
            fusion.lives = find_lives(nodes, head, kept, params, training, made.left)
    made.forward, made.backward = [], []
    i = 0
    while i < count:
        step = fusion.step(i, on)
        for k, node in enumerate(step.nodes, i):
            if step.carried:
                made.left.pop(k, None)      # the fused backward computes its gradient
            if hasattr(node.layer, "leave"):
                index, which = made.left.get(k, (0, 0))
                step.leaves.append((node.layer, (<Node> nodes[index]).layer.parts[which] if k in made.left else None))
        made.forward.append(step)
        if step.carried:
            head[i:i + len(step.nodes)] = [i] * len(step.nodes)
        ends[i:i + len(step.nodes)] = [step] * len(step.nodes)
        i += len(step.nodes)
    learned, made.unlearned = completion(nodes, learnable, head)
    users = Counter(id(memory) for node in nodes for blob in node.blobs for memory in (blob.data_memory, blob.diff_memory))
    for i in reversed(range(count)):
        if head[i] == i:
            step = Step([node for node, k in zip(nodes, head) if k == i], i)
            step.carried, step.updates = len(step.nodes) > 1, learned[i]
            see_large(step, learnable, users)
            made.backward.append(step)
            ends[2 * count - 1 - i] = step
    for i in range(count):
        ends[2 * count - 1 - i] = ends[2 * count - 1 - <int> head[i]]
    if not plan:
        return made
    made.plain_copies = [[blob.data_memory for blob in node.blobs] for node in nodes]
    fusion.lives = None     # each Life has a reference to its memory, and `others_hold` allows for one
    cdef dict lives = find_lives(nodes, head, kept, params, training, made.left)
    made.pool = registry.host_pool()
    made.gradients = [life_of(lives, blob.diff_memory) for blob in learnable]
    for step in made.forward:
        step.skipped = [lives[id((<Life> life).memory)] for life in step.skipped]
    for life in lives.values():
        if not life.kept and life.written and life.memory.size:
            life.memory.pool, life.memory.overwritten = made.pool, True
            (<Step> ends[life.last]).frees.append(life)
    return made
