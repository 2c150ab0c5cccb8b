"""Solver: the training loop around a net, with its tests, displays and snapshots (Caffe solver.cpp).

What an update does to the parameters is the subject of the subclasses (sgd.py). Different from Caffe: the train and test
nets share parameters through one workspace; all of the solver's parameters are checked before the first iteration;
a program observes the training by a listener instead of reading the log.
"""

import functools
import logging
import math
import numbers
import time

from minicaffe.blob import Dtype
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error, check_callable, check_type
from minicaffe.net.net import Net
from minicaffe.net.weights import check_names
from minicaffe.parallel import SINGLE_PROCESS
from minicaffe.proto import caffe_pb2, text
from minicaffe.proto.atomic import delayed_interrupts
from minicaffe.solver import nets, ranks, report, snapshot
from minicaffe.solver.finite import FiniteWatch
from minicaffe.solver.iteration import SeparateUpdate
from minicaffe.solver.policy import check_policy
from minicaffe.solver.report import images_per_iteration, log_outputs, output_records
from minicaffe.workspace import Workspace

log = logging.getLogger("minicaffe.solver")
OVERRIDABLE_UPDATES = {"gradients", "apply_update", "update"}   # what a user's class may override


class Solver:
    """Trains a net; subclasses define `apply_update` and what `history` holds.

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
        Of the policies step, multistep and plateau.
    minimum_loss, iter_last_event : float, int
        What policy plateau remembers: the lowest loss, and when it occurred or the rate last went down.
    history : list of Blob
        What the update rule remembers.
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
    rate_scale, warmup : float, int
        What the rate of the policy is multiplied with, and the number of iterations in which the factor rises to that from 1.
    whole_tests : dict of int to RecordCounts
        Of test nets, by number: their tests give each record of the data once, whatever test_iter says
        (minicaffe.solver.report).
    best : BestTest or None
        Keeps the parameters of the best test, and ends `step` when tests no longer improve.
    nan : str
        What happens when parameters or their history are not finite: "warn", or "stop", which raises NotFiniteError from `step`
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

    updates_itself = False   # a user's class has an update of its own, which comes after all gradients

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if not cls.__module__.startswith("minicaffe.solver."):
            cls.updates_itself = cls.updates_itself or bool(OVERRIDABLE_UPDATES & vars(cls).keys())

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
        self._deferred_loss = None        # reads the loss of the last iteration, which a GPU may still compute, and its rate
        self.smoothed_loss = 0.0
        self.history = []
        self.group = SINGLE_PROCESS
        self.rate_scale, self.warmup = 1.0, 0
        self.whole_tests = {}
        self.best = None
        self.action = None
        self.callbacks = []
        self.listeners = []
        self._exchange = None    # with the group; None: alone
        self._sync_batch_norm_layers = []     # names of layers that use the statistics of all ranks' batches
        self._action = "none"    # what all ranks of the group do after this iteration
        self._has_global_gradients = False     # the gradients are those of all ranks, and no update has used them yet
        self._finite_watch = FiniteWatch()
        self._stop = False       # an action asked to stop
        self._partly_updated = False       # some parameters are updated, and the iteration is not done
        self._losses = []        # the window of smoothed_loss
        self._first_iter = 0     # where the running step() began
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
        make_net = functools.partial(self.make_net, dtype=dtype, workspace=self.workspace, plan=self.plan)
        maker = nets.NetMaker(param, self.file, self.positions, make_net, self.skip_unknown_fields, self.own_fields, net_files)
        self.net = maker.train_net()
        if param.snapshot > 0:      # better now than after days of training; `solve` checks for its own snapshots
            check_names(self.net, param.snapshot_format == caffe_pb2.SolverParameter.HDF5)
        self.test_nets = maker.test_nets()
        nets.load_weights([self.net, *self.test_nets], param, self.own_fields)
        # Parameters that a test net has for itself, such as those of layers whose definition holds blobs.
        train = {layer.key: layer for layer in self.net.layers}
        self._unshared = [[(blob, source) for layer in net.layers if layer.key in train
                           for blob, source in zip(layer.blobs, train[layer.key].blobs) if blob is not source]
                          for net in self.test_nets]

    def _line(self, field):
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
        self._read_deferred_loss()
        return self._smoothed_loss

    @smoothed_loss.setter
    def smoothed_loss(self, loss):
        self._smoothed_loss = loss

    @property
    def nan(self):
        return self._finite_watch.effect

    @nan.setter
    def nan(self, effect):
        self._finite_watch = FiniteWatch(effect, self._finite_watch.begin)

    def __repr__(self):
        return f"<{type(self).__name__} iteration {self.iter}/{self.param.max_iter}, {self.net!r}, {len(self.test_nets)} test nets>"

    # ---- what a subclass defines

    def make_net(self, param, **options):
        """Return the net of a NetParameter; pycaffe's solvers make nets of their own class."""
        return Net(param, **options)

    def apply_update(self):
        """Change the parameters by their diffs and count the iteration."""
        raise Error(f"solver type {type(self).__name__} does not define apply_update()")

    def learning_rate(self):
        """Return the learning rate of the current iteration."""
        raise Error(f"solver type {type(self).__name__} does not define learning_rate()")

    def rate_factor(self):
        """Return what the policy's rate is multiplied with in this iteration, see `rate_scale`."""
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
        self._notify("on_start")
        self.step(param.max_iter - self.iter)
        self._read_deferred_loss()
        self._finite_watch.parameters(self)
        if param.snapshot_after_train and not (param.snapshot and self.iter % param.snapshot == 0):
            self._snapshot_if_finite()
        if self._stop:
            log.info("Optimization stopped early.")
        else:
            if self.group.broadcast_from_root(bool(param.display) and self.iter % param.display == 0):  # ranks may differ
                losses = self.group.gather(net.forward_from_to(0, len(net.layers) - 1))
                net.skip_backward()
                self._smooth(sum(losses) / len(losses))
                log.info("Iteration %d, loss = %g", self.iter, self.smoothed_loss)
            if param.test_interval and self.iter % param.test_interval == 0 and self._runs_tests_and_snapshots:
                self.test_all()
            log.info("Optimization Done.")
        self._notify("on_end", self._stop)

    def step(self, n):
        """Do `n` iterations, with tests, displays and snapshots when they are due; fewer if `action` says "stop".

        A GPU may still compute the last one when this returns. Its loss is read when `smoothed_loss` is, or the next `step` begins.
        """
        if type(n) is not int:
            check_type(n, numbers.Integral, "n", "a number of iterations")
        param, net = self.param, self.net
        end = self.iter + n
        self._read_deferred_loss()
        self._stop = False
        self._losses = []
        self.smoothed_loss = 0.0
        self._first_iter = self.iter
        self._displayed = (self.iter, time.perf_counter())
        while self.iter < end:
            if (param.test_interval and self.iter % param.test_interval == 0 and self._runs_tests_and_snapshots
                    and (self.iter or param.test_initialization)):
                self.test_all()
                self._stop = self._stop or self.best is not None and self.best.exhausted
                if self._stop:
                    break
            with net.lock:  # so that no other thread sees half an iteration
                for on_start, _ in self.callbacks:
                    on_start()
                display = param.display and self.iter % param.display == 0 and self._runs_tests_and_snapshots
                net.debug_info = bool(display and param.debug_info)
                iteration = self._choose_iteration()
                can_wait = self.iter + 1 == end and not display and iteration.loss_can_wait(self)
                loss, updated = iteration.run(self, not can_wait)
                late = callable(loss)
                if not late:
                    loss /= param.iter_size
                    self._smooth(loss)
                record = self._display() if display else None
                for _, on_gradients_ready in self.callbacks:
                    on_gradients_ready()
                rate = self._end_iteration() if updated else self.apply_update()
            if record:
                self._notify("on_display", {**record, "lr": rate})
            if self.listeners:
                self._notify("on_iteration")
            if late:
                self._deferred_loss = loss, rate
            else:
                self._finite_watch.loss(self, loss, rate)
            if record:
                self._finite_watch.parameters(self)
            action = self._requested_action() if self._exchange is None else self._action
            if action == "snapshot" or (param.snapshot and self.iter % param.snapshot == 0):
                self._snapshot_if_finite()
            if action == "stop":
                self._stop = True
                break

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
            If `carrier`, `wire` or `scale_lr` is unknown, a `warmup` leads nowhere, a `timeout` is no finite number of at
            least 0, NCCL was asked for and cannot be used, a group was joined before, or versions, solvers, nets, numbers of
            records or weights files differ between the ranks; the message names what differs, rank and machine.
        """
        self._read_deferred_loss()
        ranks.join_group(self, comm, carrier, wire, overlap, sync_batch_norm, scale_lr, warmup, timeout)

    @property
    def carrier(self):
        """str: what brings gradients to other processes, "MPI" or "NCCL"; None for a process that trains alone."""
        return self._exchange.transport.name if self._exchange is not None else None

    def gradients(self):
        """Compute the gradients of `iter_size` batches into the parameters' diffs; return the sum of their losses.

        Of processes that train together each gets the sums of all ranks' gradients, and the mean of their losses.
        """
        self._check_not_partly_updated()
        net, passes = self.net, self.param.iter_size
        net.clear_param_diffs()
        if self._exchange is None:
            return sum(net.forward_backward() for _ in range(passes))
        before = sum(net.forward_backward() for _ in range(passes - 1))
        self.last_pass(on_loss=lambda loss: self._exchange.start_loss_allgather(before + loss, self._requested_action()))
        return self._finish_exchange()

    def last_pass(self, **options):
        """Run the net forward and backward; the gradients of processes that train together become the sums of all ranks'.

        The options and what is returned are those of `Net.forward_backward`.
        """
        net, exchange = self.net, self._exchange
        if exchange is None:
            return net.forward_backward(**options)
        exchange.begin()
        return net.forward_backward(on_gradients=exchange.submit, stream_large=False, **options)

    def _finish_exchange(self):
        loss, self._action = self._exchange.finish_loss_allgather()
        self._has_global_gradients = True
        return loss

    def _requested_action(self):
        return self.action() if self.action is not None else "none"

    def _next_action(self):
        """Return the next action, the same on all ranks of a group."""
        actions = self.group.gather(self._requested_action())
        return next((action for action in ("stop", "snapshot") if action in actions), "none")

    def _choose_iteration(self):
        """Return the class of solver/iteration.py, or an object of one, that computes the next iteration."""
        return SeparateUpdate

    def _read_deferred_loss(self):
        """Read and process the loss of the last iteration, if `step` did not wait for it."""
        if self._deferred_loss is None:
            return
        with self.net.lock:     # another thread may have read it in between
            late, self._deferred_loss = self._deferred_loss, None
            if late is not None:
                read, rate = late
                loss = read()
                self._smooth(loss, self.iter - 1)
                self._finite_watch.loss(self, loss, rate, late=True)

    def _smooth(self, loss, iteration=None):
        """Take the loss of an iteration, by default `iter`, into the mean of the last `average_loss` losses."""
        window = self._losses
        size = self.param.average_loss
        if len(window) < size:
            window.append(loss)
            self.smoothed_loss += (loss - self.smoothed_loss) / len(window)
        else:
            i = ((self.iter if iteration is None else iteration) - self._first_iter) % size
            self.smoothed_loss += (loss - window[i]) / size
            window[i] = loss
        if not math.isfinite(self.smoothed_loss):  # a sum that was once infinite would stay so
            self.smoothed_loss = sum(window) / len(window)

    def _display(self):
        """Log loss and outputs; return the record for listeners, still without the rate."""
        now = time.perf_counter()
        iterations, seconds = self.iter - self._displayed[0], now - self._displayed[1]
        self._displayed = (self.iter, now)
        per_second = iterations / seconds if seconds > 0 else 0.0
        images = images_per_iteration(self)
        record = {"iteration": self.iter, "loss": self.smoothed_loss, "seconds": seconds, "iters_per_second": per_second,
                  "images_per_second": images * per_second if images is not None else None,
                  "outputs": output_records(self.net)}
        log.info("Iteration %d (%g iter/s, %gs/%d iters), loss = %g", self.iter, per_second, seconds, self.param.display,
                 self.smoothed_loss)
        log_outputs("Train", record["outputs"])
        return record

    # ---- testing

    def test_all(self):
        """Test every test net in turn, until `action` says "stop"."""
        self._read_deferred_loss()
        self._finite_watch.parameters(self)
        for i in range(len(self.test_nets)):
            if self._stop:
                break
            self.test(i)

    def test(self, i):
        """Run ``test_iter[i]`` batches, or those of `whole_tests`, through test net `i`; report the means of its outputs.

        The mean of the loss comes on request.

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
        ranks.average_statistics(self)
        for blob, source in self._unshared[i]:
            blob.share_data(source)
        record = report.run_test(self, i, self._may_test)
        if record is not None:
            self._notify("on_test", record)
            if self.best is not None:
                self.best.record_test(self, record)
        return record

    def _may_test(self):
        """Write the snapshots that are requested; return whether the test continues."""
        while (action := self._next_action()) == "snapshot":
            self._snapshot_if_finite()
        self._stop = self._stop or action == "stop"
        return action != "stop"

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
        self._read_deferred_loss()
        with self.net.lock:
            self._check_not_partly_updated()
            ranks.average_statistics(self)
            self._finite_watch.parameters(self, "stop")
            with delayed_interrupts():  # Ctrl-C leaves no model without its state
                paths = snapshot.write(self)
        self._notify("on_snapshot", *paths)
        return paths

    @property
    def _runs_tests_and_snapshots(self):
        """Whether tests, displays and snapshots are made here: without a Group only if `solver_rank` is 0."""
        return self._exchange is not None or caffe.solver_rank == 0

    def _snapshot_if_finite(self):
        if not self._runs_tests_and_snapshots:
            return
        self._read_deferred_loss()
        ranks.average_statistics(self)  # so that all ranks find the same
        if self._finite_watch.parameters(self):
            self.snapshot()

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
            resume = []     # on rank 0
            self.group.run_on_root(lambda: resume.append(snapshot.restore(self, str(path))))
            if self._exchange is not None:
                snapshot.share(self, *resume)
        self._finite_watch, self._partly_updated = FiniteWatch(self.nan, self.iter), False

    def _check_not_partly_updated(self):
        if self._partly_updated:
            raise Error(f"iteration {self.iter} ended in the middle of its update: some parameters may have it and others not; "
                        "call restore() with a snapshot, make a new solver, or train without a plan, which updates all at once")

    def share_weights(self, net):
        """Let `net` use the parameters of this solver's train net."""
        check_type(net, Net, "net", "a net").share_with(self.net)

    def add_callback(self, on_start, on_gradients_ready):
        """Call both in every iteration from now on, see `callbacks`; raises WrongTypeError for what cannot be called."""
        self.callbacks.append((check_callable(on_start, "on_start"), check_callable(on_gradients_ready, "on_gradients_ready")))

    def _notify(self, event, *arguments):
        for listener in list(self.listeners):   # one may take itself or others away
            method = getattr(listener, event, None)
            if method is not None:
                method(self, *arguments)
