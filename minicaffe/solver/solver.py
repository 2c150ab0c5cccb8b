"""Solver: the training loop around a net, with its tests, displays and snapshots (Caffe solver.cpp).

An iteration is the subject of step.py, the update rules are that of the subclasses (sgd.py). Different from Caffe: the train and
test nets share parameters through one workspace; all of the solver's parameters are checked before the first iteration; a program
observes the training by a listener instead of reading the log.
"""

import collections
import logging
import math
import numbers
import time

from minicaffe.blob import Blob, Dtype
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error, check_callable, check_type, shown
from minicaffe.net.net import Net
from minicaffe.net.weights import check_names
from minicaffe.parallel import SINGLE_PROCESS
from minicaffe.proto import caffe_pb2, text
from minicaffe.proto.atomic import delayed_interrupts
from minicaffe.solver import finite, nets, ranks, report, snapshot
from minicaffe.solver.policy import check_policy
from minicaffe.solver.step import TrainingStep
from minicaffe.workspace import Workspace

log = logging.getLogger("minicaffe.solver")


class Solver:
    """Trains a net; subclasses define `learning_rate` and `apply_update`.

    Parameters
    ----------
    param : SolverParameter
        Copied. `load_solver` reads one from a file.
    file : str, optional
        The solver file, named in errors.
    positions : Positions, optional
        Gives errors their line in it.
    dtype : Dtype
        FLOAT or DOUBLE.
    workspace : Workspace, optional
        Owns the parameters; the nets of the solver are built in children of it.
    skip_unknown_fields : bool
        Leave out, with a warning, fields of forks without which a net computes the same (docs/forks.md).
    trusted : bool
        False: treat the solver's file and its nets as untrusted. They write no files, read none outside the working directory,
        and import no modules; a `snapshot_prefix` of the file is refused.
    own_fields : collection of str
        Fields of `param` that the program has set itself; their paths are its own, whatever `trusted` says.
    plan : str, optional
        Of the nets, as `Net` takes it.
    net_files : dict, optional
        What `minicaffe.proto.upgrade.read_net_file` returned of files that were read already, by path; those that are read here
        are added.

    Attributes
    ----------
    net, test_nets : Net, list of Net
    iter : int
        Number of updates done.
    current_step : int
        The exponent of gamma in the policies step, multistep and plateau.
    minimum_loss, iter_last_event : float, int
        State of policy plateau: the lowest loss, and when it occurred or the rate last went down.
    history : list of Blob
        State of the update rule: `histories` blobs for each parameter.
    action : callable or None
        Called after every update and before each test batch; returns "none", "stop" or "snapshot".
    callbacks : list of (on_start, on_gradients_ready)
        Called without arguments in every iteration, before the forward pass and before the update.
    listeners : list of object
        Each may have the methods on_start(solver) and on_end(solver, stopped) around `solve`, on_iteration(solver) after
        each update, on_display(solver, record), on_test(solver, record), on_snapshot(solver, model_path, state_path). In a group
        those of every rank are called; what they get is the same on all, but for the outputs and times of `on_display`.
        before_snapshot(solver, model_path, state_path), before the files are written, is called on the rank that writes.
    group : Group or SingleProcess
        The processes that train together with this one, see `distribute`; `group.size` is 1 for one that trains alone.
    exchange : Exchange or None
        Of gradients with the group; None in a process that trains alone.
    sync_batch_norm : bool
        Whether BatchNorm uses the mean and variance of all ranks' batches.
    training_step : TrainingStep
        State of the iterations.
    rate_scale, warmup : float, int
        Factor of the policy's rate, and the number of iterations in which it rises to that from 1.
    whole_tests : dict of int to RecordCounts
        Of test nets, by number: their tests give each record of the data once, whatever test_iter says
        (minicaffe.solver.report).
    best : object with `record_test`, `keep`, `exhausted`, `label_counts`, and get_state, check_state, set_state; or None
        Keeps the parameters of the best test, and ends `step` when tests no longer improve.
    nan : str
        The effect of parameters or a history that are not finite: "warn", or "stop", which raises NotFiniteError from `step`
        and `solve`. In both cases the first loss that is not finite is reported in the log, and no snapshot is written.
    exact_resume : bool
        Whether `restore` takes random numbers and data positions too, if the state holds them. Caffe does not: its data
        layers begin with states of zero.

    Raises
    ------
    ConfigError, ShapeError, FileError
        For everything that is wrong in `param` or its nets, with file, line and field.
    """

    exact_resume = True
    histories = 0           # history blobs for each parameter
    replaces_step = True    # a class has a step of its own: all gradients, then `apply_update`

    def __init__(self, param, *, file=None, positions=None, dtype=Dtype.FLOAT, workspace=None, skip_unknown_fields=False,
                 trusted=True, own_fields=(), net_files=None, plan=None):
        self.param = caffe_pb2.SolverParameter()
        self.param.CopyFrom(param)
        self.file = str(file) if file is not None else None
        self.positions = positions
        self.workspace = workspace if workspace is not None else Workspace()
        self.trusted = trusted
        self.skip_unknown_fields, self.plan = skip_unknown_fields, plan
        self.own_fields = frozenset(own_fields)
        self.iter = 0
        self.current_step = 0
        self.minimum_loss = math.inf
        self.iter_last_event = 0
        self.group, self.exchange, self.sync_batch_norm = SINGLE_PROCESS, None, False
        self.training_step = TrainingStep()
        self.rate_scale, self.warmup = 1.0, 0
        self.whole_tests = {}
        self.best = None
        self.action = None
        self.callbacks = []
        self.listeners = []
        self._nan = "warn"
        self._first_iter = 0     # the iteration before which this solver made no update
        self._finite_watch = None       # the FiniteWatch since something was not finite
        self._deferred_loss = None      # (function that waits for a GPU and returns the loss of the last iteration, its rate)
        self._stop = False       # an action requested the end
        self._losses = collections.deque(maxlen=max(1, param.average_loss))   # of smoothed_loss
        self._displayed = (0, time.perf_counter())  # iteration and time of the last display
        try:
            with caffe.trusting(trusted):
                self._build(dtype, net_files)
        except Error as error:
            if error.file is None:
                error.at(file=self.file, line=self._line(error.field))
            raise
        log.info("Solver scaffolding done.")

    def _build(self, dtype, net_files):
        """Check all fields, and make nets and history; `__init__` gives errors their place in the solver's file."""
        param = self.param
        if log.isEnabledFor(logging.INFO):
            log.info("Initializing solver from parameters: \n%s", text.write_text(param))
        self.check_param()
        # A prefix that the file does not have was made of the file's own name (proto/upgrade.py).
        if "snapshot_prefix" not in self.own_fields and (self.positions is None or self._line("snapshot_prefix")):
            snapshot.check_trust(param)
        if param.snapshot > 0:
            snapshot.check_prefix(param)
        if param.random_seed >= 0:
            caffe.seed(param.random_seed + caffe.solver_rank)
        self.generator = caffe.generator
        options = {"dtype": dtype, "workspace": self.workspace, "plan": self.plan}
        files = net_files if net_files is not None else {}
        self.net = nets.train_net(self, files, options)
        if param.snapshot > 0:      # better now than after days of training; `solve` checks for its own snapshots
            check_names(self.net, param.snapshot_format == caffe_pb2.SolverParameter.HDF5)
        self.test_nets = nets.test_nets(self, files, options)
        if param.weights:
            nets.load_weights([self.net, *self.test_nets], param, self.own_fields)
        if param.regularization_type not in ("L1", "L2") and param.weight_decay and any(self.net.params_weight_decay):
            raise ConfigError(f"unknown regularization type '{param.regularization_type}'; known are L1 and L2",
                              field="regularization_type")
        self.history = [Blob(blob.shape, blob.dtype, f"{blob.name} history")
                        for _ in range(self.histories) for blob in self.net.learnable_params]
        self.net.lock.add(self.history)
        # Parameters that a test net has for itself, such as those of layers whose definition holds blobs: `test` shares their data.
        train = {layer.key: layer for layer in self.net.layers}
        self._unshared = [[(blob, source) for layer in net.layers if layer.key in train
                           for blob, source in zip(layer.blobs, train[layer.key].blobs) if blob is not source]
                          for net in self.test_nets]

    def _line(self, field):
        """Return the line of a field in the solver's file, for errors; None if the program gave the field, or the message."""
        return self.positions.line(field) if self.positions is not None and field else None

    def check_param(self):
        """Check the fields of `param`; subclasses add their own rules.

        Raises
        ------
        ConfigError
            Names the field.
        """
        param = self.param
        for field, value in param.ListFields():
            if isinstance(value, float) and math.isnan(value):
                raise ConfigError("must be a number, got nan, which would make every weight nan", field=field.name)
        check_policy(param)
        for field in ("average_loss", "iter_size"):
            if getattr(param, field) < 1:
                raise ConfigError(f"must be at least 1, got {getattr(param, field)}", field=field)
        for field in ("display", "snapshot", "test_interval", "max_iter"):
            if getattr(param, field) < 0:
                raise ConfigError(f"must be at least 0, got {getattr(param, field)}", field=field)

    @property
    def smoothed_loss(self):
        """float: mean loss of the last `average_loss` iterations of the running or last `step`; waits for the GPU if need be."""
        if self._deferred_loss is not None:
            self._read_deferred_loss()
        losses = tuple(self._losses)    # another thread may train
        return sum(losses) / len(losses) if losses else 0.0

    @property
    def nan(self):
        return self._nan

    @nan.setter
    def nan(self, effect):
        if effect not in finite.EFFECTS:
            raise ConfigError(f"must be one of {', '.join(finite.EFFECTS)}, got {shown(effect)}", field="nan")
        self._nan, self._finite_watch = effect, None

    def __repr__(self):
        return f"<{type(self).__name__} iteration {self.iter}/{self.param.max_iter}, {self.net!r}, {len(self.test_nets)} test nets>"

    # ---- methods that a subclass defines

    def make_net(self, param, **options):
        """Return the net of a NetParameter; pycaffe's solvers make nets of their own class."""
        return Net(param, **options)

    def apply_update(self):
        """Change the parameters by their diffs, count the iteration, and return its learning rate."""
        raise Error(f"solver type {type(self).__name__} does not define apply_update()")

    def learning_rate(self):
        """Return the learning rate of the current iteration."""
        raise Error(f"solver type {type(self).__name__} does not define learning_rate()")

    def rate_factor(self):
        """Return the factor of the policy's rate in this iteration, for larger batches of several ranks; see `rate_scale`."""
        share = min(1.0, (self.iter + 1) / self.warmup) if self.warmup else 1.0
        return 1 + share * (self.rate_scale - 1)

    # ---- training

    def solve(self, resume_file=None):
        """Train until `max_iter`, from the solver state `resume_file` if given (Caffe Solver::Solve)."""
        param, net = self.param, self.net
        if param.snapshot_after_train or self.best is not None and self.best.keep:  # better now than after days of training
            self.group.run_on_root(snapshot.check_prefix, param)
            check_names(self.net, param.snapshot_format == caffe_pb2.SolverParameter.HDF5)
        log.info("Solving %s", net.name)
        log.info("Learning Rate Policy: %s", param.lr_policy)
        self._stop = False
        if resume_file:
            log.info("Restoring previous solver status from %s", resume_file)
            self.restore(resume_file)
        if self.iter >= param.max_iter and self.group.rank == 0:
            log.warning("nothing is trained: max_iter is %d, and %d iterations are done; set max_iter (--max-iter) higher",
                        param.max_iter, self.iter)
        self.notify("on_start")
        self.step(param.max_iter - self.iter)
        self.check_finite()
        if param.snapshot_after_train and not (param.snapshot and self.iter % param.snapshot == 0):
            self._snapshot_if_finite()
        if self._stop:
            log.info("Optimization stopped early.")
        else:
            if self.group.broadcast_from_root(bool(param.display) and self.iter % param.display == 0):  # ranks may differ
                losses = self.group.gather(net.forward_from_to(0, len(net.layers) - 1))
                net.skip_backward()
                self._losses.append(sum(losses) / len(losses))
                log.info("Iteration %d, loss = %g", self.iter, self.smoothed_loss)
            if self._is_due(param.test_interval):
                self.test_all()
            log.info("Optimization Done.")
        self.notify("on_end", self._stop)

    def step(self, n):
        """Do `n` iterations, with tests, displays and snapshots when they are due; fewer if `action` says "stop".

        A GPU may still compute the last one when this returns. Its loss is read when `smoothed_loss` is, or the next `step` begins.
        """
        if type(n) is not int:
            check_type(n, numbers.Integral, "n", "a number of iterations")
        param, net = self.param, self.net
        end = self.iter + n
        if self._deferred_loss is not None:
            self._read_deferred_loss()
        self._stop = False
        self._losses = collections.deque(maxlen=param.average_loss)
        self._displayed = (self.iter, time.perf_counter())
        while self.iter < end:
            if self._is_due(param.test_interval) and (self.iter or param.test_initialization):
                self.test_all()
                self._stop = self._stop or self.best is not None and self.best.exhausted
                if self._stop:
                    break
            with net.lock:  # so that no other thread sees half an iteration
                for on_start, _ in self.callbacks:
                    on_start()
                display = self._is_due(param.display)
                net.debug_info = display and param.debug_info
                loss, updated = self.training_step.compute(self, read_loss=display or self.iter + 1 < end)
                late = callable(loss)       # a GPU still computes it
                if not late:
                    loss /= param.iter_size
                    self._losses.append(loss)
                record = self._display() if display else None
                for _, on_gradients_ready in self.callbacks:
                    on_gradients_ready()
                rate = self.training_step.update(self, done=True) if updated else self.apply_update()
            if record:
                self.notify("on_display", {**record, "lr": rate})
            if self.listeners:
                self.notify("on_iteration")
            if late:
                self._deferred_loss = loss, rate
            elif not math.isfinite(loss):
                self._watch().loss(self, loss, rate)
            if record:
                self.check_finite()
            action = self.requested_action() if self.exchange is None else self.training_step.action
            if action == "snapshot" or (param.snapshot and self.iter % param.snapshot == 0):
                self._snapshot_if_finite()
            if action == "stop":
                self._stop = True
                break

    def _is_due(self, interval):
        """Return whether an action of every `interval` iterations is due; without a group only if `caffe.solver_rank` is 0."""
        return bool(interval) and self.iter % interval == 0 and (self.exchange is not None or caffe.solver_rank == 0)

    def distribute(self, comm=None, *, carrier=None, wire="float32", overlap=None, sync_batch_norm=False, scale_lr=None,
                   warmup=0, timeout=600):
        """Train together with other processes from now on (Caffe parallel.cpp); each of them must call this at the same iteration.

        All ranks begin with the parameters, the history, the iteration, the data positions and the random seed of rank 0. Then
        each reads its own records (`batch_size` is each rank's), draws random numbers of its own, and the gradients of all
        ranks are averaged before the update, which every rank does in the same way. The rate is not scaled unless asked. A loop
        of one's own calls `step(1)`, or `gradients` and `apply_update`; `net.backward` alone computes this rank's gradients.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm, optional
            By default all processes that mpiexec has started.
        carrier : str, optional
            What carries the gradients: "mpi" or "nccl". By default NCCL, where each rank computes on a GPU of its own and nccl4py
            is installed, and otherwise MPI; the log says which, and why.
        wire : str
            The type in which gradients are sent: "float32", or "bf16", which halves the bytes and rounds, by MPI. (float64 stays
            so.)
        overlap : bool, optional
            Whether MPI carries gradients while backward still runs, by a thread of its own, or when it has ended. By default
            only where that can gain something: not where all ranks compute on the processors of one machine. (NCCL always does.)
        sync_batch_norm : bool
            BatchNorm uses the mean and variance of all ranks' batches together, not of each rank's batch: what one process
            with a batch of that size would compute.
        scale_lr : str, optional
            Multiply the learning rate by the number of ranks, "linear", or its square root, "sqrt".
        warmup : int
            With `scale_lr`: let that factor rise from 1 in so many iterations, counted from the first of all, not of this run
            (Goyal et al., Accurate, Large Minibatch SGD, 2017).
        timeout : float
            Seconds without progress after which a stalled rank is reported and all ranks end (0: no limit). A rank that sends no
            heartbeat for 10 seconds, or ends by an exception, ends all in any case.

        Raises
        ------
        DependencyError
            If there is no MPI: the message says what to install.
        ConfigError
            If `carrier`, `wire` or `scale_lr` is unknown, a `warmup` leads nowhere, a `timeout` is not a finite number of at
            least 0, NCCL was asked for and cannot be used, a group was joined before, or versions, solvers, nets, numbers of
            records or weights files differ between the ranks; the message names what differs, rank and machine.
        """
        self._read_deferred_loss()
        ranks.join_group(self, comm, carrier, wire, overlap, sync_batch_norm, scale_lr, warmup, timeout)

    @property
    def carrier(self):
        """str: the way of gradients to other processes, "MPI" or "NCCL"; None for a process that trains alone."""
        return self.exchange.transport.name if self.exchange is not None else None

    def gradients(self):
        """Compute the gradients of `iter_size` batches into the parameters' diffs; return the sum of their losses.

        Of processes that train together each gets the sums of all ranks' gradients, and the mean of their losses.
        """
        if self.training_step.partly_updated:
            raise self.training_step.incomplete(self.iter)
        return self.training_step.gradients(self.net, self.param.iter_size, self.exchange, self.requested_action)

    def requested_action(self):
        """Return the action that this process requests, see `action`."""
        return self.action() if self.action is not None else "none"

    def _read_deferred_loss(self):
        """Read and process the loss of the last iteration, if `step` returned while the GPU was computing it."""
        with self.net.lock:     # another thread may have read it in between
            late, self._deferred_loss = self._deferred_loss, None
            if late is not None:
                read, rate = late
                loss = read()
                self._losses.append(loss)
                if not math.isfinite(loss):
                    self._watch().loss(self, loss, rate, late=True)

    def _display(self):
        """Log loss and outputs; return the record for listeners, still without the rate."""
        now = time.perf_counter()
        iterations, seconds = self.iter - self._displayed[0], now - self._displayed[1]
        self._displayed = (self.iter, now)
        per_second = iterations / seconds if seconds > 0 else 0.0
        images = report.images_per_iteration(self)
        record = {"iteration": self.iter, "loss": self.smoothed_loss, "seconds": seconds, "iters_per_second": per_second,
                  "images_per_second": images * per_second if images is not None else None,
                  "outputs": report.output_records(self.net)}
        log.info("Iteration %d (%g iter/s, %gs/%d iters), loss = %g", self.iter, per_second, seconds, self.param.display,
                 self.smoothed_loss)
        report.log_outputs("Train", record["outputs"])
        return record

    # ---- testing

    def test_all(self):
        """Test every test net in turn, until `action` says "stop"."""
        self.check_finite()
        for i in range(len(self.test_nets)):
            if self._stop:
                break
            self.test(i)

    def test(self, i):
        """Run ``test_iter[i]`` batches, or those of `whole_tests`, through test net `i`; report the means of its outputs.

        The ranks of a group divide the batches; all get the record that one process gets.

        Returns
        -------
        dict or None
            The record that listeners get: iteration, net, loss (None unless test_compute_loss), outputs. None if `action`
            said "stop". With ``eval_type: "detection"`` the outputs are those of their layer type: mean average precisions.
        """
        check_type(i, numbers.Integral, "i", "the number of a test net")
        if not 0 <= i < len(self.test_nets):
            count = len(self.test_nets)
            raise ConfigError(f"must be from 0 to {count - 1}, the solver has {count} test nets, got {i}", field="i")
        if self.group.size > 1:
            ranks.average_statistics(self)
        if self.best is not None:
            self.best.label_counts.clear()
        for blob, source in self._unshared[i]:
            blob.share_data(source)
        net, whole, param = self.test_nets[i], self.whole_tests.get(i), self.param
        batches = whole.batches if whole else param.test_iter[i]
        log.info("Iteration %d, Testing net (#%d)", self.iter, i)
        means, passes = report.OutputMeans(net) if param.eval_type != "detection" else report.evaluation(net, param), 0
        for loss, values, counted in report.run_batches(net, batches, self.group, self._may_test, records=whole and whole.records):
            means.add(values, whole.share(passes) if whole else 1.0, counted, loss)
            passes += 1
        if passes < batches:
            log.info("Test interrupted.")
            return None
        record = {"iteration": self.iter, "net": i, "loss": None, "outputs": means.records()}
        if param.test_compute_loss and batches:
            record["loss"] = means.loss()
            log.info("Test loss: %g", record["loss"])
        report.log_outputs("Test", record["outputs"])
        self.notify("on_test", record)
        if self.best is not None:
            self.best.record_test(self, record)
        return record

    def _may_test(self):
        """Do what `action` requests before a batch of a test, such as by a signal; return whether the test continues.

        Ranks of a group do the same: a snapshot if one of them requests it.
        """
        while "stop" not in (actions := self.group.gather(self.requested_action())):
            if "snapshot" not in actions:
                return True
            self._snapshot_if_finite()
        self._stop = True
        return False

    # ---- the rest

    def snapshot(self):
        """Write the model and the solver state, each whole or not at all; return their paths.

        In a group rank 0 writes, all ranks must call this, and return or raise when it is done.

        Raises
        ------
        ConfigError
            If snapshot_prefix is not set.
        FileError
            If a file cannot be written; training can continue.
        NotFiniteError
            If parameters are not finite: a training could not continue from there.
        Error
            If an iteration ended in the middle of its update.
        """
        with self.net.lock:
            if self.training_step.partly_updated:
                raise self.training_step.incomplete(self.iter)
            if self.group.size > 1:
                ranks.average_statistics(self)
            self.check_finite("stop")
            with delayed_interrupts():  # Ctrl-C leaves no model without its state
                state = snapshot.own_state(self) if self.group.size == 1 else snapshot.state_of_ranks(self)
                paths = self.group.run_on_root(snapshot.write, self, state)
        self.notify("on_snapshot", *paths)
        return paths

    def _snapshot_if_finite(self):
        """Write a snapshot that is due, unless parameters are not finite: the last good one stays the newest."""
        if self.exchange is None and caffe.solver_rank != 0:
            return
        if self.group.size > 1:
            ranks.average_statistics(self)  # so that all ranks find the same
        if self.check_finite():
            self.snapshot()

    def check_finite(self, effect=None):
        """Return whether all parameters and their history are finite; a warning in the log says where they are not.

        Raises NotFiniteError if they are not and `effect`, by default `nan`, is "stop".
        """
        if self._deferred_loss is not None:
            self._read_deferred_loss()
        if self._finite_watch is None and all(math.isfinite(blob.asum_data()) for blob in self.net.learnable_params + self.history):
            return True
        return self._watch().parameters(self, effect)

    def _watch(self):
        """Return the FiniteWatch, made at the first value that is not finite: until then checks are one sum for each blob."""
        if self._finite_watch is None:
            self._finite_watch = finite.FiniteWatch(self.nan, self._first_iter)
        return self._finite_watch

    def restore(self, path):
        """Take iteration, weights and history from a solver state, with `exact_resume` random numbers and data positions too.

        In a group all ranks must call this, and rank 0 reads. If as many ranks wrote the state, each continues at its position.
        Otherwise, and if `distribute` is called after this, all ranks start from the position of rank 0.

        Raises
        ------
        FileError, DataError, ShapeError, ConfigError
            If the state cannot be read or does not fit; the solver is as it was, unless only the part of another rank than 0 is
            damaged: then all ranks start from the position of rank 0.
        """
        self._read_deferred_loss()
        with self.net.lock, caffe.trusting(self.trusted):
            resume = []     # on rank 0 the `resume_state` of the file, which `share` divides over the ranks
            self.group.run_on_root(lambda: resume.append(snapshot.restore(self, str(path))))
            if self.exchange is not None:
                snapshot.share(self, *resume)
        self._finite_watch, self._first_iter, self.training_step.partly_updated = None, self.iter, False

    def share_weights(self, net):
        """Let `net` use the parameters of this solver's train net."""
        check_type(net, Net, "net", "a net").share_with(self.net)

    def add_callback(self, on_start, on_gradients_ready):
        """Call both in every iteration from now on, see `callbacks`; raises WrongTypeError for what cannot be called."""
        self.callbacks.append((check_callable(on_start, "on_start"), check_callable(on_gradients_ready, "on_gradients_ready")))

    def notify(self, event, *arguments):
        """Call the method called `event` of every listener that has it, see `listeners`."""
        for listener in list(self.listeners):   # one may take itself or others away
            method = getattr(listener, event, None)
            if method is not None:
                method(self, *arguments)
