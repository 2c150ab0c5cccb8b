"""Finds values that are not finite in a training: reports their origin once, and ends the training on request.

An iteration gets no slower: its loss is read anyway. Parameters and history are checked when a loss is not finite, at displays,
tests and snapshots, and at the end: their sums of absolute values, computed on CPU or device, are finite only if all values are.
"""

import logging
import math

from minicaffe.errors import NotFiniteError
from minicaffe.memory.states import SyncedHead

log = logging.getLogger("minicaffe.solver")
EFFECTS = ("warn", "stop")
# Remedies: if a layer without bottoms gave the value; if it was before any update; otherwise.
CORRECT_DATA = "correct the data, or what scales them"
CHECK_START = "no update was made before, so check the data, the fillers and the weights"
LOWER_RATE = "try a lower base_lr, or clip_gradients"


class FiniteWatch:
    """State of this check for one solver; each call gets the solver, so that neither object keeps the other alive.

    Parameters
    ----------
    effect : str
        "warn", or "stop": parameters that are not finite raise NotFiniteError.
    begin : int
        The iteration before which no update was made.
    """

    def __init__(self, effect="warn", begin=0):
        self.effect = effect
        self.begin = begin
        self.first = None   # since the first loss that was not finite: its iteration, and the remedy
        self.nonfinite = None    # what `parameters` found last
        self.where = ""     # of several processes: those whose loss was not finite

    def loss(self, solver, loss, rate, late=False):
        """Report a loss that is not finite, of the iteration that `solver` has done at `rate`; `late`: inputs may be new since."""
        if self.first is None:
            place, from_data = self._first_blob(solver)
            if late and not from_data and solver.net.input_blobs:
                place += ", unless it came from an input that was fed again since"
            iteration = solver.iter - 1
            self.first = iteration, CORRECT_DATA if from_data else self._remedy(iteration)
            write = log.warning if solver.group.rank == 0 else log.info
            write("Iteration %d: the loss is %g, with learning rate %g; %s; %s", iteration, loss, rate, place, self.first[1])
        self.parameters(solver)

    def _first_blob(self, solver):
        """Return `first_blob` of the first rank whose own loss is not finite; the mean of the losses is the same on all ranks."""
        if solver.group.size == 1:
            return first_blob(solver.net)
        group, mine = solver.group, solver.exchange.losses[solver.group.rank]
        found = group.gather(None if math.isfinite(mine) else first_blob(solver.net))
        ranks = [rank for rank, there in enumerate(found) if there is not None]
        if not ranks:   # only the sum of the losses is not finite
            return first_blob(solver.net)
        self.where = f", after the loss of {', '.join(map(group.name, ranks[:8]))}"
        return f"on {group.name(ranks[0])} {found[ranks[0]][0]}", found[ranks[0]][1]

    def parameters(self, solver, effect=None):
        """Return whether all parameters and their history are finite.

        Raises NotFiniteError if they are not and `effect`, by default the watch's own, is "stop".
        """
        nonfinite = first_parameter(solver)
        if nonfinite is not None:
            since, remedy = self.first or (solver.iter - 1, self._remedy(solver.iter))
            error = NotFiniteError(f"iteration {solver.iter}: {nonfinite}{self.where}", remedy=remedy, since=since,
                                   file=solver.file)
            if (effect or self.effect) == "stop":
                raise error
            if self.nonfinite is None:
                log.warning("%s; no snapshots are written until they are finite again", error)
        elif self.nonfinite is not None:
            self.first, self.where = None, ""  # a caller has made them finite again
        self.nonfinite = nonfinite
        return nonfinite is None

    def _remedy(self, iteration):
        """Return what may help if values of an iteration were not finite: the rate cannot be the cause before an update."""
        return LOWER_RATE if iteration > self.begin else CHECK_START


def first_blob(net):
    """Find the first top, in the order of the layers, that the last forward pass left with a value that is not finite.

    Returns
    -------
    text : str
        Names the blob and the layers that write it; several do where layers work in place.
    from_data : bool
        Whether a layer without bottoms gave it.
    """
    recycled = False
    for blob in net.blob_list:
        recycled = recycled or blob.data_memory.head == SyncedHead.RECYCLED
        if not recycled and not math.isfinite(blob.asum_data()):
            writers = [node for node in net.nodes if blob in node.tops]
            layers = " and ".join(f"layer '{node.name}' ({node.type})" for node in writers)
            return f"the first blob that is not finite is '{blob.name}' of {layers}", not writers[0].bottoms
    if recycled:
        return "which blob it came from is not known, as blobs share memory (find it with --plan none)", False
    return "no blob holds such a value any more", False  # an earlier batch of iter_size gave it, or a layer overwrote it in place


def first_parameter(solver):
    """Return as text, for errors, the first parameter or history with a value that is not finite; None if all are finite."""
    params, table = solver.net.learnable_params, solver.net.param_table
    for k, blob in enumerate(params + solver.history):
        if not math.isfinite(blob.asum_data()):
            what = "parameters are" if k < len(params) else "the history of parameters is"
            return f"{what} no longer finite, the first is {table.places[table.learnable[k % len(params)]]}"
    return None
