"""Runner: the loops that run the nodes of a net forward and backward (Caffe net.cpp, ForwardFromTo and BackwardFromTo).

Different from Caffe: a layer's reshape runs only when a blob changed (see layer.pyx), a fault raises with the layer's place, and
threads take turns (lock.pyx).
"""

import functools
from collections import Counter

from minicaffe.blob cimport Blob
from minicaffe.net.lifetimes cimport Lifetimes, completion, heads
from minicaffe.layer cimport stamps
from minicaffe.memory.reporter cimport Reporter
from minicaffe.memory.synced cimport RECYCLED
from minicaffe.net.lock cimport NetLock
from minicaffe.net.node cimport ALONE, CARRIED, Node
from minicaffe.device.context cimport Context, context
from minicaffe.ops.engine cimport Operation

from minicaffe.errors import ConfigError, ShapeError, check_callable, check_type, close_matches, int_of, shown
from minicaffe.memory.reporter import reporter
from minicaffe.net.node import link_followers
from minicaffe.net.observe import log_backward, log_forward, log_norms


PLANS = ("memory",)     # what a net may be asked to do where nobody looks in between
BEFORE_FORWARD, AFTER_FORWARD, BEFORE_BACKWARD, AFTER_BACKWARD = range(4)

cdef Reporter _reporter = reporter

cdef enum:
    TOGETHER = 1 << 19      # elements of gradients that are updated in one call: fewer cost more by the call than by their memory


cdef class Runner:
    """What of a net runs.

    Parameters
    ----------
    nodes : list of Node
        In the order in which they run.
    param_table : ParamTable
        Of all their parameters.
    debug_info : bool
        Log the mean of every blob, as Caffe does.
    """

    cdef readonly list nodes
    cdef readonly object param_table
    cdef readonly list blob_list           # the tops of all nodes, in the order in which they were made
    cdef readonly list learnable_params
    cdef readonly NetLock lock             # held by the thread that runs or changes the net
    cdef public bint debug_info
    cdef int device             # the GPU that it ran on first, -1 if none
    cdef bint loss_at_once      # a loss is overwritten in place, so that it must be read when its layer has run
    cdef list param_counts      # of all parameters, as their layers made them
    cdef list params_made       # how many each layer made
    cdef list computed          # the blobs whose data layers write, not those that sources give, and the learnable parameters
    cdef dict loss_copies       # top with a loss -> its copy (late_loss)
    cdef list hooks
    cdef readonly str plan          # which of PLANS is asked for; None or empty: none
    cdef public bint recycles       # False: no memory is recycled now, as while a CUDA graph knows its addresses
    cdef set kept                   # blobs that are read after a run
    cdef bint training              # a run forward is followed by one backward
    cdef Lifetimes lifetimes        # None until they are needed
    cdef public object updater      # updater(which, part, last) takes the learnable parameters, by number, whose gradients are complete, and
                                    # returns those that it has used; None again when it has had all
    cdef public bint in_parts       # whether it takes parts of a large gradient
    cdef tuple complete_by          # the stamp and what `completion` returned, without lifetimes
    cdef list complete              # those of them that it has not had yet, and
    cdef long long waiting          # how many elements they have

    def __init__(self, list nodes not None, param_table not None, bint debug_info=False):
        cdef Node node
        self.nodes, self.param_table, self.debug_info = nodes, param_table, debug_info
        self.device = -1
        self.hooks = [[], [], [], []]
        written = Counter(top for node in nodes for top in node.tops)
        self.blob_list = list(written)
        self.loss_at_once = any(weight and written[top] > 1 for node in nodes for top, weight in zip(node.tops, node.loss_weights))
        given = set()
        for node in nodes:
            if not node.bottoms or (node.type == "Split" and node.bottoms[0] in given):     # whose tops are its bottom
                given.update(node.tops)
        self.share_weights()
        self.learnable_params = [param_table.params[i] for i in param_table.learnable]
        self.computed = [blob for blob in self.blob_list if blob not in given] + self.learnable_params
        self.param_counts = [blob.count for blob in param_table.params]
        self.params_made = [len(node.layer.blobs) for node in nodes]
        link_followers(nodes)
        self.lock = NetLock([*self.blob_list, *param_table.params])
        self.recycles = self.in_parts = True
        self.loss_copies = {}

    def set_plan(self, plan, kept, bint training):
        """Compute by a plan wherever the net runs as a whole and nobody looks in between.

        Parameters
        ----------
        plan : str or None
            One of PLANS. With ``memory`` blobs share memory (lifetimes.pyx).
        kept : list of Blob
            That are read after a run; those that sources give and the losses are among them anyway.
        training : bool
            A run forward is followed by one backward.

        Raises
        ------
        ConfigError
            If it is none of them.
        """
        if plan and check_type(plan, str, "plan", "a str") not in PLANS:
            raise ConfigError(f"must be one of {', '.join(PLANS)}, got '{plan}'{close_matches(plan, PLANS)}", field="plan")
        self.plan, self.training, self.lifetimes = plan, training, None
        self.kept = {*kept, *(top for node in self.nodes for top, weight in zip(node.tops, node.loss_weights)
                              if weight or not node.bottoms)}

    cdef bint whole(self, int start, int end) except -1:
        """Whether a plan holds for a run of layers `start` to `end`."""
        return start == 0 and end == len(self.nodes) - 1 and self.watcher() is None

    def forget_lifetimes(self):
        """Drop the lifetimes of blobs, which hold their memory; the next run finds them again."""
        self.lifetimes = None

    cdef Lifetimes lifetimes_of(self, int start, int end):
        """Return which memories end in a run of layers `start` to `end`; None if none do."""
        if not self.plan or not self.recycles or not self.whole(start, end):
            return None
        stamp = self.stamp()
        if self.lifetimes is None or self.lifetimes.stamp != stamp:
            self.lifetimes = Lifetimes(self.nodes, self.kept, self.param_table.params, self.learnable_params, self.training, stamp)
        return self.lifetimes

    cpdef double forward_from_to(self, start, end) except? -1:
        """Run layers `start` to `end`, both included; return the sum of their losses.

        Raises
        ------
        ConfigError
            If `start` is negative or `end` is not a layer's index.
        """
        start, end = int_of(start, "start"), int_of(end, "end")
        self.check_range(start, end)
        with self.lock:
            return self.compute(True, start, end) + self.losses(start, end)

    cpdef backward_from_to(self, start, end):
        """Run the backward of layers `start` down to `end`, both included, where it is needed."""
        start, end = int_of(start, "start"), int_of(end, "end")
        self.check_range(end, start)
        self.backward_of(start, end)

    cdef int backward_of(self, int start, int end) except -1:
        cdef Lifetimes lifetimes
        cdef Node node
        cdef int i
        cdef bint offers
        cdef list complete
        with self.lock:
            self.check_ready()
            self.complete, self.waiting = [], 0
            lifetimes = self.lifetimes_of(end, start)
            offers = self.updater is not None and self.whole(end, start)
            if offers:
                learned, unlearned = self.completion(lifetimes)
            if start >= end and (<Node> self.nodes[end]).ran == CARRIED:
                self.separate(end)
            for i in range(end, start + 1):
                node = <Node> self.nodes[i]
                if node.carries() and (i + node.fused > start or self.watcher() is not None):
                    node.separate()
            for i in range(start, end - 1, -1):
                node = <Node> self.nodes[i]
                complete = learned[i] if offers else None
                if self.hooks[2]:
                    self._call_hooks(BEFORE_BACKWARD, i)
                if node.needs_backward:
                    self.tell("begin", i, "backward")
                    try:
                        if node.ran != CARRIED:
                            node.renew_bottoms()
                            if offers and self.in_parts and lifetimes is not None and lifetimes.parts[i] is not None:
                                complete = self.backward_in_parts(i, lifetimes)
                            else:
                                node.backward()
                        if lifetimes is not None:
                            lifetimes.end_backward(i, node)
                    finally:    # what comes after an error is not the layer's
                        self.tell("end", i, "backward")
                    if self.debug_info:
                        log_backward(node)
                if offers:      # of followers, too, where the node itself needs no backward
                    self.offer(lifetimes, complete)
                if self.hooks[3]:
                    self._call_hooks(AFTER_BACKWARD, i)
            if offers:
                self.offer(lifetimes, unlearned, True)
                self.updater = None

    cdef list backward_in_parts(self, int index, Lifetimes lifetimes):
        """Run the backward of a node, offer a large gradient part by part to the updater, and return which it has not had."""
        cdef Operation operation
        operation, large = lifetimes.parts[index]
        if (<Blob> self.learnable_params[large]).diff_memory.shown():       # whoever holds a view of it reads it there
            (<Node> self.nodes[index]).backward()
            return lifetimes.learned[index]
        operation.consumer = functools.partial(self.updater, [large])
        try:
            (<Node> self.nodes[index]).backward()
            taken = operation.consumer is None
        finally:
            operation.consumer = None
        if not taken:
            return lifetimes.learned[index]
        lifetimes.end_update([large])
        return [i for i in lifetimes.learned[index] if i != large]

    cdef int offer(self, Lifetimes lifetimes, list which, bint last=False) except -1:
        """Let the updater have the gradients of these parameters; to be updated small ones wait for others. Those that it has used end."""
        for i in which:
            self.complete.append(i)
            self.waiting += (<Blob> self.learnable_params[i]).count
        if last or self.waiting >= (TOGETHER if self.in_parts else 1):
            used = self.updater(self.complete, None, last)
            if lifetimes is not None:
                lifetimes.end_update(used)
            self.complete, self.waiting = [], 0

    cdef tuple completion(self, Lifetimes lifetimes):
        """For each node the list of the learnable parameters whose gradients its backward completes, and those of no node."""
        if lifetimes is not None:
            return lifetimes.learned, lifetimes.unlearned
        stamp = self.stamp()
        if self.complete_by is None or self.complete_by[0] != stamp:
            self.complete_by = stamp, completion(self.nodes, self.learnable_params, heads(self.nodes))
        return self.complete_by[1]

    def backward_layer(self, index):
        """Run the backward of one layer, whether the net needs it or not; raise ConfigError for a layer that there is not."""
        index = int_of(index, "index")
        if not 0 <= index < len(self.nodes):
            raise ConfigError(f"must be from 0 to {len(self.nodes) - 1}, got {index}", field="index")
        with self.lock:
            self.check_ready()
            self.separate(index)
            self.tell("begin", index, "backward")
            try:
                (<Node?> self.nodes[index]).renew_bottoms()
                (<Node> self.nodes[index]).backward()
            finally:
                self.tell("end", index, "backward")

    def forward_backward(self, bint run_sources=True, bint read_loss=True, on_loss=None):
        """Run the whole net forward and backward.

        Parameters
        ----------
        run_sources : bool
            False: `run_sources` was called already for this batch.
        read_loss : bool
            False: return 0, as while a CUDA graph is recorded, when there is no loss yet.
        on_loss : callable, optional
            Gets the loss before backward begins.

        Returns
        -------
        float
            The loss.
        """
        cdef int last = len(self.nodes) - 1
        cdef double loss
        if on_loss is not None and not callable(on_loss):
            check_callable(on_loss, "on_loss")
        with self.lock:
            loss = self.compute(run_sources, 0, last)
            if read_loss:
                loss += self.losses(0, last)
            if on_loss is not None:
                on_loss(loss)
            self.backward_of(last, 0)
            if self.debug_info:
                log_norms(self.learnable_params)
            return loss

    cdef int separate(self, int index) except -1:
        """Let a node run by itself that was computed with others, and whose backward would be, too."""
        while (<Node> self.nodes[index]).ran == CARRIED:
            index -= 1
        return (<Node> self.nodes[index]).separate()

    cdef int check_range(self, low, high) except -1:
        if not (0 <= low <= len(self.nodes) and -1 <= high < len(self.nodes)):
            raise ConfigError(f"layers {shown(low)}..{shown(high)} are out of range, the net has {len(self.nodes)}")

    cdef double compute(self, bint sources, int start, int end) except? -1:
        """Run layers forward, those without bottoms only if `sources`; return the losses that cannot be read later."""
        cdef double loss = 0
        cdef Lifetimes lifetimes = self.lifetimes_of(start, end)
        cdef Node node
        cdef int i, most, done = -1     # the last of the layers that another has computed, too
        cdef bint unseen = self.watcher() is None
        self.check_ready()
        if lifetimes is not None:
            lifetimes.begin_forward()
        if end >= start and (<Node> self.nodes[start]).ran == CARRIED:
            self.separate(start)
        for i in range(start, end + 1):
            node = <Node> self.nodes[i]
            if not sources and not len(node.bottoms):
                continue
            if self.hooks[0]:
                self._call_hooks(BEFORE_FORWARD, i)
            self.tell("begin", i, "forward")
            try:
                if i > done:
                    node.renew_tops()
                    most = min(end - i, <int> len(node.followers)) if unseen else 0
                    if most > node.in_place:
                        most = lifetimes.unread(i, node, most) if lifetimes is not None else node.in_place
                    parts = lifetimes.parts_of(i, node, most) if lifetimes is not None else None
                    done = i + node.forward_with(most, lifetimes is None or self.training, parts)
                if self.loss_at_once:
                    loss += self.loss_at(i)
                if lifetimes is not None:
                    lifetimes.end_forward(i, node)
            except BaseException:
                if lifetimes is not None:
                    lifetimes.abandon_forward()
                raise
            finally:        # what comes after an error is not the layer's
                self.tell("end", i, "forward")
            if self.debug_info:
                log_forward(node)
            if self.hooks[1]:
                self._call_hooks(AFTER_FORWARD, i)
        return loss

    cdef int check_ready(self) except -1:
        """Raise if a layer's parameters are not what it was made for, or the net's memory lies on another GPU."""
        cdef Context on = context()
        cdef list params = self.param_table.params
        cdef Blob blob
        cdef int i
        self.check_params()
        for i in range(len(params)):
            blob = <Blob> params[i]
            if blob.count != <long long> self.param_counts[i]:
                raise ShapeError(f"{self.param_table.places[i]} was reshaped to {list(blob.shape)}, its layer was made for "
                                 f"{self.param_counts[i]} values; change the prototxt and build the net anew")
        if on.stream == NULL:
            return 0
        if self.device < 0:
            self.device = on.stream.device
        if self.device != on.stream.device:
            raise ConfigError(f"the net's memory is on GPU {self.device}, the present one is GPU {on.stream.device}; call "
                              f"set_device({self.device}) before using it, or make the net anew")

    cdef int check_params(self) except -1:
        """Raise if somebody changed a layer's list of parameters, from which it takes them without a look."""
        cdef int i
        for i in range(len(self.nodes)):
            (<Node> self.nodes[i]).check_params(self.params_made[i])
        return 0

    cdef double losses(self, int start, int end) except? -1:
        """The sum of the losses of layers that have run; read last, since a GPU is waited for then."""
        cdef double loss = 0
        cdef int i
        for i in range(start, end + 1 if not self.loss_at_once else start):
            loss += self.loss_at(i)
        return loss

    cdef double loss_at(self, int index) except? -1:
        """Read a layer's share of the loss, and report it."""
        cdef Node node = self.nodes[index]
        cdef double loss = node.loss()
        if _reporter.recording and node.layer.has_loss:
            self.tell("loss", index, repr(loss))
        return loss

    cdef int tell(self, str kind, int index, str detail) except -1:
        """Report something of a node to who records; of one that is computed by a node before it also which."""
        if not _reporter.recording:
            return 0
        cdef Node node = self.nodes[index]
        cdef Node first = node
        while kind == "end" and first.ran != ALONE and (detail == "forward" or node.ran == CARRIED):
            index -= 1
            first = self.nodes[index]
        return _reporter.event(kind, None, <size_t> <void*> node, 0, node.name,
                               detail if first is node else f"{detail} with {first.name}")

    def reshape_all(self):
        """Propagate changed input shapes through the layers without computing (Caffe Net::Reshape)."""
        cdef Node node
        with self.lock:
            self.check_params()
            for node in self.nodes:
                node.reshape()

    def clear_param_diffs(self):
        """Set the gradient of every learnable parameter to zero."""
        cdef Blob blob
        cdef Context on = context()
        with self.lock:
            for blob in self.learnable_params:
                if blob.diff_memory.head == RECYCLED:
                    blob.diff_memory.renew()
                else:
                    blob.fill_diff_on(on, 0)

    def update(self):
        """Subtract each learnable parameter's diff from its data."""
        names = ", ".join([blob.name for blob in self.learnable_params]) if _reporter.recording else ""
        with self.lock:
            if _reporter.recording:
                _reporter.event("begin", None, 0, 0, names, "update")
            for blob in self.learnable_params:
                blob.update()
            if _reporter.recording:
                _reporter.event("end", None, 0, 0, names, "update")

    def share_weights(self):
        """Point parameters that share a name at their owner's memory."""
        self.param_table.share()

    def add_hook(self, when, hook):
        """Call ``hook(layer index)`` at BEFORE_FORWARD, AFTER_FORWARD, BEFORE_BACKWARD or AFTER_BACKWARD of every layer.

        Raises
        ------
        ConfigError
            If `when` is none of them.
        WrongTypeError
            If `hook` cannot be called.
        """
        self._hooks_at(when).append(check_callable(hook, "hook"))

    def remove_hook(self, when, hook):
        """Take back what `add_hook` added; while there are no hooks a plan or a CUDA graph may hold again.

        Raises
        ------
        ConfigError
            If it was not added there.
        """
        hooks = self._hooks_at(when)
        if hook not in hooks:
            raise ConfigError(f"this hook was not added there, or was removed before: {shown(hook)}", field="hook")
        hooks.remove(hook)

    cdef list _hooks_at(self, when):
        when = int_of(when, "when")
        if not 0 <= when < len(self.hooks):
            raise ConfigError(f"must be from 0 to {len(self.hooks) - 1}, BEFORE_FORWARD to AFTER_BACKWARD, got {shown(when)}", field="when")
        return self.hooks[when]

    def _call_hooks(self, int when, int index):
        for hook in self.hooks[when]:
            hook(index)

    # ---- for CUDA graphs (solver/graph.py)

    def run_sources(self):
        """Run the layers without bottoms, and put what they give on the present device."""
        cdef Context on = context()
        cdef Node node
        cdef Blob blob
        for node in self.nodes:
            if not len(node.bottoms):
                node.forward()
                for blob in node.tops:
                    blob.data_on(on)

    def watcher(self):
        """Return who looks into each layer's run, which a CUDA graph cannot allow, or None."""
        if any(self.hooks):
            return "callbacks run between layers"
        if self.debug_info:
            return "debug_info looks at every blob"
        return None

    def capture_obstacle(self):
        """Return why a CUDA graph cannot hold a run of this net, or None."""
        if (reason := self.watcher()) is not None:
            return reason
        if self.loss_at_once:
            return "a layer overwrites a loss in place"
        for node in self.nodes:
            if (reason := node.layer.capture_obstacle()) is not None:
                return f"layer '{node.name}' ({node.type}): {reason}"
        return None

    def inspect_inputs(self):
        """Let layers check on the host what replaying does not check, such as labels."""
        cdef Node node
        for node in self.nodes:
            node.inspect()

    def stamp(self):
        """Return a number that changes whenever a blob gets another shape or memory."""
        return stamps(self.blob_list, self.learnable_params)

    def own_on_device(self, others):
        """Make the device's copy the only valid one of every blob that is there, but for what sources give; of `others` too.

        Labels are checked on the host, so what sources give stays valid there, also where it is the data of a Split's tops.
        """
        cdef Blob blob
        for other in check_type(others, list, "others", "a list of Blob"):
            check_type(other, Blob, "each of others", "a Blob")
        for blob in self.computed + others:
            if blob.data_memory.device is not None:
                blob.data_memory.mutable_gpu_data_ptr()
        for blob in self.blob_list + self.learnable_params + others:
            if blob.diff_memory.device is not None:
                blob.diff_memory.mutable_gpu_data_ptr()

    def loss_of_outputs(self):
        """Return the loss of the last run, from the tops."""
        return self.losses(0, len(self.nodes) - 1)

    def late_loss(self):
        """Return a function that returns the loss of the last run, which a GPU may still compute.

        It reads copies, so it may be called after later runs, up to the next call of `late_loss`.
        """
        cdef Node node
        kept = []
        for node in self.nodes:
            if node.layer.has_loss:
                kept.append((node, [self.loss_copy(top) if weight else top for top, weight in zip(node.tops, node.loss_weights)]))
        return functools.partial(sum_of_losses, kept)

    cdef Blob loss_copy(self, Blob top):
        """Return a blob with a copy of the data of `top`, and its diff, the loss weights; on a GPU the host does not wait for the copy."""
        cdef Blob copy = self.loss_copies.get(top)
        if copy is None or copy.shape != top.shape or copy.diff_memory is not top.diff_memory:
            copy = self.loss_copies[top] = Blob(top.shape, top.dtype, top.name)
            copy.share_diff(top)
        copy.copy_from(top)
        return copy


def sum_of_losses(list kept):
    """Return the loss from copies of tops, as ``[(node, tops)]``."""
    cdef double loss = 0
    for node, tops in kept:
        loss += (<Node> node).loss(tops)
    return loss
