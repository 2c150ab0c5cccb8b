"""Runner: the loops that run the nodes of a net forward and backward (Caffe net.cpp, ForwardFromTo and BackwardFromTo).

A run from the first layer to the last follows the net's schedule (schedule.pyx). A part of one, and one that hooks or
debug_info observe, goes layer by layer: nothing is fused, and no memory is freed. Different from Caffe: a layer's reshape runs
only when a blob changed (see layer.pyx), a fault raises with the layer's place, and one thread at a time runs a net (lock.pyx).
"""

import functools
from collections import Counter

from minicaffe.blob cimport Blob
from minicaffe.layer cimport stamps
from minicaffe.memory.reporter cimport Reporter
from minicaffe.net.lock cimport NetLock
from minicaffe.net.node cimport Node
from minicaffe.net.compile cimport compile_nodes
from minicaffe.net.gradients cimport clear_gradients
from minicaffe.net.schedule cimport Schedule, Step
from minicaffe.net.schedule_rows cimport schedule_rows
from minicaffe.device.context cimport Context, context
from minicaffe.engines.engine cimport Operation

from minicaffe.errors import ConfigError, ShapeError, check_callable, check_type, close_matches, int_of, shown
from minicaffe.memory.reporter import reporter
from minicaffe.net.recorded import RecordedWork

PLANS = ("memory",)     # of nets: see `Net`
BEFORE_FORWARD, AFTER_FORWARD, BEFORE_BACKWARD, AFTER_BACKWARD = range(4)

cdef Reporter _reporter = reporter

cdef enum:
    UPDATE_CHUNK = 1 << 19      # least elements of gradients in one update: below, the call costs more than its memory traffic


cdef class Runner:
    """The part of a net that runs its nodes.

    Parameters
    ----------
    nodes : list of Node
        In the order in which they run.
    param_table : ParamTable
        Of all their parameters.
    overwritten : set of SyncedMemory
        Those of blobs that layers change in place.
    debug_info : bool
        Log the mean of every blob, as Caffe does.
    """

    cdef readonly list nodes
    cdef readonly object param_table
    cdef readonly list blob_list           # the tops of all nodes, in the order in which they were made
    cdef readonly list learnable_params
    cdef readonly NetLock lock             # held by the thread that runs or changes the net
    cdef public bint debug_info
    cdef int device             # the GPU of its first run, -1 if none
    cdef bint loss_overwritten      # a loss is overwritten in place, so that it must be read when its layer has run
    cdef list param_counts      # of all parameters, as their layers made them
    cdef list params_made       # how many each layer made
    cdef readonly set source_blobs              # blobs with the data of sources, which no layer changes in place
    cdef readonly list hooks        # of Net.add_hook, by when they are called
    cdef readonly str plan          # which of PLANS is asked for; None or empty: none
    cdef public bint use_graphs     # on a GPU, replay a forward in phase TEST as one CUDA graph where that can be
    cdef object recorded            # RecordedWork: that forward
    cdef set kept                   # blobs that are read after a run
    cdef bint training              # a run forward is followed by one backward
    cdef Schedule compiled          # the latest schedule; None: not compiled yet
    cdef Schedule last_schedule               # of the last run forward as a whole
    cdef bint followed_schedule              # the last run forward was a whole one, by `last_schedule`
    cdef bint reshaped              # `reshape_all` has changed a shape since
    cdef object on_gradients        # while backward runs: see `forward_backward`
    cdef bint in_parts
    cdef list complete              # learnable parameters, by number, with complete gradients that `on_gradients` has not got yet
    cdef long long unreported_elements          # their elements

    def __init__(self, list nodes not None, param_table not None, overwritten, bint debug_info=False):
        cdef Node node
        self.nodes, self.param_table, self.debug_info = nodes, param_table, debug_info
        self.device = -1
        self.hooks = [[], [], [], []]
        written = Counter(top for node in nodes for top in node.tops)
        self.blob_list = list(written)
        self.loss_overwritten = any(weight and written[top] > 1
                                    for node in nodes for top, weight in zip(node.tops, node.loss_weights))
        sources = {(<Blob> top).data_memory for node in nodes if not node.bottoms for top in node.tops} - overwritten
        self.source_blobs = {blob for blob in self.blob_list if (<Blob> blob).data_memory in sources}
        parameter_free = set()
        for node in nodes:
            node.parameter_free = (not len(node.bottoms) or node.layer.reads_shapes_only
                                   or not node.blobs and parameter_free.issuperset(node.bottoms))
            if node.parameter_free:
                parameter_free.update(node.tops)
        self.share_weights()
        self.learnable_params = [param_table.params[i] for i in param_table.learnable]
        self.param_counts = [blob.count for blob in param_table.params]
        self.params_made = [len(node.layer.blobs) for node in nodes]
        self.lock = NetLock([*self.blob_list, *param_table.params])
        self.use_graphs = True
        self.recorded = RecordedWork("a forward")

    def set_plan(self, plan, kept, bint training):
        """Set the plan of whole runs without hooks and `debug_info`.

        Parameters
        ----------
        plan : str or None
            One of PLANS. With ``memory`` blobs share memory (schedule.pyx).
        kept : list of Blob
            Of any shapes: read after a run; the tops of sources and the losses are always added.
        training : bool
            A run forward is followed by one backward.

        Raises
        ------
        ConfigError
            If it is none of them.
        """
        if plan and check_type(plan, str, "plan", "a str") not in PLANS:
            raise ConfigError(f"must be one of {', '.join(PLANS)}, got '{plan}'{close_matches(plan, PLANS)}", field="plan")
        with self.lock:
            self.plan, self.training = plan, training
            self.recorded.forget()
            self.forget_schedule()
            self.kept = {*kept, *(top for node in self.nodes for top, weight in zip(node.tops, node.loss_weights)
                                  if weight or not node.bottoms)}

    cdef bint whole(self, int start, int end) except -1:
        """Whether a plan holds for a run of layers `start` to `end`."""
        return start == 0 and end == len(self.nodes) - 1 and self.observer_reason() is None

    def forget_schedule(self):
        """Drop the schedule, which holds memory; the next forward compiles the net again."""
        if self.compiled is not None:
            self.compiled.expire()
        self.compiled = None

    cdef Schedule current_schedule(self):
        """Return the schedule for the present shapes, memories, device and settings; compile the net if it has none."""
        cdef Context on = context()
        cdef bint plan = bool(self.plan)
        cdef Node node
        if self.compiled is None or not self.compiled.holds(self.stamp(), on, plan):
            for node in self.nodes:
                if len(node.bottoms) and not node.layer.always_reshape:     # the others' shapes depend on values and batches
                    node.reshape()
            self.forget_schedule()
            self.compiled = compile_nodes(self.nodes, self.kept, self.param_table.params, self.learnable_params,
                                          self.training, plan, self.stamp(), on)
        return self.compiled

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
            return (self.replay() if self.can_replay(start, end) else self.compute(True, start, end)) + self.losses(start, end)

    cpdef backward_from_to(self, start, end):
        """Run the backward of layers `start` down to `end`, both included, where it is needed."""
        start, end = int_of(start, "start"), int_of(end, "end")
        self.check_range(end, start)
        self.run_backward_range(start, end)

    cdef bint run_backward_range(self, int start, int end, on_gradients=None, bint in_parts=False) except -1:
        """Run backward; return whether `on_gradients` got the gradients: it gets none in an observed run."""
        cdef int i
        with self.lock:
            self.check_ready()
            if self.reshaped:
                raise ShapeError("the net was reshaped since the last forward; run forward before backward")
            self.on_gradients, self.in_parts, self.complete, self.unreported_elements = on_gradients, in_parts, [], 0
            try:
                if self.followed_schedule and self.whole(end, start):
                    self.run_scheduled_backward(self.last_schedule)
                    return True
                for i in range(end, start + 1):
                    self.unfuse(i)
                for i in range(start, end - 1, -1):
                    self.run_layer_backward(i)
                return False
            finally:
                self.on_gradients = None

    def skip_backward(self):
        """With a plan, free what the last forward saved for a backward that will not run."""
        cdef Step step
        with self.lock:
            if self.followed_schedule:
                self.followed_schedule = False
                for step in self.last_schedule.backward:
                    self.last_schedule.finish_backward_step(step)

    cdef int run_layer_backward(self, int index) except -1:
        """Run the backward of one layer, in an observed run or a part of one."""
        cdef Node node = self.nodes[index]
        self.call_hooks(BEFORE_BACKWARD, index)
        if node.needs_backward:
            self.run_node_backward(node)
            if self.debug_info:
                from minicaffe.net.observe import log_backward
                log_backward(node)
        self.call_hooks(AFTER_BACKWARD, index)

    cdef int run_scheduled_backward(self, Schedule schedule) except -1:
        cdef Step step
        cdef Node first_node
        cdef list complete
        cdef int i
        schedule.stale = schedule.stale or schedule.stamp != self.stamp()
        for step in schedule.backward:
            first_node, complete = step.nodes[0], step.updates
            if first_node.needs_backward:
                if step.fused_backward and first_node.fused_into < 0:    # `unfuse` has undone the fusion
                    for i in range(step.first + len(step.nodes) - 1, step.first - 1, -1):
                        self.run_layer_backward(i)
                    schedule.finish_backward_step(step)
                else:
                    self.report_fused_events(step, "backward")
                    self.report_event("begin", first_node, "backward")
                    try:
                        first_node.reallocate_bottom_diffs()
                        if step.fused_backward:
                            first_node.run_backward()
                        elif self.on_gradients is not None and self.in_parts and schedule.plan and step.large is not None:
                            complete = self.run_partial_backward(step, schedule)
                        else:
                            first_node.backward()
                        schedule.finish_backward_step(step)
                    finally:
                        self.report_event("end", first_node, "backward")
            if self.on_gradients is not None:
                self.report_gradients(schedule, complete)
        if self.on_gradients is not None:
            self.report_gradients(schedule, schedule.without_gradient, True)

    cdef list run_partial_backward(self, Step step, Schedule schedule):
        """Run a backward that gives a large gradient part by part to `on_gradients`; return the other complete parameters."""
        cdef Node node = step.nodes[0]
        cdef Operation operation = node.layer.operations()[0]
        if (<Blob> self.learnable_params[step.large]).diff_memory.has_external_view():       # a view needs all of it
            node.backward()
            return step.updates
        operation.consumer = functools.partial(self.take_part, step.large)
        try:
            node.backward()
            taken = operation.consumer is None
        finally:
            operation.consumer = None
        if not taken:
            return step.updates
        schedule.free_updated_gradients([step.large])
        return [i for i in step.updates if i != step.large]

    def take_part(self, large, part):
        """Give a part of the gradient of parameter `large` to `on_gradients`."""
        return self.on_gradients([large], part, False)

    cdef int report_gradients(self, Schedule schedule, list which, bint last=False) except -1:
        """Give complete gradients to `on_gradients`, small ones together; free those that it has used."""
        for i in which:
            self.complete.append(i)
            self.unreported_elements += (<Blob> self.learnable_params[i]).count
        if last or self.unreported_elements >= (UPDATE_CHUNK if self.in_parts else 1):
            schedule.free_updated_gradients(self.on_gradients(self.complete, None, last) or [])
            self.complete, self.unreported_elements = [], 0

    def backward_layer(self, index):
        """Run the backward of one layer, whether the net needs it or not; raise ConfigError for a layer that there is not."""
        index = int_of(index, "index")
        if not 0 <= index < len(self.nodes):
            raise ConfigError(f"must be from 0 to {len(self.nodes) - 1}, got {index}", field="index")
        with self.lock:
            self.check_ready()
            self.unfuse(index)
            self.run_node_backward(self.nodes[index])

    cdef int run_node_backward(self, Node node) except -1:
        self.report_event("begin", node, "backward")
        try:
            node.reallocate_bottom_diffs()
            node.backward()
        finally:    # events after an error do not belong to the layer
            self.report_event("end", node, "backward")

    def forward_backward(self, bint run_sources=True, bint read_loss=True, on_loss=None, on_gradients=None, bint in_parts=True):
        """Run the whole net forward and backward.

        Parameters
        ----------
        run_sources : bool
            False: `run_sources` was called already for this batch.
        read_loss : bool
            False: return 0, as while a CUDA graph is recorded, when there is no loss yet.
        on_loss : callable, optional
            Gets the loss before backward begins.
        on_gradients : callable, optional
            ``on_gradients(which, part, last)`` gets the numbers of learnable parameters with complete gradients, and returns those
            whose gradients it has used; `last` is True in its last call. It is called while backward runs, or once at the end if
            the run is observed. `part` is None, or of a single large gradient ``(blob, first, count)``: these elements, in `blob`.
        in_parts : bool
            False: `on_gradients` gets no parts of gradients, and small gradients do not wait for others.

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
            taken = self.run_backward_range(last, 0, on_gradients, in_parts)
            if self.debug_info:
                from minicaffe.net.observe import log_norms
                log_norms(self.learnable_params)
            if on_gradients is not None and not taken:
                on_gradients(list(range(len(self.learnable_params))), None, True)
            return loss

    cdef int unfuse(self, int index) except -1:
        """Undo the fusion of a layer with others, so that its backward can run by itself."""
        cdef Node node = self.nodes[index]
        cdef Step step
        if node.fused_into >= 0 and self.last_schedule is not None:
            step = self.last_schedule.step_starting_at(node.fused_into)
            if step is not None:
                self.recorded.forget()
                step.unfuse()
                # The backward of single layers needs more than was to be kept for a fused one.
                self.last_schedule.stale = self.last_schedule.stale or step.fused_backward

    cdef int check_range(self, low, high) except -1:
        if not (0 <= low <= len(self.nodes) and -1 <= high < len(self.nodes)):
            raise ConfigError(f"layers {shown(low)}..{shown(high)} are out of range, the net has {len(self.nodes)}")

    cdef double compute(self, bint sources, int start, int end) except? -1:
        """Run layers forward, those without bottoms only if `sources`; return the losses that cannot be read later."""
        cdef double loss = 0
        cdef int i, first = start
        self.check_ready()
        self.followed_schedule = self.reshaped = False
        if not self.whole(start, end):
            self.recorded.forget()      # after its replay the net is in the state of a whole run
            if end >= start and (<Node> self.nodes[start]).fused_into != start:
                self.unfuse(start)
            # A plan may have freed the bottoms that this computes again.
            if not self.plan and 0 <= end < len(self.nodes) - 1 and 0 <= (<Node> self.nodes[end + 1]).fused_into <= end:
                self.unfuse(end + 1)
            first = end + 1
        else:       # sources may have other shapes each time
            while first <= end and not len((<Node> self.nodes[first]).bottoms):
                first += 1
        for i in range(start, first):
            if sources or len((<Node> self.nodes[i]).bottoms):
                loss += self.run_layer_forward(i)
        if first <= end:
            loss += self.run_scheduled_forward(sources, first)
        return loss

    cdef bint can_replay(self, int start, int end) except -1:
        """Whether a run of layers `start` to `end` may use a CUDA graph."""
        if context().stream == NULL or self.training or not self.use_graphs or start > 0 or end < max(len(self.nodes) - 1, 0):
            return False
        reason = self.recorded.obstacle(self)
        if reason is not None:
            self.recorded.leave(reason)
        return reason is None

    cdef double replay(self) except? -1:
        """Run the net forward by its CUDA graph, or by single launches while there is none."""
        self.check_ready()
        self.use_graphs, loss = self.recorded.run(self, self._launch_forward, state=(self.current_schedule(),))
        return loss or 0

    def _launch_forward(self, recording):
        return self.compute(False, 0, len(self.nodes) - 1)

    cdef double run_layer_forward(self, int index) except? -1:
        """Run one layer, in an observed run or a part of one."""
        cdef double loss = 0
        cdef Node node = self.nodes[index]
        self.call_hooks(BEFORE_FORWARD, index)
        self.report_event("begin", node, "forward")
        try:
            node.reallocate_tops()
            node.forward()
            if self.loss_overwritten:
                loss = self.layer_loss(index)
        finally:        # events after an error do not belong to the layer
            self.report_event("end", node, "forward")
        if self.debug_info:
            from minicaffe.net.observe import log_forward
            log_forward(node)
        self.call_hooks(AFTER_FORWARD, index)
        return loss

    cdef double run_scheduled_forward(self, bint sources, int first) except? -1:
        """Run the schedule from layer `first` on."""
        cdef double loss = 0
        cdef Schedule schedule = self.current_schedule()
        cdef Step step = None
        cdef Node node
        cdef int i
        self.last_schedule, schedule.stale = schedule, False
        try:
            for step in schedule.forward:
                node = step.nodes[0]
                if step.first < first or not sources and not len(node.bottoms):
                    continue
                self.report_event("begin", node, "forward")
                try:
                    schedule.run_forward(step)
                    if self.loss_overwritten:
                        for i in range(step.first, step.first + len(step.nodes)):
                            loss += self.layer_loss(i)
                finally:
                    self.report_event("end", node, "forward")
                self.report_fused_events(step, "forward")
        except BaseException:
            schedule.invalidate_after_error(step)
            raise
        self.followed_schedule = True
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
                                 f"{self.param_counts[i]} values; change the prototxt and build the net again")
        if on.stream == NULL:
            return 0
        if self.device < 0:
            self.device = on.stream.device
        if self.device != on.stream.device:
            raise ConfigError(f"the net's memory is on GPU {self.device}, the present one is GPU {on.stream.device}; call "
                              f"set_device({self.device}) before using it, or build the net again")

    cdef int check_params(self) except -1:
        """Raise if a layer's list of parameters was changed: the layer indexes it without checks."""
        cdef int i
        for i in range(len(self.nodes)):
            (<Node> self.nodes[i]).check_params(self.params_made[i])
        return 0

    cdef double losses(self, int start, int end) except? -1:
        """The sum of the losses of layers that have run; read last, since this waits for a GPU."""
        cdef double loss = 0
        cdef int i
        for i in range(start, end + 1 if not self.loss_overwritten else start):
            loss += self.layer_loss(i)
        return loss

    cdef double layer_loss(self, int index) except? -1:
        """Read a layer's share of the loss, and report it."""
        cdef Node node = self.nodes[index]
        cdef double loss = node.loss()
        if _reporter.recording and node.layer.has_loss:
            self.report_event("loss", node, repr(loss))
        return loss

    cdef int report_event(self, str kind, Node node, str detail) except -1:
        """Report an event of a node, if events are recorded."""
        if _reporter.recording:
            _reporter.event(kind, None, <size_t> <void*> node, 0, node.name, detail)
        return 0

    cdef int report_fused_events(self, Step step, str detail) except -1:
        """Report the nodes that were computed, or are, by the first one of a step."""
        cdef Node first_node = step.nodes[0], node
        if not _reporter.recording:
            return 0
        for node in step.nodes[1:] if detail == "forward" else step.nodes[:0:-1]:
            self.report_event("begin", node, detail)
            fused = detail != "forward" or step.ran_fused
            self.report_event("end", node, f"{detail} with {first_node.name}" if fused else detail)

    def reshape_all(self):
        """Propagate changed input shapes through the layers without computing (Caffe Net::Reshape)."""
        cdef Node node
        with self.lock:
            self.check_params()
            before = self.stamp()
            for node in self.nodes:
                node.reshape()
            self.reshaped = self.reshaped or before != self.stamp()

    def clear_param_diffs(self):
        """Set the gradient of every learnable parameter to zero."""
        with self.lock:
            clear_gradients(self.learnable_params)

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

    cdef int call_hooks(self, int when, int index) except -1:
        if self.hooks[when]:
            for hook in list(self.hooks[when]):     # a hook may remove itself or others
                hook(index)

    def schedule_rows(self):
        """Return the rows of the present schedule (schedule_rows.pyx), and whether memories end by a plan."""
        cdef Schedule schedule = self.current_schedule()
        return schedule_rows(schedule, self.kept, self.param_table.params, self.learnable_params), schedule.plan

    def fused(self):
        """For each layer the names of the layers that the last forward fused into it, and of the Concat whose slice it wrote."""
        cdef Step step
        cdef list found = [[] for _ in self.nodes]
        if self.followed_schedule:
            for step in self.last_schedule.forward:
                found[step.first] = step.fused
        return found

    # ---- for CUDA graphs (solver/step.py)

    def run_sources(self):
        """Run the layers without bottoms, and copy their tops to the present device."""
        cdef Context on = context()
        cdef Node node
        cdef Blob blob
        for node in self.nodes:
            if not len(node.bottoms):
                self.report_event("begin", node, "forward")
                try:
                    node.reallocate_tops()
                    node.forward()
                    for blob in node.tops:
                        blob.data_on(on)
                finally:
                    self.report_event("end", node, "forward")

    def observer_reason(self):
        """Return why each layer's run is observed, which rules out CUDA graphs, or None."""
        if any(self.hooks):
            return "callbacks run between layers"
        if self.debug_info:
            return "debug_info reads every blob"
        return None

    def capture_obstacle(self):
        """Return why a CUDA graph cannot hold a run of this net, or None."""
        if (reason := self.observer_reason()) is not None:
            return reason
        if self.loss_overwritten:
            return "a layer overwrites a loss in place"
        for node in self.nodes:
            if (reason := node.layer.capture_obstacle()) is not None:
                return f"layer '{node.name}' ({node.type}): {reason}"
        return None

    def inspect_inputs(self):
        """Run the layers' checks on the host that a replay leaves out, such as of labels."""
        cdef Node node
        for node in self.nodes:
            node.inspect()

    def stamp(self):
        """Return a number that changes whenever a blob gets another shape or memory."""
        return stamps(self.blob_list, self.learnable_params)

    def loss_of_outputs(self):
        """Return the loss of the last run, from the tops."""
        return self.losses(0, len(self.nodes) - 1)
