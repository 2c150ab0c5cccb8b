"""Solver: the training loop around a net, with its tests, displays and snapshots (Caffe solver.cpp).

What an update does to the parameters is the subject of the subclasses (sgd.py). Different from Caffe: the train and test
nets share parameters through one workspace; all of the solver's parameters are checked before the first iteration;
whoever wants to watch adds a listener instead of reading the log.
"""

import functools
import logging
import math
import time

from minicaffe.blob import Dtype
from minicaffe.common import caffe
from minicaffe.errors import ConfigError, Error
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2, text
from minicaffe.proto.atomic import interrupts_held
from minicaffe.solver import nets, snapshot
from minicaffe.solver.detection import DetectionOutputs
from minicaffe.solver.finite import FiniteWatch
from minicaffe.solver.policy import check_policy
from minicaffe.solver.report import OutputMeans, batch_size, log_outputs, output_records
from minicaffe.workspace import Workspace

log = logging.getLogger("minicaffe.solver")


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
        Leave out, with a warning, fields of forks without which a net computes the same (proto/forks.py).
    trusted : bool
        False: the solver's file and its nets are another's. They write no files, read none outside the working directory, and
        import no modules; a `snapshot_prefix` of the file is refused.
    own_fields : collection of str
        Fields of `param` that the program has set itself; their paths are its own, whatever `trusted` says.
    plan : str, optional
        Of the nets, as `Net` takes it.
    net_files : dict, optional
        What `minicaffe.proto.upgrade.read_net_file` returned of files that were read already, by path.

    Attributes
    ----------
    net, test_nets : Net, list of Net
    iter : int
        Number of updates done.
    current_step : int
        Of the policies step, multistep and plateau.
    minimum_loss, iter_last_event : float, int
        What policy plateau remembers: the lowest loss, and when it occurred or the rate last went down.
    smoothed_loss : float
        Mean loss of the last `average_loss` iterations of the running `step`.
    history : list of Blob
        What the update rule remembers.
    action : callable or None
        Called after every update and before each test batch; returns "none", "stop" or "snapshot".
    callbacks : list of (on_start, on_gradients_ready)
        Called without arguments in every iteration, before the forward pass and before the update.
    listeners : list of object
        Each may have the methods on_start(solver) and on_end(solver, stopped) around `solve`, on_iteration(solver) after
        each update, on_display(solver, record), on_test(solver, record), on_snapshot(solver, model_path, state_path).
    nan : str
        What happens when parameters or their history are not finite: "warn", or "stop", which raises NotFiniteError from `step`
        and `solve`. In both cases the first loss that is not finite is reported in the log, and no snapshot is written.
    exact_resume : bool
        Whether `restore` takes random numbers and data positions too, if the state holds them. Caffe does not: its data
        layers begin anew.

    Raises
    ------
    ConfigError, ShapeError, FileError
        For everything that is wrong in `param` or its nets, with file, line and field.
    """

    exact_resume = True

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
        self.smoothed_loss = 0.0
        self.history = []
        self.action = None
        self.callbacks = []
        self.listeners = []
        self._watch = FiniteWatch()
        self._stop = False       # an action asked to stop
        self._torn = False       # some parameters are updated, and the iteration is not done
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
    def nan(self):
        return self._watch.effect

    @nan.setter
    def nan(self, effect):
        self._watch = FiniteWatch(effect, self._watch.begin)

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

    # ---- training

    def solve(self, resume_file=None):
        """Train until `max_iter`, from the solver state `resume_file` if given (Caffe Solver::Solve)."""
        param, net = self.param, self.net
        if param.snapshot_after_train:
            snapshot.check_prefix(param)  # better now than after days of training
        log.info("Solving %s", net.name)
        log.info("Learning Rate Policy: %s", param.lr_policy)
        self._stop = False
        if resume_file:
            log.info("Restoring previous solver status from %s", resume_file)
            self.restore(resume_file)
        self._tell("on_start")
        self.step(param.max_iter - self.iter)
        self._watch.parameters(self)
        if param.snapshot_after_train and not (param.snapshot and self.iter % param.snapshot == 0):
            self._snapshot_if_finite()
        if self._stop:
            log.info("Optimization stopped early.")
        else:
            if param.display and self.iter % param.display == 0:
                self._smooth(net.forward_from_to(0, len(net.layers) - 1))
                log.info("Iteration %d, loss = %g", self.iter, self.smoothed_loss)
            if param.test_interval and self.iter % param.test_interval == 0:
                self.test_all()
            log.info("Optimization Done.")
        self._tell("on_end", self._stop)

    def step(self, n):
        """Do `n` iterations, with tests, displays and snapshots when they are due; fewer if `action` says "stop"."""
        param, net = self.param, self.net
        end = self.iter + n
        self._stop = False
        self._losses = []
        self.smoothed_loss = 0.0
        self._first_iter = self.iter
        self._displayed = (self.iter, time.perf_counter())
        while self.iter < end:
            if (param.test_interval and self.iter % param.test_interval == 0
                    and (self.iter or param.test_initialization)):
                self.test_all()
                if self._stop:
                    break
            with net.lock:  # so that no other thread sees half an iteration
                for on_start, _ in self.callbacks:
                    on_start()
                display = param.display and self.iter % param.display == 0
                net.debug_info = bool(display and param.debug_info)
                loss = self.gradients() / param.iter_size
                self._smooth(loss)
                record = self._display() if display else None
                for _, on_gradients_ready in self.callbacks:
                    on_gradients_ready()
                rate = self.apply_update()
            if record:
                self._tell("on_display", {**record, "lr": rate})
            if self.listeners:
                self._tell("on_iteration")
            self._watch.loss(self, loss, rate)
            if record:
                self._watch.parameters(self)
            action = self.action() if self.action is not None else "none"
            if action == "snapshot" or (param.snapshot and self.iter % param.snapshot == 0):
                self._snapshot_if_finite()
            if action == "stop":
                self._stop = True
                break

    def gradients(self):
        """Compute the gradients of `iter_size` batches into the parameters' diffs; return the sum of their losses."""
        self.net.clear_param_diffs()
        return sum(self.net.forward_backward() for _ in range(self.param.iter_size))

    def _smooth(self, loss):
        """Take the loss of iteration `iter` into the mean of the last `average_loss` losses."""
        window = self._losses
        size = self.param.average_loss
        if len(window) < size:
            window.append(loss)
            self.smoothed_loss += (loss - self.smoothed_loss) / len(window)
        else:
            i = (self.iter - self._first_iter) % size
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
        images = batch_size(self.net)
        record = {"iteration": self.iter, "loss": self.smoothed_loss, "seconds": seconds, "iters_per_second": per_second,
                  "images_per_second": images * self.param.iter_size * per_second if images is not None else None,
                  "outputs": output_records(self.net)}
        log.info("Iteration %d (%g iter/s, %gs/%d iters), loss = %g", self.iter, per_second, seconds, self.param.display,
                 self.smoothed_loss)
        log_outputs("Train", record["outputs"])
        return record

    # ---- testing

    def test_all(self):
        """Test every test net in turn, until `action` says "stop"."""
        self._watch.parameters(self)
        for i in range(len(self.test_nets)):
            if self._stop:
                break
            self.test(i)

    def test(self, i):
        """Run ``test_iter[i]`` batches through test net `i`; report the means of its outputs, and of the loss on request.

        Returns
        -------
        dict or None
            The record that listeners get: iteration, net, loss (None unless test_compute_loss), outputs. None if `action`
            said "stop". With ``eval_type: "detection"`` the outputs are mean average precisions (solver/detection.py).
        """
        net, batches = self.test_nets[i], self.param.test_iter[i]
        log.info("Iteration %d, Testing net (#%d)", self.iter, i)
        for blob, source in self._unshared[i]:
            blob.share_data(source)
        means = DetectionOutputs(net, self.param) if self.param.eval_type == "detection" else OutputMeans(net)
        loss = 0.0
        for _ in range(batches):
            while (action := self.action() if self.action is not None else "none") == "snapshot":
                self._snapshot_if_finite()
            if action == "stop":
                self._stop = True
                log.info("Test interrupted.")
                return None
            loss += net.forward_from_to(0, len(net.layers) - 1)
            means.add()
        record = {"iteration": self.iter, "net": i, "loss": None, "outputs": means.records()}
        if self.param.test_compute_loss and batches:
            record["loss"] = loss / batches
            log.info("Test loss: %g", record["loss"])
        log_outputs("Test", record["outputs"])
        self._tell("on_test", record)
        return record

    # ---- the rest

    def snapshot(self):
        """Write the model and the solver state, each whole or not at all; return their paths.

        Raises
        ------
        ConfigError
            If snapshot_prefix is not set.
        FileError
            If a file cannot be written; training can go on.
        NotFiniteError
            If parameters are not finite: nobody could go on from there.
        Error
            If an iteration ended in the middle of its update.
        """
        with self.net.lock:
            self._check_whole()
            self._watch.parameters(self, "stop")
            with interrupts_held():  # Ctrl-C leaves no model without its state
                paths = snapshot.write(self)
        self._tell("on_snapshot", *paths)
        return paths

    def _snapshot_if_finite(self):
        if self._watch.parameters(self):
            self.snapshot()

    def restore(self, path):
        """Take iteration, weights and history from a solver state, with `exact_resume` random numbers and data positions too.

        Raises
        ------
        FileError, DataError, ShapeError, ConfigError
            If the state cannot be read or does not fit; the solver is as it was.
        """
        with self.net.lock, caffe.trusting(self.trusted):
            snapshot.restore(self, str(path))
        self._watch, self._torn = FiniteWatch(self.nan, self.iter), False

    def _check_whole(self):
        if self._torn:
            raise Error(f"iteration {self.iter} ended in the middle of its update: some parameters may have it and others not; "
                        "call restore() with a snapshot, make the solver anew, or train without a plan, which updates all at once")

    def share_weights(self, net):
        """Let `net` use the parameters of this solver's train net."""
        net.share_with(self.net)

    def add_callback(self, on_start, on_gradients_ready):
        """Call both in every iteration from now on, see `callbacks`."""
        self.callbacks.append((on_start, on_gradients_ready))

    def _tell(self, event, *arguments):
        for listener in list(self.listeners):   # one may take itself or others away
            method = getattr(listener, event, None)
            if method is not None:
                method(self, *arguments)
