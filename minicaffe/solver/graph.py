"""A whole training iteration as one CUDA graph: forward, backward and update, recorded once and replayed.

Of processes that train together the sums of their gradients are in it, too, where NCCL carries them.

Data sources run on the host before each replay. Where an iteration cannot be recorded, or something changed since, the
solver goes on with single launches, and the log says why at level debug (``--verbose``).
"""

import logging
import weakref

from minicaffe import cuda
from minicaffe.errors import DeviceError, OutOfMemoryError
from minicaffe.memory.synced import device_lock
from minicaffe.ops.engine import settings_epoch

log = logging.getLogger(__name__)
WARM_UP = 2  # iterations by single launches first: they take memory and compile kernels, which a recording must not


class TrainingGraph:
    """The graph of one solver's iteration."""

    def __init__(self, solver):
        self.solver = weakref.proxy(solver)  # which holds this object: memory goes with the last reference, not with a collection
        self.graph = None
        self.seen = 0  # iterations in a row with the same shapes
        self.stamp = None
        self.told = None

    def obstacle(self):
        """Return why the solver's iteration cannot be recorded now, or None."""
        solver, net = self.solver, self.solver.net
        reason = solver.update_obstacle() or solver.capture_obstacle()
        if reason is None and cuda.current().recording:
            reason = "launches are being recorded one by one"
        if reason is not None:
            return reason
        return net.capture_obstacle() if self.graph is None else net.watcher()  # layers do not change once they are recorded

    def step(self, rate, read_loss=True):
        """Do one iteration with the learning rate `rate`, as the update rule takes it.

        Return the loss; None if the iteration was not done, because it must go by single launches. Without `read_loss` the host
        does not wait for a replayed graph: what is returned is a function that returns the loss later.
        """
        reason = self.obstacle()
        if reason is not None:
            return self._leave(reason)
        net = self.solver.net
        net.recycles = False  # a graph knows the addresses of all blobs
        net.run_sources()
        generator = net.layers[0].generator
        stamp = net.stamp(), generator.seed, self.solver.carrier, settings_epoch()
        if stamp != self.stamp:
            if self.graph is not None:
                log.debug("CUDA graph: shapes, memory, the random seed, the other ranks, the precision or the engine changed; "
                          "back to single launches")
            self.graph, self.stamp, self.seen = None, stamp, 0
        if self.graph is None:
            self.seen += 1
            if self.seen <= WARM_UP or not self._record():
                net.clear_param_diffs()
                loss = self.solver.last_pass(run_sources=False)
                self.solver.update(rate)
                return loss
        net.inspect_inputs()
        net.own_on_device(self.solver.history)
        with device_lock:
            self.graph.replay(rate, (generator.offset - self.first_draw) % 2**64)
        generator.take(self.draws)
        return net.loss_of_outputs() if read_loss else net.late_loss()

    def _record(self):
        """Record an iteration, of which nothing runs; return whether that went well."""
        solver, net = self.solver, self.solver.net
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
            self._leave(f"recording failed: {error}")
            solver.use_graphs = False
            return False
        self.draws, generator.offset = generator.offset - self.first_draw, self.first_draw
        self.graph = graph
        log.debug("CUDA graph: an iteration is recorded, %d nodes", graph.nodes)
        return True

    def _leave(self, reason):
        if reason != self.told:
            log.debug("no CUDA graph: %s", reason)
            self.told = reason
        self.graph = self.stamp = None
        self.solver.net.recycles = True
        return None
