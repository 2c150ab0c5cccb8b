"""Runner: runs the nodes of a net forward and backward (Caffe net.cpp, ForwardFromTo and BackwardFromTo).

`forward_from_to` and `backward_from_to` are the plain loops over nodes: they run parts of a net, and nets that hooks or debug_info
observe. A whole net that nothing observes runs by its schedule: `forward_by_schedule`, `backward_by_schedule`. Different from
Caffe: a layer's reshape runs only when a blob changed (see layer.pyx), a fault raises with the layer's place, and one thread at a
time runs a net (lock.pyx).
"""

from collections import Counter

from minicaffe.blob cimport Blob
from minicaffe.device.context cimport Context, context
from minicaffe.layer cimport stamps
from minicaffe.net.node cimport Node
from minicaffe.net.schedule cimport Schedule
from minicaffe.net.step cimport FusedStep

from minicaffe.errors import ConfigError, ShapeError, check_callable, check_type, close_matches, int_of, shown
from minicaffe.memory import reporter
from minicaffe.net import observe
from minicaffe.net.compile import compile_nodes
from minicaffe.net.gradients import GradientReports, clear_gradients
from minicaffe.net.lock import NetLock

PLANS = ("memory",)     # of nets: see `Net`
BEFORE_FORWARD, AFTER_FORWARD, BEFORE_BACKWARD, AFTER_BACKWARD = range(4)


cdef class Runner:
    """The part of a net that runs its nodes.

    Parameters
    ----------
    nodes : list of Node
        In the order in which they run.
    param_table : ParamTable
        Of all their parameters.
    overwritten : set of SyncedMemory
        The memories of blobs that layers change in place.
    debug_info : bool
        Log the mean of every blob, as Caffe does.
    """

    cdef readonly list nodes
    cdef readonly object param_table
    cdef readonly list blob_list    # the tops of all nodes, in the order in which they were made
    cdef readonly list learnable_params
    cdef readonly object lock              # NetLock, held by the thread that runs or changes the net
    cdef public bint debug_info
    cdef int device                 # the GPU of its first run, -1 if none
    cdef bint loss_overwritten      # a layer in place overwrites a loss, so that it must be read when its layer has run
    cdef list expected_counts       # the counts of all parameters, as their layers made them
    cdef list blobs_made            # how many parameters each layer made
    cdef readonly set source_blobs  # blobs with the data of sources, which no layer changes in place
    cdef readonly list hooks        # of Net.add_hook: a list at each of BEFORE_FORWARD to AFTER_BACKWARD
    cdef readonly str plan          # which of PLANS is requested; None or empty: none
    cdef public bint use_graphs     # on a GPU, replay a forward as one CUDA graph: phase TEST only, a solver records iterations
    cdef object recorded            # RecordedWork: that forward; None before the first
    cdef readonly set pinned_blobs  # read after a run, so that a plan does not free them
    cdef bint training              # a run forward is followed by one backward
    cdef Schedule compiled          # the latest schedule; None: not compiled yet
    cdef Schedule last_schedule     # of the last run forward by a schedule, which its backward follows, too
    cdef bint last_run_scheduled    # the last run forward was that one
    cdef bint reshaped              # `reshape_all` has changed a shape since the last run forward

    def __init__(self, list nodes not None, param_table not None, overwritten, bint debug_info=False):
        cdef Node node
        self.nodes, self.param_table, self.debug_info = nodes, param_table, debug_info
        self.device = -1
        self.hooks = [[], [], [], []]
        written = Counter(top for node in nodes for top in node.tops)
        self.blob_list = list(written)
        self.loss_overwritten = any(weight and (written[top] > 1 or (<Blob> top).data_memory in overwritten)
                                    for node in nodes for top, weight in zip(node.tops, node.loss_weights))
        sources = {(<Blob> top).data_memory for node in nodes if not node.bottoms for top in node.tops} - overwritten
        self.source_blobs = {blob for blob in self.blob_list if (<Blob> blob).data_memory in sources}
        parameter_free = set()
        for node in nodes:
            node.parameter_free = (not len(node.bottoms) or node.layer.reads_shapes_only
                                   or not node.blobs and parameter_free.issuperset(node.bottoms))
            if node.parameter_free:
                parameter_free.update(node.tops)
        param_table.share()
        self.learnable_params = [param_table.params[i] for i in param_table.learnable]
        self.expected_counts = [blob.count for blob in param_table.params]
        self.blobs_made = [len(node.layer.blobs) for node in nodes]
        self.lock = NetLock([*self.blob_list, *param_table.params])
        self.use_graphs = True

    # ---- the loops over nodes

    cpdef double forward_from_to(self, start, end) except? -1:
        """Run layers `start` to `end`, both included; return the sum of their losses.

        Raises
        ------
        ConfigError
            If `start` is negative or `end` is not a layer's index.
        """
        cdef double loss = 0
        cdef Node node
        start, end = int_of(start, "start"), int_of(end, "end")
        self.check_range(start, end)
        cdef int i, first = start, last = end
        with self.lock:
            self.check_ready()
            if self.follows_schedule(first, last):
                loss = self.forward_by_schedule() if self.training or context().stream == NULL else self.replay()
                return loss + self.loss_of_outputs()
            self.leave_schedule(first, last)
            for i in range(first, last + 1):
                node = self.nodes[i]
                self.call_hooks(BEFORE_FORWARD, i)
                node.forward()
                if self.debug_info:
                    observe.log_forward(node)
                self.call_hooks(AFTER_FORWARD, i)
                loss += node.loss() if self.loss_overwritten else 0
            return loss + self.loss_of_outputs(first, last)

    cdef double forward_by_schedule(self, bint run_sources=True) except? -1:
        """Run all layers forward, those without bottoms only if `run_sources`. This differs from the plain loop:

        - The net is compiled (compile.pyx), after the first sources have run, whose batches may have another shape each time.
        - Layers that are fused run as one step.
        - With a plan, memory is freed after the step of its last use.
        - Losses are read afterwards, so that the host waits for a GPU once. The sum of those that cannot wait, as a later layer
          overwrites them, is returned.
        """
        cdef double loss = 0
        cdef Schedule schedule
        cdef FusedStep step = None
        cdef Node node
        cdef int sources = 0
        self.last_run_scheduled = self.reshaped = False
        for node in self.nodes:
            if len(node.bottoms):
                break
            sources += 1
            if run_sources:
                node.forward()
                loss += node.loss() if self.loss_overwritten else 0
        self.last_schedule = schedule = self.current_schedule()
        schedule.stale = False
        try:
            for step in schedule.forward[sources:]:
                node = step.nodes[0]
                if not run_sources and not len(node.bottoms):
                    continue
                node.report("begin", "forward")
                if step.operation is None:
                    node.compute_tops()
                elif not step.forward(schedule.check_unchanged(step), schedule.may_run_backward):
                    schedule.outdated = True
                schedule.finish_forward_step(step)
                for other in step.nodes if self.loss_overwritten else ():
                    loss += (<Node> other).loss()
                node.report("end", "forward")
                if len(step.nodes) > 1:
                    step.report_others("forward")
        except BaseException:
            node.report("end", "forward")       # later events do not belong to the layer
            schedule.invalidate_after_error(step)
            raise
        self.last_run_scheduled = True
        return loss

    cpdef backward_from_to(self, start, end):
        """Run the backward of layers `start` down to `end`, both included, where it is needed."""
        cdef Node node
        start, end = int_of(start, "start"), int_of(end, "end")
        self.check_range(end, start)
        cdef int i, first = start, last = end
        with self.lock:
            self.check_forward_done()
            if self.last_run_scheduled and self.follows_schedule(last, first):
                self.backward_by_schedule(None)
                return
            for i in range(last, first + 1):
                self.unfuse(i)
            for i in range(first, last - 1, -1):
                node = self.nodes[i]
                self.call_hooks(BEFORE_BACKWARD, i)
                if node.needs_backward:
                    node.backward()
                    if self.debug_info:
                        observe.log_backward(node)
                self.call_hooks(AFTER_BACKWARD, i)

    cdef int backward_by_schedule(self, reports) except -1:
        """Run the backward of all layers. This differs from the plain loop:

        - Layers whose gradients the first of them computes run as one step.
        - With a plan, memory is freed after the step of its last use.
        - `reports`, a GradientReports or None, gets gradients as soon as they are complete.
        """
        cdef Schedule schedule = self.last_schedule
        cdef FusedStep step
        cdef Node node
        cdef list complete
        schedule.stale = schedule.stale or schedule.stamp != self.stamp()
        for step in schedule.backward:
            node, complete = step.nodes[0], step.updates
            if node.needs_backward and step.fused_backward and node.fused_into < 0:    # `unfuse` has undone the fusion
                for node in reversed(step.nodes):
                    if node.needs_backward:
                        node.backward()
                schedule.finish_backward_step(step)
            elif node.needs_backward:
                if len(step.nodes) > 1:
                    step.report_others("backward")
                node.report("begin", "backward")
                try:
                    if reports is None:
                        node.compute_gradients(step.fused_backward)
                    else:
                        complete = reports.run_backward(step)
                    schedule.finish_backward_step(step)
                finally:
                    node.report("end", "backward")
            if reports is not None:
                reports.add(complete)
        if reports is not None:
            reports.add(schedule.without_gradient, last=True)

    def forward_backward(self, bint run_sources=True, bint read_loss=True, on_loss=None, on_gradients=None, bint stream_large=True):
        """Run the whole net forward and backward.

        Parameters
        ----------
        run_sources : bool
            False: `run_sources` was called already for this batch. A net that is observed runs its sources all the same.
        read_loss : bool
            False: return 0, unless the net is observed, as while a CUDA graph is recorded, before the loss exists.
        on_loss : callable, optional
            Gets the loss before backward begins.
        on_gradients : callable, optional
            ``on_gradients(which, part, last)`` gets the numbers of learnable parameters with complete gradients, and returns those
            whose gradients it has used; `last` is True in its last call. It is called while backward runs, or once at the end if
            the run is observed. `part` is None, or of a single large gradient ``(blob, first, count)``: these elements, in `blob`.
        stream_large : bool
            False: `on_gradients` gets no parts of gradients, and small gradients do not wait for others.

        Returns
        -------
        float
            The loss.
        """
        cdef int last = len(self.nodes) - 1
        cdef double loss
        if on_loss is not None:
            check_callable(on_loss, "on_loss")
        with self.lock:
            if self.follows_schedule(0, last):
                self.check_ready()
                loss = self.forward_by_schedule(run_sources)
                loss += self.loss_of_outputs() if read_loss else 0
            else:
                loss = self.forward_from_to(0, last)
            if on_loss is not None:
                on_loss(loss)
            if self.last_run_scheduled and self.follows_schedule(0, last):
                self.check_forward_done()
                self.backward_by_schedule(None if on_gradients is None else GradientReports(
                    on_gradients, self.learnable_params, self.last_schedule, stream_large))
                return loss
            self.backward_from_to(last, 0)
            if self.debug_info:
                observe.log_norms(self.learnable_params)
            if on_gradients is not None:
                on_gradients(list(range(len(self.learnable_params))), None, True)
            return loss

    def backward_layer(self, index):
        """Run the backward of one layer, also if the net does not need it, for checks and timings; ConfigError if there is none."""
        index = int_of(index, "index")
        if not 0 <= index < len(self.nodes):
            raise ConfigError(f"must be from 0 to {len(self.nodes) - 1}, got {index}", field="index")
        with self.lock:
            self.check_ready()
            self.unfuse(index)
            (<Node> self.nodes[index]).backward()

    def skip_backward(self):
        """With a plan, free what the last forward saved for a backward that will not run, as at the end of `solve`."""
        cdef FusedStep step
        with self.lock:
            if self.last_run_scheduled:
                self.last_run_scheduled = False
                for step in self.last_schedule.backward:
                    self.last_schedule.finish_backward_step(step)

    def run_sources(self):
        """Run the layers without bottoms, and copy their tops to the present device, where a CUDA graph reads them."""
        cdef Node node
        for node in self.nodes:
            if not len(node.bottoms):
                node.forward(upload=True)

    cpdef double loss_of_outputs(self, int first=0, int last=1 << 30) except? -1:
        """Return the loss of the last run of layers `first` to `last`, from the tops; 0 if a layer overwrites a loss.

        The host waits for a GPU here, and so not before all layers are queued.
        """
        cdef double loss = 0
        cdef Node node
        for node in self.nodes[first:last + 1] if not self.loss_overwritten else ():
            loss += node.loss()
        return loss

    cpdef str observer_reason(self):
        """Return why each layer must run alone, without schedule and CUDA graph; None if the net is not observed."""
        cdef Node node
        if any(self.hooks):
            return "callbacks run between layers"
        if self.debug_info:
            return "debug_info reads every blob"
        for node in self.nodes:
            if node.is_patched():
                return f"the program gave layer '{node.name}' a forward or backward of its own"
        return None

    cdef int call_hooks(self, int when, int index) except -1:
        """Call the hooks of a program before or after the forward or backward of layer `index`."""
        for hook in list(self.hooks[when]) if self.hooks[when] else ():     # a hook may remove itself or others
            hook(index)

    # ---- checks before a run

    cdef int check_range(self, low, high) except -1:
        """Raise ConfigError unless layers `low` to `high` exist; none are in a range from 0 to -1, of a net without layers."""
        if not (0 <= low <= len(self.nodes) and -1 <= high < len(self.nodes)):
            raise ConfigError(f"layers {shown(low)}..{shown(high)} are out of range, the net has {len(self.nodes)}")

    cdef int check_ready(self) except -1:
        """Raise if a layer's parameters are not what it was made for, or the net's memory lies on another GPU."""
        cdef Context on = context()
        cdef list params = self.param_table.params
        cdef Blob blob
        cdef int i
        self.check_params()
        for i in range(len(params)):
            blob = <Blob> params[i]
            if blob.count != <long long> self.expected_counts[i]:
                raise ShapeError(f"{self.param_table.places[i]} was reshaped to {list(blob.shape)}, its layer was made for "
                                 f"{self.expected_counts[i]} values; change the prototxt and build the net again")
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
            (<Node> self.nodes[i]).check_params(self.blobs_made[i])
        return 0

    cdef int check_forward_done(self) except -1:
        """Raise unless backward may run: as `check_ready`, or if shapes changed since the last forward."""
        self.check_ready()
        if self.reshaped:
            raise ShapeError("the net was reshaped since the last forward; run forward before backward")

    # ---- the schedule (compile.pyx)

    def set_plan(self, plan, pinned, bint training):
        """Set the plan of whole runs without hooks and `debug_info`.

        Parameters
        ----------
        plan : str or None
            One of PLANS. With ``memory`` blobs share memory (schedule.pyx).
        pinned : list of Blob
            Of any shapes: read after a run; the tops of sources and the losses are always added.
        training : bool
            A run forward is followed by one backward.

        Raises
        ------
        ConfigError
            If the plan is another.
        """
        if plan and check_type(plan, str, "plan", "a str") not in PLANS:
            raise ConfigError(f"must be one of {', '.join(PLANS)}, got '{plan}'{close_matches(plan, PLANS)}", field="plan")
        with self.lock:
            self.plan, self.training = plan, training
            self.forget_recording()
            self.forget_schedule()
            self.pinned_blobs = {*pinned, *(top for node in self.nodes for top, weight in zip(node.tops, node.loss_weights)
                                            if weight or not node.bottoms)}

    cpdef Schedule current_schedule(self):
        """Return the schedule for the present shapes, memories, device and settings; compile the net if it has none."""
        cdef Context on = context()
        cdef bint plan = bool(self.plan)
        cdef Node node
        if self.compiled is None or not self.compiled.holds(self.stamp(), on, plan):
            for node in self.nodes:
                if len(node.bottoms) and not node.layer.always_reshape:     # the others' shapes depend on values and batches
                    node.reshape()
            self.forget_schedule()
            self.compiled = compile_nodes(self.nodes, self.pinned_blobs, self.param_table.params, self.learnable_params,
                                          self.training, plan, self.stamp())
        return self.compiled

    def forget_schedule(self):
        """Drop the schedule, which holds memory; the next forward compiles the net again."""
        if self.compiled is not None:
            self.compiled.drop_references()
        self.compiled = None

    cdef bint follows_schedule(self, int first, int last) except -1:
        """Return whether a run of layers `first` to `last` follows the schedule: it is of all layers, and not observed."""
        return first == 0 and last == len(self.nodes) - 1 and self.observer_reason() is None

    cdef int leave_schedule(self, int first, int last) except -1:
        """Make ready for a plain loop over layers `first` to `last`: undo the fusions that it divides."""
        cdef FusedStep step
        self.forget_recording()      # a replay does not set `fused_into`, which is that of a whole run until this loop
        for step in self.last_schedule.forward if self.reshaped and self.last_schedule is not None else ():
            step.forget_other_shapes()
        self.last_run_scheduled = self.reshaped = False
        if last >= first and (<Node> self.nodes[first]).fused_into != first:
            self.unfuse(first)
        # A plan may have freed the bottoms that this computes again.
        if not self.plan and 0 <= last < len(self.nodes) - 1 and 0 <= (<Node> self.nodes[last + 1]).fused_into <= last:
            self.unfuse(last + 1)

    cdef int unfuse(self, int index) except -1:
        """Undo the fusion of a layer with others, so that its backward can run alone."""
        cdef Node node = self.nodes[index]
        cdef FusedStep step
        for step in self.last_schedule.forward if node.fused_into >= 0 else ():
            if step.first == node.fused_into:
                self.forget_recording()
                step.unfuse()
                # The backward of single layers needs more than was to be kept for a fused one.
                self.last_schedule.stale = self.last_schedule.stale or step.fused_backward

    def fused(self):
        """Return for each layer the names of those that the last forward fused into it, and of the Concat whose slice it wrote."""
        cdef FusedStep step
        cdef list found = [[] for _ in self.nodes]
        for step in self.last_schedule.forward if self.last_run_scheduled else ():
            found[step.first] = [node.name for node in step.nodes[1:]] if step.ran_fused else []
            if step.wrote_slice:
                found[step.first].append(step.concat_slice.concat_name)
        return found

    # ---- CUDA graphs (recorded.py)

    cdef double replay(self) except? -1:
        """Run all layers forward by a CUDA graph, or by single launches (obstacle, warm-up); return as `forward_by_schedule`."""
        if self.recorded is None:
            from minicaffe.net.recorded import RecordedWork
            self.recorded = RecordedWork("a forward")
        if not self.use_graphs or not self.nodes:
            return self.forward_by_schedule()
        reason = self.recorded.obstacle(self)
        if reason is not None:
            self.recorded.leave(reason)
            return self.forward_by_schedule()
        self.use_graphs, loss = self.recorded.run(self, self._launch_forward, state=(self.current_schedule(),))
        return loss or 0

    def _launch_forward(self, recording):
        """Run the layers after the sources, as `launch` of `RecordedWork.run`; a forward is the same while it is recorded."""
        return self.forward_by_schedule(run_sources=False)

    cdef int forget_recording(self) except -1:
        """Free the CUDA graph of the forward; the next forwards are single launches until it is recorded again."""
        if self.recorded is not None:
            self.recorded.forget()

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
        """Run the layers' checks on the host that a replay leaves out, such as of labels, for `RecordedWork.run`."""
        cdef Node node
        for node in self.nodes:
            node.inspect()

    # ---- shapes and parameters

    cpdef unsigned long long stamp(self):
        """Return a number that changes whenever a blob gets another shape or memory, which needs a new schedule."""
        return stamps(self.blob_list, self.learnable_params)

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
        """Set the gradient of every learnable parameter to zero, as backward adds to it."""
        with self.lock:
            clear_gradients(self.learnable_params)

    def update(self):
        """Subtract each learnable parameter's diff from its data (Caffe Net::Update); solvers update by `update_params`."""
        names = ", ".join([blob.name for blob in self.learnable_params])
        with self.lock:
            reporter.event("begin", name=names, detail="update")
            for blob in self.learnable_params:
                blob.update()
            reporter.event("end", name=names, detail="update")
