"""One step of a training, in the order of Caffe's Solver::Step: gradients, exchange, update, count.

`TrainingStep.gradients` runs `iter_size` batches forward and backward, and exchanges the gradients with other processes. `update`
updates the parameters and counts the iteration. `Solver.step` does both, with displays and callbacks between them. Different from
Caffe: `compute` lets `gradients` update each parameter as soon as its gradient is complete where that gives the same values, and on
a GPU replays all as one CUDA graph.
"""

import functools
import logging

from minicaffe.common import caffe
from minicaffe.errors import Error
from minicaffe.net.recorded import RecordedWork

log = logging.getLogger("minicaffe.solver")


class TrainingStep:
    """The steps of a solver, and the state that one step leaves for the next.

    Attributes
    ----------
    action : str
        The action of all ranks after this iteration, if several processes train together.
    has_global_gradients : bool
        The gradients are those of all ranks, and no update has used them yet.
    partly_updated : bool
        Some parameters are updated, and the iteration is not counted yet.
    recorded : RecordedWork
        The CUDA graph of a step.
    """

    def __init__(self):
        self.action = "none"
        self.has_global_gradients = self.partly_updated = False
        self.recorded = RecordedWork("an iteration")
        self.late_loss = None       # the LateLoss, since a loss was first read later than its iteration

    def gradients(self, net, passes, exchange=None, requested_action=None, update=None):
        """Run `passes` batches forward and backward; return the sum of their losses.

        The diffs of the parameters are the sums of the gradients of all batches.

        Parameters
        ----------
        exchange : Exchange, optional
            With other processes: the gradients are the sums over all ranks, too, and what is returned is the mean of their losses.
        requested_action : callable
            Returns the action of this rank, for the exchange.
        update : callable, optional
            Updates parameters whose gradients are complete, while others are still computed or sent; called as `on_gradients` of
            `Runner.forward_backward`. Then `passes` is 1, unless there is an exchange.
        """
        net.clear_param_diffs()
        before = sum(net.forward_backward() for _ in range(passes - 1))
        if exchange is None:
            return before + net.forward_backward(on_gradients=update)
        last_pass(net, exchange, update, on_loss=lambda loss: exchange.start_loss_allgather(before + loss, requested_action()))
        return self.finish_exchange(exchange)

    def finish_exchange(self, exchange):
        """Wait for the losses and actions of all ranks; return the mean of the losses."""
        loss, self.action = exchange.finish_loss_allgather()
        self.has_global_gradients = True
        return loss

    def update(self, solver, done=False):
        """Update the parameters, unless that is `done`; count the iteration, and return its learning rate."""
        self.has_global_gradients = False
        rate = solver.learning_rate()
        if solver.param.display and solver.iter % solver.param.display == 0:
            log.info("Iteration %d, lr = %g", solver.iter, rate)
        if not done:
            solver.update(solver.constants(rate)[0])
        solver.iter += 1
        self.partly_updated = False
        return rate

    # ---- gradients and update together

    def compute(self, solver, read_loss=True):
        """Compute the gradients of the next iteration, and the update where it need not wait for all of them.

        Returns
        -------
        loss : float or callable
            The sum of the losses. Without `read_loss` it may be a function that returns it later: the device still computes it.
        updated : bool
            Whether the update is done.
        """
        if solver.replaces_step:
            return solver.gradients(), False
        if self.partly_updated:
            raise self.incomplete(solver.iter)
        param, net, exchange, action = solver.param, solver.net, solver.exchange, solver.requested_action
        obstacle = update_obstacle(param, solver.callbacks, exchange)
        if caffe.mode == "gpu" and solver.use_graphs:
            reason = obstacle or capture_obstacle(param, exchange) or self.recorded.obstacle(net)
            if reason is None:
                read_loss = (read_loss or solver.listeners or solver.nan == "stop" or exchange is not None
                             or param.snapshot and (solver.iter + 1) % param.snapshot == 0)
                rate = solver.constants(solver.learning_rate())[0]
                solver.use_graphs, loss = self.replay(net, solver.update, rate, solver.history, read_loss, exchange, action)
                return loss, True
            self.recorded.leave(reason)
        elif self.recorded.state is not None:
            self.recorded.forget()
        # Alone an early update saves memory, if a plan reuses it; of several processes it saves time.
        gains = exchange is not None or caffe.mode == "cpu" and net.plan and net.observer_reason() is None
        if obstacle is not None or param.snapshot_diff or not gains:    # snapshot_diff stores all gradients
            return self.gradients(net, param.iter_size, exchange, action), False
        update = functools.partial(self._update_subset, solver.update, solver.constants(solver.learning_rate())[0])
        return self.gradients(net, param.iter_size, exchange, action, update), True

    def _update_subset(self, update, rate, which, part=None, last=False):
        """As `on_gradients` of `Runner.forward_backward`: update the parameters with the numbers `which`; return these as used."""
        self.partly_updated = True       # until the iteration is counted
        if which:
            update(rate, which, part)
        return which

    def replay(self, net, update, rate, history, read_loss, exchange=None, requested_action=None):
        """Run forward, backward, exchange (by NCCL) and update as one CUDA graph (net/recorded.py).

        Returns
        -------
        recordable : bool
            False: recording has failed.
        loss : float or callable
            A function if the loss is not read: without `read_loss` the host does not wait for the device.
        """
        def launch(recording):      # after the sources, which `RecordedWork.run` runs
            net.clear_param_diffs()
            loss = last_pass(net, exchange, run_sources=False, read_loss=not recording)
            update(1.0 if recording else rate)   # the graph multiplies by the rate of each replay
            return loss

        recordable, loss = self.recorded.run(net, launch, rate, history, (exchange and exchange.transport.name,))
        self.partly_updated = True     # until the iteration is counted
        if loss is None and read_loss:
            loss = net.loss_of_outputs()
        elif loss is None:
            if self.late_loss is None:
                from minicaffe.net.graph_memory import LateLoss
                self.late_loss = LateLoss()
            loss = self.late_loss.of(net)
        if exchange is not None:
            exchange.start_loss_allgather(loss, requested_action())
            loss = self.finish_exchange(exchange)
        return recordable, loss

    def incomplete(self, iteration):
        """Return the error of an iteration that begins while the last one is `partly_updated`."""
        return Error(f"iteration {iteration} ended in the middle of its update: some parameters may have it and others not; "
                     "call restore() with a snapshot, make a new solver, or train without a plan, which updates all at once")


def last_pass(net, exchange, update=None, **options):
    """Run the last batch of an iteration forward and backward; with an `exchange` the gradients become the sums of all ranks'.

    `update` is called for parameters whose sums have arrived. Options and result are those of `Net.forward_backward`.
    """
    if exchange is None:
        return net.forward_backward(**options)
    exchange.begin(update)
    try:
        return net.forward_backward(on_gradients=exchange.submit, stream_large=False, **options)
    finally:
        exchange.update = None      # it refers to the solver


def update_obstacle(param, callbacks, exchange):
    """Return why the update cannot run during backward, or in the same CUDA graph; None if it can."""
    if param.iter_size > 1 and exchange is None:
        return "iter_size is more than 1"
    if param.clip_gradients >= 0:
        return "clip_gradients needs the gradients' norm on the host"
    if param.lr_policy == "plateau":
        return "the rate of policy plateau follows from the loss of the same iteration"
    return "callbacks run in the middle of an iteration" if callbacks else None


def capture_obstacle(param, exchange):
    """Return why an iteration with this exchange of gradients cannot be one CUDA graph; None if it can, or without an exchange."""
    if exchange is None:
        return None
    if not exchange.transport.on_device:
        return "MPI sends the gradients through the host"
    return "iter_size is more than 1" if param.iter_size > 1 else None
