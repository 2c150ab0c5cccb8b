"""How one iteration of a training is computed: gradients, and the update where that need not wait for all of them.

Each has ``run(solver, read_loss)``, which returns the sum of the losses and whether the update is done, and
``loss_can_wait(solver)``, whether `read_loss` may be False; then a function that returns the loss may be returned in its place.
`SGDSolver._iteration` chooses.
"""

import logging

from minicaffe import cuda
from minicaffe.errors import DeviceError, OutOfMemoryError
from minicaffe.memory.synced import device_lock
from minicaffe.ops.engine import settings_epoch

log = logging.getLogger(__name__)
WARM_UP = 2  # iterations by single launches first: they take memory and compile kernels, which a recording must not


class Plain:
    """All gradients; `Solver.apply_update` comes after them."""

    @staticmethod
    def loss_can_wait(solver):
        return False

    @staticmethod
    def run(solver, read_loss=True):
        return solver.gradients(), False


class ByParameter(Plain):
    """Each parameter is updated as soon as backward has its gradient, the memory of which then serves others."""

    @staticmethod
    def run(solver, read_loss=True):
        solver._check_whole()
        solver.net.clear_param_diffs()
        return solver.net.forward_backward(take=solver.update_along()), True


class Exchanged(Plain):
    """Of processes that train together: what has come from all is updated while the rest is on its way."""

    @staticmethod
    def run(solver, read_loss=True):
        along = solver.update_obstacle() is None and not solver.param.snapshot_diff
        exchange = solver._exchange
        exchange.update = solver.update_along() if along else None
        try:
            return solver.gradients(), along
        finally:
            exchange.update = None


class Recorded:
    """One CUDA graph: forward, backward and update are recorded once and replayed.

    Of processes that train together the sums of their gradients are in it, too, where NCCL carries them. Data sources run on the
    host before each replay. Where an iteration cannot be recorded, or something changed since, it goes by single launches, and the
    log says why at level debug (``--verbose``).
    """

    def __init__(self):
        self.graph = None
        self.seen = 0  # iterations in a row with the same shapes
        self.stamp = None
        self.told = None

    def loss_can_wait(self, solver):
        snapshot = solver.param.snapshot
        return not (solver.listeners or solver.callbacks or solver.nan == "stop" or solver._exchange is not None
                    or snapshot and (solver.iter + 1) % snapshot == 0)

    def run(self, solver, read_loss=True):
        solver._check_whole()
        with solver.net.lock:  # before device_lock, which a recording takes
            reason = self.obstacle(solver)
            if reason is not None:
                self._leave(solver, reason)
            else:
                loss = self._step(solver, solver.constants(solver.learning_rate())[0], read_loss)
        if reason is not None:
            return (Plain if solver._exchange is None else Exchanged).run(solver)
        if solver._exchange is None:
            return loss, True
        solver._exchange.tell(loss, solver._poll())
        return solver._told(), True

    def obstacle(self, solver):
        """Return why the solver's iteration cannot be recorded now, or None."""
        reason = solver.update_obstacle() or solver.capture_obstacle()
        if reason is None and cuda.current().recording:
            reason = "launches are being recorded one by one"
        if reason is not None:
            return reason
        # Layers do not change once they are recorded.
        return solver.net.capture_obstacle() if self.graph is None else solver.net.watcher()

    def _step(self, solver, rate, read_loss):
        """Do one iteration with the learning rate `rate`, as the update rule takes it, and return the loss.

        Without `read_loss` the host does not wait for a replayed graph: what is returned is a function that returns the loss later.
        """
        net = solver.net
        net.recycles = False  # a graph has the addresses of all blobs
        net.run_sources()
        generator = net.layers[0].generator
        stamp = net.stamp(), generator.seed, solver.carrier, settings_epoch()
        if stamp != self.stamp:
            if self.graph is not None:
                log.debug("CUDA graph: shapes, memory, the random seed, the other ranks, the precision or the engine changed; "
                          "back to single launches")
            self.graph, self.stamp, self.seen = None, stamp, 0
        if self.graph is None:
            self.seen += 1
            if self.seen <= WARM_UP or not self._record(solver):
                net.clear_param_diffs()
                loss = solver.last_pass(run_sources=False)
                solver.update(rate)
                solver._torn = True     # until the iteration is counted
                return loss
        net.inspect_inputs()
        net.own_on_device(solver.history)
        with device_lock:
            self.graph.replay(rate, (generator.offset - self.first_draw) % 2**64)
        solver._torn = True
        generator.take(self.draws)
        return net.loss_of_outputs() if read_loss else net.late_loss()

    def _record(self, solver):
        """Record an iteration, of which nothing runs; return whether that went well."""
        net = solver.net
        generator = net.layers[0].generator
        self.first_draw = generator.offset
        net.own_on_device(solver.history)
        try:
            graph = cuda.Graph(cuda.current())
            with device_lock, graph:
                net.clear_param_diffs()
                solver.last_pass(run_sources=False, read_loss=False)
                solver.update(1.0)
        except (DeviceError, OutOfMemoryError) as error:
            generator.offset = self.first_draw
            self._leave(solver, f"recording failed: {error}")
            solver.use_graphs = False
            return False
        self.draws, generator.offset = generator.offset - self.first_draw, self.first_draw
        self.graph = graph
        log.debug("CUDA graph: an iteration is recorded, %d nodes", graph.nodes)
        return True

    def _leave(self, solver, reason):
        if reason != self.told:
            log.debug("no CUDA graph: %s", reason)
            self.told = reason
        self.forget(solver)

    def forget(self, solver):
        """Free the graph; a plan may free memory again."""
        self.graph = self.stamp = None
        solver.net.recycles = True
