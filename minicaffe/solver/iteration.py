"""How one iteration of a training is computed: gradients, and the update if it need not wait for all of them.

Each has ``run(solver, read_loss)``, which returns the sum of the losses and whether the update is done, and
``loss_can_wait(solver)``, whether `read_loss` may be False; then a function that returns the loss may be returned in its place.
`SGDSolver._choose_iteration` chooses.
"""

from minicaffe.net.recorded import RecordedWork


class SeparateUpdate:
    """All gradients; `Solver.apply_update` comes after them."""

    @staticmethod
    def loss_can_wait(solver):
        return False

    @staticmethod
    def run(solver, read_loss=True):
        return solver.gradients(), False


class UpdateDuringBackward(SeparateUpdate):
    """Each parameter is updated as soon as backward has its gradient, whose memory is then reused."""

    @staticmethod
    def run(solver, read_loss=True):
        solver._check_not_partly_updated()
        solver.net.clear_param_diffs()
        return solver.net.forward_backward(on_gradients=solver.make_update_callback()), True


class DistributedIteration(SeparateUpdate):
    """For several processes: sums that have arrived are used for updates while others are still being sent."""

    @staticmethod
    def run(solver, read_loss=True):
        update_early = solver.update_obstacle() is None and not solver.param.snapshot_diff
        exchange = solver._exchange
        exchange.update = solver.make_update_callback() if update_early else None
        try:
            return solver.gradients(), update_early
        finally:
            exchange.update = None


class GraphIteration:
    """One CUDA graph of forward, backward and update (net/recorded.py).

    Of processes that train together the sums of their gradients are in it, too, where NCCL carries them.
    """

    def __init__(self):
        self.work = RecordedWork("an iteration")
        self.late_loss = None

    def loss_can_wait(self, solver):
        snapshot = solver.param.snapshot
        return not (solver.listeners or solver.callbacks or solver.nan == "stop" or solver._exchange is not None
                    or snapshot and (solver.iter + 1) % snapshot == 0)

    def run(self, solver, read_loss=True):
        solver._check_not_partly_updated()
        net = solver.net
        with net.lock:  # before device_lock, which a recording takes
            reason = solver.update_obstacle() or solver.capture_obstacle() or self.work.obstacle(net)
            if reason is not None:
                self.work.leave(reason)
            else:
                loss = self._step(solver, solver.constants(solver.learning_rate())[0], read_loss)
        if reason is not None:
            return (SeparateUpdate if solver._exchange is None else DistributedIteration).run(solver)
        if solver._exchange is None:
            return loss, True
        solver._exchange.start_loss_allgather(loss, solver._requested_action())
        return solver._finish_exchange(), True

    def _step(self, solver, rate, read_loss):
        """Do one iteration with the learning rate `rate`, as the update rule takes it, and return the loss.

        Without `read_loss` the host does not wait for a replayed graph: what is returned is a function that returns the loss later.
        """
        net = solver.net

        def launch(recording):
            net.clear_param_diffs()
            loss = solver.last_pass(run_sources=False, read_loss=not recording)
            solver.update(1.0 if recording else rate)   # a replay multiplies by its own
            return loss

        solver.use_graphs, loss = self.work.run(net, launch, rate, solver.history, (solver.carrier,))
        solver._partly_updated = True     # until the iteration is counted
        if loss is not None:
            return loss
        if read_loss:
            return net.loss_of_outputs()
        if self.late_loss is None:
            from minicaffe.net.graph_memory import LateLoss
            self.late_loss = LateLoss()
        return self.late_loss.of(net)
